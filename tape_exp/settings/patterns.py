"""Patterns of layers: ``model=[rope,nope]``, and ``layers`` in a YAML of conf/model."""

import itertools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from tape_exp.settings import folders
from tape_exp.settings.errors import ConfigError, one_of
from tape_exp.settings.plugins import names_in, yaml_of

UNNAMED = "layers"  # conf/model/layers.yaml, whose runs are named after their entries


def spell_out(words: Sequence[str]) -> list[str]:
    """``model=[rope,nope]`` as Hydra reads it: ``model=layers`` and ``model.layers=[rope,nope]``.

    Hydra itself would merge the two YAMLs into one.
    """
    spelled: list[str] = []
    for word in words:
        layers = re.fullmatch(r"model=(\[.*\])", word)
        spelled += [f"model={UNNAMED}", f"model.layers={layers[1]}"] if layers else [word]
    return spelled


def expand_layers(cfg: DictConfig) -> None:
    """Give every entry of ``model.layers`` all of its keys, in place; nothing to do without any.

    Raises:
        ConfigError: an entry is no encoding.
    """
    if not isinstance(model := cfg.get("model"), DictConfig) or "layers" not in model:
        return
    entries = [_entry(one, f"model.layers.{i}") for i, one in enumerate(model.layers or ())]
    if not entries:
        raise ConfigError("model.layers must be a list of encodings, as in model=[rope,nope].")
    with open_dict(model):
        model.layers = entries
        if model.name == UNNAMED:
            model.name = name_of(entries)


def name_of(layers: Sequence[dict[str, Any]]) -> str:
    """``rope×3+nope``: the names of equal neighbours once, with their number."""
    runs = [list(run) for _, run in itertools.groupby(layers)]
    return "+".join(
        str(run[0].get("name")) + (f"×{len(run)}" if len(run) > 1 else "") for run in runs
    )


def entry_words(model: dict[str, Any]) -> list[Any]:
    """The entries of a pattern as ``model=[…]`` has them: a name where it has its YAML's keys."""
    names = names_in("model")
    return [
        one["name"]
        if one.get("name") in names and one == _entry(one["name"], "model.layers")
        else one
        for one in model["layers"]
    ]


def _entry(one: Any, key: str) -> dict[str, Any]:
    """An entry with all its keys: a name, or a name and keys on top of those of its YAML."""
    keys: Any = (
        {"name": one} if isinstance(one, str) else OmegaConf.to_container(OmegaConf.create(one))
    )
    if "_target_" in keys:
        return keys
    one_of(key, keys.get("name"), names_in("model"))
    path = yaml_of("model", keys["name"])
    assert path is not None
    entry: Any = OmegaConf.to_container(OmegaConf.merge(inherited(path), keys))
    if "layers" in entry:
        raise ConfigError(f"{key}={keys['name']} is itself a pattern; write out its entries.")
    return entry


def inherited(path: Path) -> Any:
    """A YAML on top of those of its group that its ``defaults`` name."""
    node: Any = OmegaConf.load(path)
    names = [name for name in node.pop("defaults", []) if name != "_self_"]
    own = (path.with_name(f"{name}.yaml") for name in names)
    ours = (folders.CONF / path.parent.name / f"{name}.yaml" for name in names)
    below = [p if p.is_file() else q for p, q in zip(own, ours, strict=True)]
    return OmegaConf.merge(*map(inherited, below), node)
