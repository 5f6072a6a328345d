"""The config of a command line: Hydra's composition, completed and checked.

Every config is made in three steps:

1. :func:`rewrite_for_hydra` writes what the user typed as Hydra reads it,
2. Hydra composes the chosen YAMLs and sets the values,
3. :func:`complete` checks the result, expands a pattern of layers, and notes the overrides.

:func:`compose_config` does all three: it is what the library, the tables, the sweeps and the tests
call. Only ``tape-exp train`` cannot: ``hydra.main`` does the second step there, since it also has
``-m``, ``--cfg`` and the launchers, and the command does the first before it and the third after
it. That both compose the same is tested.
"""

import copy
import re
from collections.abc import Mapping, Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf, open_dict

from tape_exp.settings.checks import (
    check_names,
    check_own_name,
    check_paths,
    check_presence,
    check_sections,
    check_yamls,
)
from tape_exp.settings.choices import OPTIONAL_KEYS, add_packages, compose_choices
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.explain import USER_ERRORS, explain
from tape_exp.settings.layers import UNNAMED, expand_layers
from tape_exp.settings.plugins import names_in


def compose_config(overrides: Sequence[str]) -> DictConfig:
    """Compose the config that ``tape-exp train <overrides>`` runs.

    Raises:
        ConfigError: an override is wrong; the sentence says which, and what would be right.
    """
    if not all(isinstance(override, str) for override in overrides):
        raise ConfigError("give each key=value as an argument of its own, and no list of them.")
    rewritten = rewrite_for_hydra(overrides)
    try:
        cfg = compose_with_hydra(rewritten)
        complete(cfg, rewritten)
    except USER_ERRORS as error:
        raise ConfigError(explain(error, rewritten)) from error
    return cfg


def rewrite_for_hydra(overrides: Sequence[str]) -> list[str]:
    """Write overrides as Hydra reads them. It would merge the two YAMLs of ``model=[rope,nope]``
    into one, and takes a key that the task's YAML may leave out only with ``++``.

    >>> rewrite_for_hydra(["model=[rope,nope]", "--task.optim.eps=1e-6", "seed=1"])
    ['model=layers', 'model.layers=[rope,nope]', '++task.optim.eps=1e-6', 'seed=1']

    Packages that ``hydra.searchpath=`` names are known from now on.
    """
    rewritten: list[str] = []
    for override in overrides:
        # Options of Hydra's own keep their dashes.
        bare = re.sub(r"^--(?!(?:cfg|package|info)=)(?=[\w.]+=)", "", override)
        key, _, value = bare.partition("=")
        if key == "hydra.searchpath":
            add_packages(value)
        if key == "model" and re.fullmatch(r"\[.*\]", value):
            rewritten += [f"model={UNNAMED}", f"model.layers={value}"]
        elif key in OPTIONAL_KEYS:
            rewritten.append(f"++{bare}")
        else:
            rewritten.append(bare)
    return rewritten


def compose_with_hydra(overrides: Sequence[str]) -> DictConfig:
    """Compose a config as ``hydra.main`` does. What Hydra makes of the choices is kept, and the
    values are set on a copy.
    """
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    if any(override.is_delete() for override in parsed):
        # A key may be set and deleted in either order, which only Hydra keeps.
        return copy.deepcopy(compose_choices(tuple(overrides)))
    choices = [str(override.input_line) for override in parsed if not sets_value(override)]
    cfg = copy.deepcopy(compose_choices(tuple(choices)))
    for override in parsed:
        if sets_value(override):
            adds = override.is_add() or override.is_force_add()
            OmegaConf.update(cfg, override.key_or_group, override.value(), force_add=adds)
    return cfg


def sets_value(override: Override) -> bool:
    """Say whether an override sets or adds a value of ours, and chooses no YAML."""
    key = override.key_or_group
    if override.is_sweep_override() or key.startswith("hydra"):
        return False
    return not names_in(key.partition("@")[0])


def complete(cfg: DictConfig, overrides: Sequence[str]) -> None:
    """Check a config that Hydra has composed of these overrides, expand its pattern of layers, and
    note the overrides in it.

    Raises:
        ConfigError: which key is wrong, and what would be right.
    """
    values = values_by_key(overrides)
    check_presence(cfg)
    check_yamls(cfg, values)
    check_paths(cfg, values)
    check_own_name(cfg, values)
    expand_layers(cfg)
    check_names(cfg)
    check_sections(cfg)
    note_overrides(cfg, overrides, values)


def values_by_key(overrides: Sequence[str]) -> dict[str, Any]:
    """Return the value that overrides give to each key, the last of several.

    >>> values_by_key(["model='rope'", "seed=1", "++task.optim.lr=1e-3", "~task.clip", "seed=2"])
    {'model': 'rope', 'seed': 2, 'task.optim.lr': 0.001}
    """
    values = {}
    for override in OverridesParser.create().parse_overrides(list(overrides)):
        if not override.is_delete():
            values[override.get_key_element().lstrip("+")] = override.value()
    return values


def note_overrides(cfg: DictConfig, overrides: Sequence[str], values: Mapping[str, Any]) -> None:
    """Add to a config its ``overrides``, for the run's record, and where it begins from a
    checkpoint the ``explicit_keys``, which the checkpoint does not decide.
    """
    with open_dict(cfg):
        # A dollar in what the user typed is no interpolation of ours.
        cfg.overrides = [override.replace("${", r"\${") for override in overrides]
        keys = explicit_keys(cfg, values)
        if cfg.checkpoint is not None and keys:
            cfg.explicit_keys = keys


def explicit_keys(cfg: DictConfig, values: Mapping[str, Any]) -> list[str]:
    """List the keys of the model, the architecture and the tokenizer that overrides set: themselves
    or, of ``task.arch``, by the key of the scale from which they are read.
    """
    sections = ("model.", "task.arch.", "task.tokenizer.")
    keys = {key for key in values if key.startswith(sections)}
    task: Any = OmegaConf.to_container(cfg.task, resolve=False)
    for key, value in task.get("arch", {}).items():
        source = str(value).strip("${}")  # scale.layers of ${scale.layers}
        if source in values:
            keys.add(f"task.arch.{key}")
    return sorted(keys)
