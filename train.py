"""``python train.py``, in a clone the same as ``tape-exp train``: tape_exp/training/__main__.py."""

import signal

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # during the imports Ctrl-C has no traceback

from tape_exp import cli
from tape_exp.training.__main__ import train

if __name__ == "__main__":
    cli.with_clear_errors(train)
