"""``python -m tape_exp.soak``: see measure/soak.py."""

import sys

from tape_exp.measure.soak import main

if __name__ == "__main__":
    sys.exit(main())
