"""Types of the options that the commands share."""

import argparse
from collections.abc import Callable
from typing import Any

MOST = 1e8  # of minutes, processes, …: no one means more, and timers overflow


def positive(kind: type) -> Callable[[str], Any]:
    """The argparse type of an option that must be above 0 and no more than :data:`MOST`; ``kind``
    is int or float.
    """

    def number(text: str) -> Any:
        try:
            if 0 < (value := kind(text)) <= MOST:
                return value
        except ValueError:
            pass
        raise argparse.ArgumentTypeError(
            f"{text} must be a {'whole number' if kind is int else 'number'} above 0, at most "
            f"{MOST:.0f}."
        )

    return number
