"""``tape-exp tune``: search learning rates and other keys, with equal budgets for some models."""

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tape_exp.experiments.execute import check_options_of_jobs, positive
from tape_exp.experiments.grid import as_flags
from tape_exp.machine.preemption import REQUEUE
from tape_exp.settings.commands import command
from tape_exp.settings.parser import ArgumentParser

if TYPE_CHECKING:
    from tape_exp.tune.search import Search

FLAGS = ("space", "trials", "metric", "pruner")


@command
def main(arguments: Sequence[str] | None = None) -> int:
    """Search and print the result; status 1 where trials failed, 85 where there was no time."""
    options = options_of(sys.argv[1:] if arguments is None else arguments)
    check_options_of_jobs(options)
    from tape_exp.tune.report import print_report
    from tape_exp.tune.search import search_from
    from tape_exp.tune.trials import Trials
    from tape_exp.tune.work import work
    from tape_exp.tune.workers import work_in_processes

    search = search_from(options)
    search.check()
    if options.dry_run:
        show(search)
        return 0
    if options.slurm:
        submit(search, options)
        return 0
    trials = Trials(search)
    if options.cores:
        status = work_in_processes(search, options.cores, options.minutes)
    else:
        status = 0 if work(trials, options.minutes) else REQUEUE
    failed = print_report(trials)
    if status:
        return status
    return 1 if failed else 0


def show(search: "Search") -> None:
    """Print what a search would try, and where it is kept."""
    runs = f", each the mean of {len(search.seeds)} seeds" if len(search.seeds) > 1 else ""
    print(
        f"{search.trials} trials of each of {', '.join(search.models)}{runs}, by {search.metric}:"
    )
    for key, values in search.space.items():
        print(f"  {key}={values}")
    print(f"In {search.folder}, where trials that are there count; nothing is run.")


def submit(search: "Search", options: argparse.Namespace) -> None:
    """Submit workers to SLURM, each of which gives this command; the journal has their trials."""
    from tape_exp.experiments import slurm
    from tape_exp.experiments.run_spec import RunSpec
    from tape_exp.tune.trials import Trials

    flags = {name: getattr(options, name) for name in (*FLAGS, "minutes")}
    chosen = [f"--{name}={value}" for name, value in flags.items() if value]
    config = search.config(search.models[0], {}, search.seeds[0])
    command = ["tune", *options.words, *chosen]
    spec = RunSpec([], config)
    folder = search.folder / "workers"
    slurm.submit_workers(options.slurm, spec, command, folder, search.name, options.dirty)
    Trials(search)  # begins the journal, in which tape-exp status finds the search


def options_of(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the words of the command."""
    parser = ArgumentParser(
        prog="tape-exp tune",
        description="Search keys of the config with Optuna, by validation, with as many trials for "
        "each model. The same command resumes a search. Start it several times, and the search has "
        "several workers.",
        epilog="Example: tape-exp tune model=rope,tape task=arithmetic --space rates --trials 12",
    )
    words = "model=a,b, task=, scale=, seed=0,1 and any key, with a value or a set to search"
    parser.add_argument("words", nargs="+", metavar="key=value", help=words)
    space = "search the keys of this YAML, of conf/space or your own"
    parser.add_argument("--space", default="", help=space)
    trials = "the trials of each model (default: %(default)s)"
    parser.add_argument("--trials", default="12", help=trials)
    metric = "the metric of validation that ranks trials (default: %(default)s)"
    parser.add_argument("--metric", default="val/loss", help=metric)
    pruner = "end bad trials early: median, or none (default: %(default)s)"
    parser.add_argument("--pruner", default="median", help=pruner)
    minutes = "save after so many minutes, and exit with status 85"
    parser.add_argument("--minutes", type=float, help=minutes)
    parser.add_argument("--dry-run", action="store_true", help="print what would be tried")
    parser.add_argument("--cores", type=positive, help="run so many workers here")
    workers = "submit so many workers to SLURM; slurm.<option>=<value> is one of sbatch's"
    parser.add_argument("--slurm", type=positive, metavar="WORKERS", help=workers)
    dirty = "let the workers run the files as they are, not a copy of the last commit"
    parser.add_argument("--dirty", action="store_true", help=dirty)
    return parser.parse_intermixed_args(as_flags(arguments, FLAGS))


if __name__ == "__main__":
    sys.exit(main())
