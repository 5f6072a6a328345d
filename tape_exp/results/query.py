"""Which records have the values that overrides ask for."""

from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from tape_exp.runs.identity import FOLDERS, NOT_COMPUTED, flat, section_of


def where(words: Iterable[str]) -> dict[str, Any]:
    """Parse overrides into what they ask of a record: keys and values; of a folder or a repository
    its last name, and of ``text@task.text`` the text's name, which is what records have. Nothing
    is asked by the deletion of a key, nor by the choice of another YAML for a part of the task,
    whose name no record has.

    >>> where(["model=rope", "task.optim={lr: 1e-3}", "checkpoint=/home/ann/llama"])
    {'model': 'rope', 'task.optim.lr': 0.001, 'checkpoint': 'llama'}
    >>> where(["~task.optim.clip", "text@task.text=pg19", "optim@task.optim=linear"])
    {'task.text.name': 'pg19'}
    """
    asked: dict[str, Any] = {}
    for word in words:
        if word.startswith("~"):
            continue
        key, _, text = word.lstrip("+").partition("=")
        group, at, place = key.partition("@")
        if not at:
            asked |= flat(parsed_value(text), key)
        elif group == "text":
            asked[f"{place}.name"] = text
    for key, value in asked.items():
        if key.endswith(FOLDERS) and isinstance(value, str):
            asked[key] = Path(value).name
    return asked


@cache
def parsed_value(text: str) -> Any:
    """Parse the value of an override, as Hydra reads it; what it cannot read is text.

    >>> parsed_value("1e-3"), parsed_value("64"), parsed_value("null")
    (0.001, 64, None)
    """
    try:
        override = OverridesParser.create().parse_override(f"key={text}")
        return text if override.is_sweep_override() else override.value()
    except HydraException:
        return text


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
        elif section_of(key) not in (*NOT_COMPUTED, "scale"):
            return False
    return True
