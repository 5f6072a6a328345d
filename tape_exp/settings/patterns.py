"""Patterns of layers: ``model=[rope,nope]``, and ``layers`` in a YAML of conf/model."""

import itertools
from collections.abc import Sequence
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from tape_exp.settings.errors import ConfigError, did_you_mean
from tape_exp.settings.files import inherited
from tape_exp.settings.plugins import names_in, yaml_of


def is_pattern(override: Any) -> bool:
    """Whether a parsed override is ``model=[…]``, which Hydra would take for YAMLs to be merged."""
    given = override.key_or_group == "model" and not override.is_sweep_override()
    return given and isinstance(override.value(), list) and bool(override.value())


def pattern(entries: Sequence[Any]) -> DictConfig:
    """The section ``model`` of a pattern that was given without a YAML."""
    layers = [_entry(one, f"model.layers.{i}") for i, one in enumerate(entries)]
    return OmegaConf.create({"name": name_of(layers), "layers": layers})


def refuse_unnamed(words: str) -> None:
    """Raise :class:`ConfigError` where models of a table are a list of layers without a name."""
    if "[" in words or "{" in words:
        raise ConfigError(
            f"model={words}: a table takes a pattern of layers by name; give its list as layers in "
            "a conf/model/<name>.yaml, as rnope_swa.yaml does, and name that."
        )


def write_out(model: Any) -> None:
    """Put the keys of every entry of ``model.layers`` in its place, so that a config says all that
    its run depends on; entries that are whole stay as they are.

    Raises:
        ConfigError: an entry is no encoding; the sentence has the nearest name.
    """
    if not isinstance(model, DictConfig) or model._is_none() or "layers" not in list(model):
        return
    given = model["layers"]
    entries: Any = OmegaConf.to_container(given) if OmegaConf.is_config(given) else given
    if not isinstance(entries, list) or not entries:
        shown = "null" if entries is None else entries
        raise ConfigError(f"model.layers={shown} must be a list, as in model=[rope,nope].")
    if all(isinstance(one, dict) and "_target_" in one for one in entries):
        return
    with open_dict(model):
        model["layers"] = [_entry(one, f"model.layers.{i}") for i, one in enumerate(entries)]


def name_of(layers: Sequence[dict[str, Any]]) -> str:
    """``rope×3+nope``: the names of equal neighbours once, with their number."""
    runs = [list(run) for _, run in itertools.groupby(layers)]
    return "+".join(
        str(run[0].get("name")) + (f"×{len(run)}" if len(run) > 1 else "") for run in runs
    )


def words_of_pattern(model: dict[str, Any]) -> list[Any]:
    """What stands between the brackets of ``model=[…]``: names, and entries whole where they are
    not as their YAML has them.
    """
    names = names_in("model")
    return [
        one["name"]
        if one.get("name") in names and one == _entry(one["name"], "model.layers")
        else one
        for one in model["layers"]
    ]


def _entry(one: Any, key: str) -> dict[str, Any]:
    """An entry with all its keys: a name, or a name and keys on top of those of its YAML."""
    given = {"name": one} if isinstance(one, str) else one
    if not isinstance(given, dict):
        raise ConfigError(
            f"{key}={one} must be an encoding, or one with keys, as in "
            "model=[{name:rope,window:8},nope]."
        )
    if "_target_" in given:
        return given
    names = names_in("model")
    if given.get("name") not in names:
        shown = given.get("name", "null")
        raise ConfigError(
            f"{key}={shown}{did_you_mean(shown, names)} Choose one of: {', '.join(names)}."
        )
    path = yaml_of("model", given["name"])
    assert path is not None
    yaml = inherited(path)
    whole: Any = OmegaConf.to_container(OmegaConf.merge(yaml, given))
    if "layers" in whole:
        raise ConfigError(
            f"{key}={given['name']} is itself a pattern of layers; write out its entries."
        )
    return whole
