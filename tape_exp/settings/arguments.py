"""Types of the options that the commands share."""

import argparse
from collections.abc import Callable
from typing import Any


def positive(kind: type) -> Callable[[str], Any]:
    """The argparse type of an option that must be above 0; ``kind`` is int or float."""

    def number(text: str) -> Any:
        try:
            if (value := kind(text)) > 0:
                return value
        except ValueError:
            pass
        raise argparse.ArgumentTypeError(
            f"{text} must be a {'whole number' if kind is int else 'number'} above 0."
        )

    return number
