"""Mistakes of the user, each explained in one sentence."""

import difflib
import re
import sys
from collections.abc import Iterable, Sequence
from importlib import metadata

FEW = 12  # choices that a sentence lists
CHOICES = "tape-exp train --help"  # lists those of every group of conf/


class ConfigError(ValueError):
    """A user's mistake in one sentence: what was wrong, which key or file, and what to do."""

    def __init__(self, sentence: object) -> None:
        super().__init__(" ".join(str(sentence).split("\n")))


def one_of(key: str, value: object, choices: Iterable[str | None], lister: str = "") -> None:
    """Raise a :class:`ConfigError` unless ``value`` is one of ``choices``, which are those of
    :func:`choose`.
    """
    known = list(choices)
    if value not in known:
        raise ConfigError(choose(f"{key}={value}", value, list(map(str, known)), lister))


def choose(what: str, word: object, choices: Sequence[str], lister: str = "") -> str:
    """Say that ``what`` is not known, since ``word`` is none of the choices. Where these are many
    and a command lists them (``lister``), only the nearest ones are named.

    >>> choose("model=tpae", "tpae", ["rope", "tape"])
    "model=tpae is not known. Did you mean 'tape'? Choose one of: rope, tape."
    """
    if lister and len(choices) > FEW:
        return f"{what}{did_you_mean(word, choices, most=3)} `{lister}` lists all."
    return f"{what}{did_you_mean(word, choices)} Choose one of: {', '.join(choices)}."


def did_you_mean(word: object, candidates: Iterable[str], most: int = 1) -> str:
    """Say that a word is not known, and which of the candidates are near, up to ``most``.

    >>> did_you_mean("tapee", ["rope", "tape", "tape_i2", "tape_i8"], most=3)
    " is not known. Did you mean 'tape', 'tape_i8' or 'tape_i2'?"
    """
    near = difflib.get_close_matches(str(word), list(candidates), n=most, cutoff=0.6)
    if not near:
        return " is not known."
    *others, last = [f"'{one}'" for one in near]
    named = f"{', '.join(others)} or {last}" if others else last
    return f" is not known. Did you mean {named}?"


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
