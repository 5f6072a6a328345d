"""``tape-exp data <words of a run>``: fill ``cache=`` with what the run reads, and stop there.

The corpus is tokenised by one CPU, once for all runs that read it; a GPU would wait meanwhile.
"""

import sys
from collections.abc import Sequence

from tape_exp.settings.commands import command
from tape_exp.settings.compose import compose_config
from tape_exp.settings.parser import ArgumentParser


@command
def main(arguments: Sequence[str] | None = None) -> int:
    """Compose the config as ``tape-exp train`` does, and prepare its data."""
    parser = ArgumentParser(
        prog="tape-exp data",
        description="Tokenise the text that a run reads, into cache/. Nothing is trained.",
        epilog="Example: tape-exp data task=c4 scale=paper",
    )
    words = "the words that tape-exp train will have"
    parser.add_argument("words", nargs="+", metavar="key=value", help=words)
    cfg = compose_config(parser.parse_args(arguments).words)
    from tape_exp.runs.directory import RunDirectory  # import torch
    from tape_exp.training.from_config import make_task
    from tape_exp.training.logs import set_up_logging

    set_up_logging()
    directory = RunDirectory(cfg)
    make_task(directory.cfg, directory.start).prepare_data()
    print(f"The data of {directory.name} are in {cfg.cache}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
