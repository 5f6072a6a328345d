"""``python -m tape_exp.bench``: see bench/command.py."""

import sys

from tape_exp.bench.command import main

if __name__ == "__main__":
    sys.exit(main())
