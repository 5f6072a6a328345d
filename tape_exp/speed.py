"""``python -m tape_exp.speed``: see measure/speed.py."""

import sys

from tape_exp.measure.speed import main

if __name__ == "__main__":
    sys.exit(main())
