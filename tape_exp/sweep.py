"""``tape-exp sweep | status | collect``: make a set of runs, show its state, keep its records."""

import sys
from collections.abc import Sequence
from pathlib import Path

from tape_exp.experiments import status
from tape_exp.settings.commands import command
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.parser import ArgumentParser
from tape_exp.training.logs import set_up_logging
from tape_exp.tune import searches

WORDS = "key=value,value … | artifact … scale= seed=0,1 key=value"


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
        description="Submit runs to SLURM, an array of jobs for those that can run at once. "
        "Without --cores a sweep is always submitted, so --slurm need not be given.",
    )
    parser.add_argument("words", nargs="+", metavar=WORDS)
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
    parser = ArgumentParser("tape-exp status", description="The runs of a sweep.")
    of_one = "of one sweep; none: every sweep and every search of tape-exp tune"
    parser.add_argument("words", nargs="*", metavar="word", help=of_one)
    parser.add_argument("--runs", type=Path, default="runs", help="the folder of the runs")
    options = parser.parse_intermixed_args(arguments)
    if not options.words:
        has_sweeps = status.print_sweeps(options.runs.resolve())
        has_searches = searches.print_searches(options.runs.resolve())
        if not has_sweeps and not has_searches:
            raise ConfigError(
                f"no sweep was submitted from here ({options.runs / '.sweeps'} has none): name the "
                "runs, as in tape-exp status model=rope,tape seed=0,1, or another folder by --runs."
            )
        return 0
    from tape_exp.artifacts.requests import specs_of_words  # imports Hydra
    from tape_exp.experiments import slurm

    specs = specs_of_words(options.words)
    status.print_runs(specs, status.submissions_of(slurm.sweep_folder(specs).parent))
    return 0


def collect_runs(arguments: Sequence[str]) -> int:
    """Copy the records of finished runs to results/; status 1 where some are not finished."""
    from tape_exp.artifacts.requests import specs_of_words
    from tape_exp.experiments.collect import collect

    parser = ArgumentParser(
        "tape-exp collect",
        description="Copy the records of finished runs to results/records. Nothing is trained.",
    )
    parser.add_argument("words", nargs="+", metavar=WORDS)
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
