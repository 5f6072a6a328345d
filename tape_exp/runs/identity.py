"""Which run a config stands for: the part of it that decides what is computed."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from tape_exp.settings.redact import redact, redact_tree

FOLDERS = ("path", "checkpoint", "init_from")  # last parts of keys that may name one
# Keys of where a run is and what reports it, and with those of how it is made.
PLACES = ("hydra", "logger", "runs", "rerun", "cache")
NOT_COMPUTED = (*PLACES, "trainer")


def variant(config: Mapping[Any, Any]) -> str:
    """The model and how it was adapted: ``tape``, ``rope-lora``."""
    model = str(config["model"]["name"])
    peft = str(config["peft"]["name"])
    return model if peft == "none" else f"{model}-{peft}"


def identity_of(cfg: DictConfig) -> dict[str, Any]:
    """The part of a config that decides what is computed, not where it runs and reports."""
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
    """The identity as a record has it, which says nothing of the machine and has no secret."""
    return without_folders(redact_tree(identity_of(cfg)))


def without_folders(node: Any) -> Any:
    """A config for a record: each path is cut to its last name, to say nothing of the machine;
    ``{"path": "/data/pile"}`` becomes ``{"path": "pile"}``.
    """
    if not isinstance(node, dict):
        return node
    paths = [key for key in FOLDERS if isinstance(node.get(key), str)]
    inner = {key: without_folders(value) for key, value in node.items()}
    return inner | {key: Path(node[key]).name for key in paths}


def section_of(word: str) -> str:
    """The first part of a key or an override: ``trainer`` of ``++trainer.devices=2``."""
    return re.split(r"[=.@/]", word.lstrip("+~"), maxsplit=1)[0]


def flat(node: Any, path: str = "") -> dict[str, Any]:
    """A nested mapping as one of dotted keys: ``{"a": {"b": 1}}`` as ``{"a.b": 1}``."""
    if not isinstance(node, dict) or not node:
        return {path: node}
    values: dict[str, Any] = {}
    for key, value in node.items():
        values |= flat(value, f"{path}.{key}" if path else str(key))
    return values


def recorded_overrides(overrides: Iterable[str]) -> list[str]:
    """What the user typed, as a record has it: without words of where the run is and reports, and
    of a folder its last name.

    ``["model=tape", "runs=/scratch/ann", "task.text.path=/data/pile"]`` becomes ``["model=tape",
    "task.text.path=pile"]``.
    """
    recorded = []
    for word in overrides:
        key, equals, value = word.partition("=")
        bare = key.lstrip("+~")
        if section_of(bare) in PLACES:
            continue
        if bare.endswith(FOLDERS):
            value = value.rstrip("/'\"").rpartition("/")[2]
        recorded.append(redact(f"{key}{equals}{value}"))
    return recorded
