"""Rank encodings on the battery: ``tape-exp bench model=rope,tape seed=0,1,2``."""

import sys
from collections.abc import Sequence
from pathlib import Path

from tape_exp.bench.bench import OUT, RATES, TASKS, Bench
from tape_exp.bench.tables import scores_table
from tape_exp.bench.tasks import ENTRIES, SETS
from tape_exp.experiments.execute import add_options, check_options
from tape_exp.experiments.grid import as_flags, run_overrides
from tape_exp.settings.commands import command
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.parser import ArgumentParser
from tape_exp.training.logs import set_up_logging


@command
def main(arguments: Sequence[str] | None = None) -> int:
    """Run what has no record, then write and print the tables.

    Mistakes are one sentence and status 2, failed runs status 1, time that ran out is 85.
    """
    parser = ArgumentParser(
        prog="tape-exp bench",
        description="Rank encodings on the battery: run what has no record yet, then write tables "
        "and pictures. Without models show what is recorded.",
        epilog="Example: tape-exp bench model=rope,tape --tasks quick seed=0,1,2 --cores 2",
    )
    keys = "model=a,b, scale= (default: smoke), seed=0,1 (default: 0) and any key"
    parser.add_argument("words", nargs="*", metavar="key=value", help=keys)
    tasks = "tasks and sets of tasks, with commas (default: %(default)s)"
    parser.add_argument("--tasks", default=TASKS, help=tasks)
    rates = "learning rates to choose from (default: %(default)s)"
    parser.add_argument("--rates", default=RATES, help=rates)
    parser.add_argument("--list", action="store_true", help="print the tasks and the sets")
    add_options(parser)
    parser.add_argument("--out", type=Path, default=OUT, help="write here (default: results/bench)")
    given = sys.argv[1:] if arguments is None else arguments
    options = parser.parse_intermixed_args(as_flags(given, ["tasks", "rates"]))
    set_up_logging()
    if options.list:
        for name, entry in ENTRIES.items():
            print(f"{name:22} {entry.summary}")
        for name, members in SETS.items():
            print(f"{name:22} {', '.join(members)}")
        return 0
    check_options(options)
    words = run_overrides(options.words)
    bench = Bench(words, options.out, options.tasks, options.rates)
    outcome = None
    if bench.models:
        outcome = bench.run(options, ["bench", *given])
        if outcome is None:  # nothing has run yet
            return 0
    if options.dry_run:
        print("missing runs: 0")
        return 0
    board = bench.board(shown=True)
    if board.scores:
        for path in bench.write(board):
            print(path)
        print(f"\n{scores_table(board).terminal()}")
    elif outcome is None or not (outcome.failed or outcome.left):
        raise ConfigError(
            "no search of learning rates is recorded for these tasks and rates; name models to "
            "run, as in tape-exp bench model=rope,tape."
        )
    return outcome.status() if outcome else 0


if __name__ == "__main__":
    sys.exit(main())
