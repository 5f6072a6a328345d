"""Where runs are made is an option of each command: here with ``--cores``, or with ``--slurm``."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from tape_exp.experiments import local, slurm
from tape_exp.experiments.bases import locate_all
from tape_exp.experiments.collect import collect
from tape_exp.experiments.local import Outcome
from tape_exp.experiments.run_spec import RunSpec


def positive(text: str) -> int:
    """A whole number from 1 of an option."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text} must be a whole number from 1")
    return int(text)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Where the runs of a command are made, and how many at a time."""
    parser.add_argument("--cores", type=positive, help="runs at a time, one thread each")
    parser.add_argument("--minutes", type=float, help="then save, and exit with status 85")
    on_slurm = "submit the runs to SLURM, with slurm.<option of sbatch>=value; then give it again"
    parser.add_argument("--slurm", action="store_true", help=on_slurm)
    add_cluster_options(parser)


def add_cluster_options(parser: argparse.ArgumentParser) -> None:
    """What SLURM is asked for besides its own options."""
    at_once = "jobs at once (default: %(default)s)"
    parser.add_argument("--cap", type=positive, default=64, help=at_once)
    parser.add_argument("--dirty", action="store_true", help="run the files as they are")
    after = "wait for the ends of these jobs, whose ids are 41:42"
    parser.add_argument("--after", default="", metavar="ID", help=after)


def execute(
    specs: Sequence[RunSpec],
    options: argparse.Namespace,
    command: Sequence[str],
    into: Path | None = None,
) -> Outcome | None:
    """Make the runs that are missing, and collect the records of those that are finished.

    Args:
        specs: runs that can run, each after those that it begins from.
        options: of :func:`add_options`.
        command: what the user gave, ``["bench", "model=rope"]``.
        into: the folder of records; None: that of each run's artifact.

    Returns:
        How it ended; None where the runs were submitted, so that nothing has ended yet.
    """
    anew = [spec for spec in specs if spec.anew]
    missing = collect([spec for spec in specs if not spec.anew], into)
    if options.slurm:
        submit(specs, options, command)
        return None if missing or anew else Outcome()
    todo = [*missing, *anew]
    try:
        return local.run(todo, options.cores, options.minutes)
    finally:
        collect(todo, into)


def submit(specs: Sequence[RunSpec], options: argparse.Namespace, command: Sequence[str]) -> None:
    """Submit runs, bases first: the same runs have the same numbers whenever they are named."""
    locate_all(specs)
    by_level = sorted(specs, key=lambda spec: spec.level)
    after = options.after.split(":") if options.after else []
    slurm.submit(by_level, command, options.cap, after, options.dirty)
