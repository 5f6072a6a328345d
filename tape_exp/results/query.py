"""Which records have the values that overrides ask for."""

import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tape_exp.runs.identity import FOLDERS, flat

# Keys of where a run is and how it is made, not what it computes.
PLACES = ("hydra", "trainer", "logger", "runs", "rerun", "cache")


def where(words: Iterable[str]) -> dict[str, Any]:
    """What overrides ask of a record: ``{"model": "rope", "task.optim.lr": 0.001}``; of a folder or
    a repository its last name, which is what records have.
    """
    pairs = (word.lstrip("+").partition("=")[::2] for word in words)
    asked = {k: v for key, text in pairs for k, v in flat(number(text), key).items()}
    named = {k: v for k, v in asked.items() if k.endswith(FOLDERS) and isinstance(v, str)}
    return asked | {key: Path(folder).name for key, folder in named.items()}


@cache
def number(text: str) -> Any:
    """The value of an override; YAML 1.1 takes ``1e-3`` for a word."""
    if text.startswith("{"):
        from hydra.core.override_parser.overrides_parser import OverridesParser

        return OverridesParser.create().parse_override(f"key={text}").value()
    is_float = re.fullmatch(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+", text)
    return float(text) if is_float else yaml.safe_load(text)


def fits(keys: Mapping[str, Any], asked: Mapping[str, Any]) -> bool:
    """Whether a record has the values asked for. Records hold no keys of where a run was, and hold
    what a key of the scale sets under the task's own keys.
    """
    held = {k: v for k, v in asked.items() if k in keys or not k.startswith((*PLACES, "scale."))}
    return all(key in keys and keys[key] == value for key, value in held.items())
