"""``python -m launch.status``, in a clone: see tape_exp/launch/status.py."""

import sys

from tape_exp.launch.status import main

if __name__ == "__main__":
    sys.exit(main())
