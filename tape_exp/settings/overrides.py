"""Values and choices in the words of Hydra's command line."""

import json
import re
from typing import Any

from tape_exp.settings.folders import CONF

_WORDS = ("null", "true", "false", "nan", "inf")


def literal(value: Any) -> str:
    """A value in the grammar of Hydra's overrides."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{literal(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(literal, value)) + "]"
    if isinstance(value, str) and not re.fullmatch(r"[A-Za-z_/][\w./-]*", value):
        quoted = re.sub(r"(\\*)'", r"\1\1\\'", value)  # a backslash is itself, but before a quote
        return "'" + re.sub(r"(\\+)$", r"\1\1", quoted) + "'"
    return value if isinstance(value, str) and value.lower() not in _WORDS else json.dumps(value)


def choice_of(group: str, name: str) -> str:
    """The YAML that a name belongs to: the longest whose name begins it, ``scrolls`` for the task
    ``scrolls_qasper``.
    """
    known = [path.stem for path in (CONF / group).glob("*.yaml")]
    return max(
        (stem for stem in known if name == stem or name.startswith(f"{stem}_")),
        key=len,
        default=name,
    )


def differences(given: Any, wanted: Any, key: str) -> list[str]:
    """The overrides that turn the node ``given`` at ``key`` into ``wanted``: ``a.b=1``,
    ``+a.new=2``, ``~a.old``.
    """
    if isinstance(given, dict) and isinstance(wanted, dict) and given:
        inner = f"{key}." if key else ""
        words = [f"~{inner}{name}" for name in given if name not in wanted]
        for name, value in wanted.items():
            words += (
                differences(given[name], value, inner + name)
                if name in given
                else [f"+{inner}{name}={literal(value)}"]
            )
        return words
    return [] if given == wanted else [f"{key}={literal(wanted)}"]
