"""Which run a config stands for: the part of it that decides what is computed."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf

from tape_exp.settings.naming import literal
from tape_exp.settings.redact import redact_tree

FOLDERS = ("path", "checkpoint", "init_from")  # last parts of keys that may name one
# Keys of where a run is and what reports it, and with those of how it is made.
PLACES = ("hydra", "logger", "runs", "rerun", "cache")
NOT_COMPUTED = (*PLACES, "trainer")


def variant(config: Mapping[Any, Any]) -> str:
    """Name the model and how it was adapted: ``tape``, ``rope-lora``."""
    model = str(config["model"]["name"])
    peft = str(config["peft"]["name"])
    return model if peft == "none" else f"{model}-{peft}"


def identity_of(cfg: DictConfig) -> dict[str, Any]:
    """Return the part of a config that decides what is computed, not where it runs and reports."""
    sections: Any = OmegaConf.to_container(cfg, resolve=True)
    sections["task"].pop("trust", None)  # whether a folder's code may run, not what it computes
    identity = {
        "model": sections["model"],
        "task": sections["task"],
        "peft": sections["peft"],
        "seed": cfg.seed,
        "scale": cfg.scale.name,
        "precision": cfg.trainer.precision,
        "checkpoint": cfg.checkpoint,
    }
    debug = {key: v for key, v in sections["debug"].items() if v not in (None, False, "none")}
    if debug:
        identity["debug"] = debug
    return identity


def recorded_config(cfg: DictConfig) -> dict[str, Any]:
    """Return the identity as a record has it, without secrets and paths of the machine."""
    return without_folders(redact_tree(identity_of(cfg)))


def without_folders(node: Any, key: str = "") -> Any:
    """Cut each path in a config, or in the value of a key, to its last name, so that a record does
    not name folders of the machine.

    >>> without_folders({"text": {"path": "/data/pile", "name": "github"}})
    {'text': {'path': 'pile', 'name': 'github'}}
    """
    if isinstance(node, dict):
        return {name: without_folders(value, str(name)) for name, value in node.items()}
    if isinstance(node, list):
        return [without_folders(value, key) for value in node]
    if key in FOLDERS and isinstance(node, str):
        return Path(node).name
    return node


def section_of(word: str) -> str:
    """Return the first part of a key or an override.

    >>> section_of("++trainer.devices=2")
    'trainer'
    """
    return re.split(r"[=.@/]", word.lstrip("+~"), maxsplit=1)[0]


def flat(node: Any, path: str = "") -> dict[str, Any]:
    """Flatten a nested mapping to one of dotted keys.

    >>> flat({"a": {"b": 1, "c": {}}})
    {'a.b': 1, 'a.c': {}}
    """
    if not isinstance(node, dict) or not node:
        return {path: node}
    values: dict[str, Any] = {}
    for key, value in node.items():
        values |= flat(value, f"{path}.{key}" if path else str(key))
    return values


def recorded_overrides(overrides: Iterable[str]) -> list[str]:
    """Return what the user typed, as a record has it: without words of where the run is and
    reports, and of a folder its last name.

    >>> recorded_overrides(["model=tape", "runs=/scratch/ann", "task.text.path='/data/the pile'"])
    ['model=tape', "task.text.path='the pile'"]
    """
    recorded = []
    for word in overrides:
        key, _, _ = word.partition("=")
        bare = key.lstrip("+~")
        if section_of(bare) in PLACES:
            continue
        value = OverridesParser.create().parse_override(word).value()
        kept = redact_tree(without_folders(value, bare.rpartition(".")[2]))
        recorded.append(word if kept == value else f"{key}={literal(kept)}")
    return recorded
