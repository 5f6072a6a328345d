"""Which records have the values that overrides ask for."""

from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from tape_exp.runs.identity import FOLDERS, NOT_COMPUTED, flat, section_of


def where(words: Iterable[str]) -> dict[str, Any]:
    """What overrides ask of a record: ``{"model": "rope", "task.optim.lr": 0.001}``; of a folder or
    a repository its last name, which is what records have.
    """
    pairs = (word.lstrip("+").partition("=")[::2] for word in words)
    asked = {k: v for key, text in pairs for k, v in flat(value_of(text), key).items()}
    named = {k: v for k, v in asked.items() if k.endswith(FOLDERS) and isinstance(v, str)}
    return asked | {key: Path(folder).name for key, folder in named.items()}


@cache
def value_of(text: str) -> Any:
    """The value of an override, as Hydra reads it; what it cannot read is text."""
    try:
        override = OverridesParser.create().parse_override(f"key={text}")
        return text if override.is_sweep_override() else override.value()
    except HydraException:
        return text


def fits(keys: Mapping[str, Any], asked: Mapping[str, Any]) -> bool:
    """Whether a record has the values asked for. Records hold no keys of where a run was, and hold
    what a key of the scale sets under the task's own keys.
    """
    for key, value in asked.items():
        elsewhere = section_of(key) in NOT_COMPUTED or key.startswith("scale.")
        if not (key in keys or elsewhere) or keys.get(key, value) != value:
            return False
    return True
