"""Secrets of the environment, kept out of what a run writes: log lines, FAILED and the manifest.

No key of the config takes a secret: the clients of the hub and of W&B read theirs from variables of
the environment, and the values of these variables are what is replaced.
"""

import json
import logging
import os
import re
from typing import Any

MASK = "[hidden]"
NAMES = re.compile(r"(TOKEN|KEY|SECRET|PASSWORD)$", re.IGNORECASE)
SHORTEST = 8  # characters; a shorter value could be part of any word


def redact(text: str) -> str:
    """Mask the values of ``*TOKEN``, ``*KEY``, ``*SECRET`` and ``*PASSWORD`` in a text, also as
    Python and JSON write them within quotes.
    """
    for value in sorted(_secrets(), key=len, reverse=True):  # one may begin with another
        text = text.replace(value, MASK)
    return text


def _secrets() -> set[str]:
    """Find the values, and how they are written within quotes."""
    values = set()
    for name, value in os.environ.items():
        if NAMES.search(name) and len(value) >= SHORTEST:
            values |= {value, repr(value)[1:-1], json.dumps(value)[1:-1]}
    return values


def redact_tree(value: Any) -> Any:
    """Apply :func:`redact` to every text in plain containers; what is no text stays as it is."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, dict):
        return {key: redact_tree(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [redact_tree(inner) for inner in value]
    return value


class RedactingFormatter(logging.Formatter):
    """A formatter that masks secrets in its lines, tracebacks included."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a line, redacted."""
        return redact(super().format(record))
