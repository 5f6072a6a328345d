"""Mistakes of the user, each explained in one sentence."""

import difflib
import re
import sys
from collections.abc import Iterable
from importlib import metadata


class ConfigError(ValueError):
    """A user's mistake in one sentence: what was wrong, which key or file, and what to do."""

    def __init__(self, sentence: object) -> None:
        super().__init__(" ".join(str(sentence).split("\n")))


def one_of(key: str, value: object, choices: Iterable[str | None]) -> None:
    """Raise a :class:`ConfigError` unless ``value`` is one of ``choices``."""
    known = list(choices)
    if value not in known:
        raise ConfigError(choose(f"{key}={value}", value, list(map(str, known))))


def choose(what: str, word: object, choices: Iterable[str]) -> str:
    """Say that ``what`` is not known, since ``word`` is none of the choices.

    >>> choose("model=tpae", "tpae", ["rope", "tape"])
    "model=tpae is not known. Did you mean 'tape'? Choose one of: rope, tape."
    """
    return f"{what}{did_you_mean(word, choices)} Choose one of: {', '.join(choices)}."


def did_you_mean(word: object, candidates: Iterable[str]) -> str:
    """Say `` is not known. Did you mean 'tape'?``, or only the first half where nothing is near."""
    near = difflib.get_close_matches(str(word), list(candidates), n=1, cutoff=0.6)
    return " is not known." + (f" Did you mean '{near[0]}'?" if near else "")


def warn(sentence: str) -> None:
    """Say something on stderr."""
    print(f"warning: {sentence}", file=sys.stderr)


def missing_package(error: Exception) -> str:
    """Say which extra of this package would have prevented an error; nothing of other errors."""
    if not (isinstance(error, ModuleNotFoundError) and error.name):
        return ""
    package = error.name.partition(".")[0].replace("_", "-")
    try:
        requirements = "\n".join(metadata.requires("tape_exp") or [])
    except metadata.PackageNotFoundError:  # a clone that is not installed
        return ""
    extras = re.findall(rf"^{package}(?![\w-]).*extra == .(\w+)", requirements, re.MULTILINE)
    if not extras:
        return ""
    smallest = min(extras, key=lambda extra: requirements.count(f"'{extra}'"))
    return f"{error}: pip install 'tape_exp[{smallest}]'."
