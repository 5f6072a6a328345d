"""``python train.py``, in a clone the same as ``tape-exp train``: tape_exp/training/__main__.py."""

import sys

from tape_exp.training.__main__ import main

if __name__ == "__main__":
    sys.exit(main())
