"""Mistakes of the user, each explained in one sentence."""

import difflib
import math
from collections.abc import Iterable


class ConfigError(ValueError):
    """A user's mistake, in one sentence: what was wrong, which key or file, and what to do."""

    def __init__(self, sentence: object) -> None:
        super().__init__(printable(" ".join(str(sentence).splitlines())))


def printable(text: str) -> str:
    """The text with its control characters written out, so that a terminal obeys none of them."""
    return "".join(
        c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text
    )


def one_of(key: str, value: str, choices: Iterable[str]) -> None:
    """Raise a :class:`ConfigError` unless ``value`` is one of ``choices``."""
    choices = list(choices)
    if value not in choices:
        raise ConfigError(
            f"{key}={value}{did_you_mean(value, choices)} Choose one of: {', '.join(choices)}."
        )


def at_least_one(section: str, **values: float | None) -> None:
    """Raise a :class:`ConfigError` unless every ``<section>.<key>`` is None, or 1 or more."""
    for key, value in values.items():
        if value is not None and value < 1:
            raise ConfigError(f"{section}.{key}={value} must be at least 1.")


def between(section: str, low: float, high: float, **values: float) -> None:
    """Raise a :class:`ConfigError` unless every ``<section>.<key>`` is from ``low`` to ``high``;
    keys of the top have an empty section.
    """
    for key, value in values.items():
        if not low <= value <= high:  # NaN fails too
            limits = f"at least {low:g}" if high == math.inf else f"from {low:g} to {high:.9g}"
            name = f"{section}.{key}".lstrip(".")
            raise ConfigError(f"{name}={value} must be {limits}.")


def positive(section: str, **values: float) -> None:
    """Raise a :class:`ConfigError` that names ``<section>.<key>`` unless every value is above 0."""
    for key, value in values.items():
        if not value > 0:
            raise ConfigError(f"{section}.{key}={value} must be positive.")


def unread(section: str, why: str, **values: tuple[object, object]) -> None:
    """Raise where a key that nothing reads, for the reason ``why``, is not at its default.

    Args:
        values: key -> its value and its default.
    """
    for key, (value, usual) in values.items():
        if value != usual:
            raise ConfigError(f"{section}.{key}={value} has no effect with {why}; leave it out.")


def did_you_mean(word: str, candidates: Iterable[str]) -> str:
    """`` is not known. Did you mean 'tape'?``, or only the first half where nothing is near."""
    near = difflib.get_close_matches(str(word), list(candidates), n=1, cutoff=0.6)
    return " is not known." + (f" Did you mean '{near[0]}'?" if near else "")


def no_override(word: str) -> str:
    """The sentence for a word that lacks a key or a value."""
    return f"{word} is not an override: give a key and its value, as in model=tape."


def refused(error: OSError) -> str:
    """The sentence for what the system refuses: a full disk, a folder without permission, …"""
    place = error.filename2 or error.filename
    reason = error.strerror or str(error) or type(error).__name__
    return f"{place}: {reason}." if place is not None else f"the system refuses: {reason}."
