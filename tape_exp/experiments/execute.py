"""A command's runs, made where its options say: here (``--cores``) or by SLURM (``--slurm``)."""

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tape_exp.experiments import local, slurm
from tape_exp.experiments.bases import find_folders
from tape_exp.experiments.collect import collect
from tape_exp.experiments.local import Outcome
from tape_exp.experiments.run_spec import RunSpec
from tape_exp.settings.errors import ConfigError

CAP = 64  # jobs at once


def positive(text: str) -> int:
    """Read an option as a whole number from 1."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text} must be a whole number from 1")
    return int(text)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say where the runs of a command are made, and how many at a time."""
    parser.add_argument("--dry-run", action="store_true", help="print what would be done")
    cores = "run so many at a time here, with one thread each"
    parser.add_argument("--cores", type=positive, help=cores)
    minutes = "save after so many minutes, and exit with status 85"
    parser.add_argument("--minutes", type=float, help=minutes)
    on_slurm = (
        "submit the runs to SLURM; slurm.<option>=<value> is one of sbatch's. The same command "
        "after the jobs goes on"
    )
    parser.add_argument("--slurm", action="store_true", help=on_slurm)
    at_once = f"run at most so many jobs of SLURM at once (default: {CAP})"
    parser.add_argument("--cap", type=positive, help=at_once)
    dirty = "let the jobs run the files as they are, not a copy of the last commit"
    parser.add_argument("--dirty", action="store_true", help=dirty)
    after = "let the jobs wait for the ends of these jobs, as 41:42"
    parser.add_argument("--after", default="", metavar="ID", help=after)


def check_options(options: argparse.Namespace) -> None:
    """Raise :class:`ConfigError` where a command says something of jobs and submits none, or of
    runs here and submits them.
    """
    check_options_of_jobs(options)
    if options.slurm and options.minutes:
        raise ConfigError("--minutes is for runs here: slurm.time=<minutes> is the time of a job.")


def check_options_of_jobs(options: argparse.Namespace) -> None:
    """Raise :class:`ConfigError` where a command says something of jobs and submits none, or says
    how many cores runs here have and submits them.
    """
    of_jobs = [argument for argument in options.words if argument.startswith("slurm.")]
    of_jobs += [f"--{name}" for name in ("cap", "dirty", "after") if getattr(options, name, None)]
    if of_jobs and not options.slurm:
        raise ConfigError(f"{of_jobs[0]} is for jobs of SLURM: add --slurm, or leave it out.")
    if options.slurm and options.cores:
        raise ConfigError("--cores runs here, and --slurm submits: leave one of them out.")


def execute(
    specs: Sequence[RunSpec],
    options: argparse.Namespace,
    command: Sequence[str],
    into: Path | None = None,
) -> Outcome | None:
    """Collect the records of runs that are finished, run or submit the others, and collect those.

    Args:
        specs: runs that can run, each after those that it begins from.
        options: of :func:`add_options`.
        command: what the user gave, ``["bench", "model=rope"]``.
        into: the folder of records; None: that of each run's artifact.

    Returns:
        How it ended; None where nothing has ended yet: runs were submitted, or only shown.
    """
    if options.dry_run:
        return run_or_submit(specs, options, command)
    again = [spec for spec in specs if spec.rerun]
    missing = collect([spec for spec in specs if not spec.rerun], into)
    if options.slurm:
        run_or_submit(specs, options, command)
        return None if missing or again else Outcome()
    try:
        return run_or_submit([*missing, *again], options, command)
    finally:
        collect([*missing, *again], into)


def run_or_submit(
    specs: Sequence[RunSpec], options: argparse.Namespace, command: Sequence[str]
) -> Outcome | None:
    """Run here, or with ``--slurm`` submit, the runs that are not done; with ``--dry-run`` only
    show them.

    Returns:
        How it ended; None where nothing has.
    """
    find_folders(specs)
    if options.slurm and specs:
        # bases first: the same runs have the same numbers whenever they are named
        by_level = sorted(specs, key=lambda spec: spec.level)
        after = options.after.split(":") if options.after else []
        submit = slurm.show_runs if options.dry_run else slurm.submit_runs
        submit(by_level, command, options.cap or CAP, after, options.dirty)
        return None
    to_run = [spec for spec in specs if spec.to_run]
    if options.dry_run:
        show(to_run)
        return None
    return local.run(to_run, options.cores, options.minutes)


def show(specs: Sequence[RunSpec]) -> None:
    """Print the titles of runs, and how many there are: of several artifacts, of each."""
    for spec in specs:
        print(spec.title)
    counts = Counter(spec.title.partition(": ")[0] for spec in specs if ": " in spec.title)
    of_each = ""
    if len(counts) > 1:
        of_each = f" ({', '.join(f'{name} {count}' for name, count in counts.items())})"
    print(f"missing runs: {len(specs)}{of_each}")
