"""``python -m launch.sweep``, in a clone: see tape_exp/launch/sweep.py."""

import sys

from tape_exp.launch.sweep import main

if __name__ == "__main__":
    sys.exit(main())
