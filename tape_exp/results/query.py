"""Which records have the values that overrides ask for."""

import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tape_exp.runs.identity import FOLDERS, flat

# Keys that say where a run is and how it is made, not what it computes.
RUNTIME_KEYS = ("hydra", "trainer", "logger", "runs", "rerun", "cache")


def where(words: Iterable[str]) -> dict[str, Any]:
    """Parse overrides into what they ask of a record: keys and values; of a folder or a repository
    its last name, which is what records have.

    >>> where(["model=rope", "task.optim={lr: 1e-3}", "checkpoint=/home/ann/llama"])
    {'model': 'rope', 'task.optim.lr': 0.001, 'checkpoint': 'llama'}
    """
    asked: dict[str, Any] = {}
    for word in words:
        key, _, text = word.lstrip("+").partition("=")
        asked |= flat(parsed_value(text), key)
    for key, value in asked.items():
        if key.endswith(FOLDERS) and isinstance(value, str):
            asked[key] = Path(value).name
    return asked


@cache
def parsed_value(text: str) -> Any:
    """Parse the value of an override.

    >>> parsed_value("1e-3"), parsed_value("64"), parsed_value("null")  # YAML takes 1e-3 for a word
    (0.001, 64, None)
    """
    if text.startswith("{"):
        from hydra.core.override_parser.overrides_parser import OverridesParser

        return OverridesParser.create().parse_override(f"key={text}").value()
    is_float = re.fullmatch(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+", text)
    return float(text) if is_float else yaml.safe_load(text)


def fits(keys: Mapping[str, Any], asked: Mapping[str, Any]) -> bool:
    """Say whether a record, by its keys, has the values asked for. Records hold no keys of where a
    run was, and hold what a key of the scale sets under the task's own keys.

    >>> fits({"model": "rope", "seed": 1}, {"model": "rope", "trainer.devices": 2})
    True
    >>> fits({"model": "rope", "seed": 1}, {"model": "rope", "model.theta": 500})
    False
    """
    for key, value in asked.items():
        if key in keys:
            if keys[key] != value:
                return False
        elif not key.startswith((*RUNTIME_KEYS, "scale.")):
            return False
    return True
