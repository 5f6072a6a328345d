"""Patterns of layers: a model whose layers differ.

``model=[rope,nope]``, or ``layers`` in a YAML of conf/model, is a list of encodings that is
repeated over the layers.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from tape_exp.settings.choices import compose_choices
from tape_exp.settings.errors import CHOICES, ConfigError, one_of
from tape_exp.settings.plugins import names_in

UNNAMED = "layers"  # conf/model/layers.yaml, whose runs are named after their entries


def expand_layers(cfg: DictConfig) -> None:
    """Replace each entry of ``model.layers`` by all its keys, and name the model after them."""
    model = cfg.get("model")
    if not isinstance(model, DictConfig) or "layers" not in model:
        return
    entries = []
    for number, entry in enumerate(model.layers or ()):
        entries.append(complete_entry(entry, f"model.layers.{number}"))
    if not entries:
        raise ConfigError("model.layers must be a list of encodings, as in model=[rope,nope].")
    with open_dict(model):
        model.layers = entries
        if model.name == UNNAMED:
            model.name = pattern_name(entries)


def complete_entry(entry: Any, key: str) -> dict[str, Any]:
    """Return the entry at a key with all its keys.

    It is a name, or a name and keys on top of those of its YAML. An entry with a ``_target_`` is
    complete.
    """
    section: Any = OmegaConf.create({"name": entry} if isinstance(entry, str) else entry)
    if "_target_" not in section:
        name = section.get("name")
        one_of(key, name, names_in("model"), CHOICES)
        of_yaml: Any = OmegaConf.to_container(compose_choices((f"model={name}",)).model)
        section = OmegaConf.merge(of_yaml, section)
        if "layers" in section:
            raise ConfigError(f"{key}={name} is itself a pattern; write out its entries.")
    complete: Any = OmegaConf.to_container(section)
    return complete


def pattern_name(entries: Sequence[Mapping[str, Any]]) -> str:
    """Name a pattern of layers by its entries, equal neighbours once, with their number.

    >>> pattern_name([{"name": "rope"}, {"name": "rope"}, {"name": "nope"}])
    'rope×2+nope'
    """
    names = []
    for entry, equal in itertools.groupby(entries):
        count = len([*equal])
        name = str(entry.get("name"))
        names.append(f"{name}×{count}" if count > 1 else name)
    return "+".join(names)
