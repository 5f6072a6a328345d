"""``python -m tape_exp.data_speed``: see measure/data_speed.py."""

import sys

from tape_exp.measure.data_speed import main

if __name__ == "__main__":
    sys.exit(main())
