"""Rank encodings on the battery: ``tape-exp bench rope tape tasks=quick seeds=0,1,2``."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tape_exp.bench.bench import OUT, Bench
from tape_exp.bench.tasks import ENTRIES, SETS
from tape_exp.settings.commands import command
from tape_exp.settings.errors import ConfigError
from tape_exp.training.logs import set_up_logging


@command
def main(arguments: Sequence[str] | None = None) -> int:
    """Mistakes are one sentence and status 2, failed runs status 1, time that ran out is 85."""
    parser = argparse.ArgumentParser(
        prog="tape-exp bench",
        description="Rank encodings on the battery: runs what has no record yet, then writes the "
        "tables and pictures (default: tasks=quick scale=smoke seeds=0 rates=0.001,0.003,0.01). "
        "Without models it shows what is recorded.",
        epilog="Example: tape-exp bench rope tape tasks=quick seeds=0,1,2 --cores 2",
    )
    keys = "model | tasks= | scale= | seeds= | rates= | key=value"
    parser.add_argument("words", nargs="*", metavar=keys)
    parser.add_argument("--list", action="store_true", help="the tasks and what they ask")
    parser.add_argument("--cores", type=int, help="runs at a time, one thread each")
    parser.add_argument("--minutes", type=float, help="then save, and exit with status 85")
    parser.add_argument("--out", type=Path, default=OUT, help="folder (default: results/bench)")
    options = parser.parse_intermixed_args(arguments)
    set_up_logging()
    if options.list:
        for name, entry in ENTRIES.items():
            print(f"{name:22} {entry.summary}")
        for name, members in SETS.items():
            print(f"{name:22} {', '.join(members)}")
        return 0
    bench = Bench(options.words, options.out)
    outcome = bench.run(options.cores, options.minutes) if bench.models else None
    board = bench.board(shown=True)
    if board.scores:
        for path in bench.write(board):
            print(path)
        print(f"\n{board.scores_table().terminal()}")
    elif outcome is None or not (outcome.failed or outcome.left):
        raise ConfigError(
            "no search of learning rates is recorded for these tasks and rates; name models to "
            "run, as in tape-exp bench rope tape."
        )
    return outcome.status() if outcome else 0


if __name__ == "__main__":
    sys.exit(main())
