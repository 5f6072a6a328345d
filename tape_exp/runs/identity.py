"""Which run a config stands for: the part of it that decides what is computed, and its hash."""

import hashlib
import json
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from tape_exp.runs.starting_weights import title


def identity_of(cfg: DictConfig) -> dict[str, Any]:
    """The part of a config that decides what is computed, not where it runs and reports."""
    sections: Any = OmegaConf.to_container(cfg, resolve=True)
    model, task, peft, debug = (sections[key] for key in ("model", "task", "peft", "debug"))
    task.pop("trust", None)  # whether a folder's code may run, not what it computes
    debug = {key: v for key, v in debug.items() if v not in (None, False, "none")}
    identity = {"model": model, "task": task, "peft": peft, "seed": cfg.seed}
    identity |= {"scale": cfg.scale.name, "precision": cfg.trainer.precision}
    return identity | {"checkpoint": cfg.checkpoint} | ({"debug": debug} if debug else {})


def config_hash(cfg: DictConfig, start: Path | None = None) -> str:
    """Ten hexadecimal digits of :func:`identity_of`; the checkpoint that the run begins from counts
    as run and step.
    """
    hashed = identity_of(cfg)
    hashed.pop("checkpoint")
    hashed |= {"checkpoint": title(start)} if start else {}
    return hashlib.sha256(json.dumps(hashed, sort_keys=True).encode()).hexdigest()[:10]


def without_folders(node: Any) -> Any:
    """A config for a record: each path is cut to its last name, to say nothing of the machine."""
    if not isinstance(node, dict):
        return node
    paths = [key for key in ("path", "checkpoint", "init_from") if isinstance(node.get(key), str)]
    inner = {key: without_folders(value) for key, value in node.items()}
    return inner | {key: Path(node[key]).name for key in paths}


def flat(node: Any, path: str = "") -> dict[str, Any]:
    """A nested mapping as one of dotted keys."""
    if not isinstance(node, dict) or not node:
        return {path: node}
    inner = {f"{path}.{key}" if path else str(key): part for key, part in node.items()}
    return {k: v for key, part in inner.items() for k, v in flat(part, key).items()}
