"""``python -m tape_exp.overhead``: see measure/overhead.py."""

import sys

from tape_exp.measure.overhead import main

if __name__ == "__main__":
    sys.exit(main())
