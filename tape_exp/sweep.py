"""``tape-exp sweep | status | collect``: make a set of runs, show its state, keep its records."""

import sys
from collections.abc import Sequence
from pathlib import Path

from tape_exp.experiments import status
from tape_exp.experiments.queue import Submissions, queue_if_known
from tape_exp.experiments.run_spec import read_specs
from tape_exp.settings.commands import command
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.parser import ArgumentParser
from tape_exp.training.logs import set_up_logging
from tape_exp.tune import searches

WORDS = "keys with commas, as model=rope,tape seed=0,1, or an artifact with scale= and seed="


@command
def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; mistakes are one sentence and exit code 2."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    return COMMANDS[words[0]](words[1:])


def sweep(arguments: Sequence[str]) -> int:
    """Submit the runs that are missing to SLURM, or run them here with ``--cores``."""
    from tape_exp.artifacts.requests import specs_of_words
    from tape_exp.experiments import execute
    from tape_exp.experiments.runnable import runnable

    parser = ArgumentParser(
        "tape-exp sweep",
        description="Submit a set of runs to SLURM, as arrays of jobs; with --cores run it here. "
        "Runs that are finished or in the queue are left out.",
        epilog="Example: tape-exp sweep model=rope,tape task=c4 seed=0,1,2 trainer=gpu --cap 8",
    )
    parser.add_argument("words", nargs="+", metavar="key=value", help=WORDS)
    execute.add_options(parser)
    options = parser.parse_intermixed_args(arguments)
    options.slurm = options.slurm or not options.cores
    execute.check_options(options)
    set_up_logging()
    specs = runnable(specs_of_words(options.words), all_of_them=options.slurm)
    outcome = execute.run_or_submit(specs, options, ["sweep", *options.words])
    return outcome.status() if outcome else 0


def show_status(arguments: Sequence[str]) -> int:
    """Print a line for each run of each sweep, and how many runs are in each state; then a line for
    each search.
    """
    parser = ArgumentParser(
        "tape-exp status",
        description="Show the state of each run. Without words: of every sweep that was submitted "
        "from here, and of every search of tape-exp tune.",
    )
    parser.add_argument("words", nargs="*", metavar="key=value", help=WORDS)
    folder = "the folder of the runs (default: %(default)s)"
    parser.add_argument("--runs", type=Path, default="runs", help=folder)
    options = parser.parse_intermixed_args(arguments)
    if options.words:
        show_runs(options.words)
    else:
        show_folder(options.runs.resolve())
    return 0


def show_runs(words: Sequence[str]) -> None:
    """Print the runs that words name, submitted or not."""
    from tape_exp.artifacts.requests import specs_of_words  # imports Hydra
    from tape_exp.experiments.slurm import sweep_folder

    specs = specs_of_words(words)
    sweeps = sweep_folder(specs).parent
    tasks = queue_if_known(told=any(status.sweeps_in(sweeps.parent)))
    status.print_runs(specs, Submissions(sweeps, tasks))


def show_folder(runs: Path) -> None:
    """Print every sweep that was submitted from a folder of runs, and every search in it."""
    sweeps = status.sweeps_in(runs)
    in_folder = searches.searches_in(runs)
    if not sweeps and not in_folder:
        raise ConfigError(
            f"{runs} has neither a sweep that was submitted to SLURM nor a search: name the words "
            "of runs that were made here, as in tape-exp status task=arithmetic model=rope,tape "
            "seed=0,1, or another folder by --runs."
        )
    tasks = queue_if_known(told=bool(sweeps))
    submissions = Submissions(runs / ".sweeps", tasks)
    for sweep in sweeps:
        status.print_runs(read_specs(sweep), submissions)
    for search in in_folder:
        searches.print_search(search, tasks)


def collect_runs(arguments: Sequence[str]) -> int:
    """Copy the records of finished runs to results/; status 1 where some are not finished."""
    from tape_exp.artifacts.requests import specs_of_words
    from tape_exp.experiments.collect import collect

    parser = ArgumentParser(
        "tape-exp collect",
        description="Copy the records of finished runs to results/records. Nothing is trained.",
    )
    parser.add_argument("words", nargs="+", metavar="key=value", help=WORDS)
    options = parser.parse_intermixed_args(arguments)
    specs = specs_of_words(options.words)
    recorded = sum(spec.recorded for spec in specs)
    missing = collect(specs)
    copied = len(specs) - recorded - len(missing)
    for spec in missing:
        print(f"not finished: {spec.title}")
    print(f"{copied} collected, {recorded} recorded before, {len(missing)} not finished.")
    return 1 if missing else 0


COMMANDS = {"sweep": sweep, "status": show_status, "collect": collect_runs}

if __name__ == "__main__":
    sys.exit(main())
