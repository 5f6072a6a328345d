"""``tape-exp tune``: search learning rates and other keys, with equal budgets for some models."""

import argparse
import sys
from collections.abc import Sequence

from tape_exp.machine.preemption import REQUEUE
from tape_exp.settings.commands import command


@command
def main(arguments: Sequence[str] | None = None) -> int:
    """Search and print the result; status 1 where trials failed, 85 where there was no time."""
    parser = argparse.ArgumentParser(
        prog="tape-exp tune",
        description="Search keys of the config with Optuna, on validation only, with equally many "
        "trials for each model. The same command resumes after a kill, and run several times at "
        "once it has several workers.",
        epilog="Example: tape-exp tune model=rope,tape task=arithmetic space=rates trials=12",
    )
    words = "model= | task= | space= | trials= | seeds= | metric= | pruner= | key=value"
    parser.add_argument("words", nargs="+", metavar=words)
    parser.add_argument("--minutes", type=float, help="then save, and exit with status 85")
    args = parser.parse_intermixed_args(arguments)
    from tape_exp.tune.search import search_from
    from tape_exp.tune.trials import Trials, work

    search = search_from(args.words)
    search.check()
    trials = Trials(search)
    in_time = work(trials, args.minutes)
    failed = trials.report()
    return int(failed) if in_time else REQUEUE


if __name__ == "__main__":
    sys.exit(main())
