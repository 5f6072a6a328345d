"""What is refused in a composed config before anything is built or written.

The keys of the open sections (``model``, ``task``, ``peft``) are checked where their objects are
built: :mod:`tape_exp.settings.construct`.
"""

import re
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from omegaconf import DictConfig, OmegaConf

from tape_exp.settings.choices import keys_of
from tape_exp.settings.construct import validate
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.plugins import yaml_of
from tape_exp.settings.schema import CONFIG_GROUPS, Config, LoggerConfig

# A name of these characters can be that of a folder.
FOLDER_NAME = re.compile(r"[A-Za-z0-9_][\w.+×-]{0,99}")


def check_presence(cfg: DictConfig) -> None:
    """Refuse a config from which ``~key`` has removed what every run needs."""
    for key in keys_of(asdict(Config())):
        if not _is_present(cfg, key):
            raise ConfigError(f"every run needs {key}: leave ~{key} out, or set it.")


def _is_present(cfg: DictConfig, key: str) -> bool:
    """Say whether a config has a key, and where it is a group's, a choice of it."""
    parent, _, last = key.rpartition(".")
    section = OmegaConf.select(cfg, parent) if parent else cfg
    return last in section and (key not in CONFIG_GROUPS or section[last] is not None)


def check_paths(cfg: DictConfig, values: Mapping[str, Any]) -> None:
    """Refuse an override of the ``.path`` of local files for a text that comes from elsewhere."""
    for key in values:
        if not key.endswith(".path"):
            continue
        source = key.removesuffix("path") + "source"
        if OmegaConf.select(cfg, source, default="local") != "local":
            raise ConfigError(f"{key} is not read: add scale.text=local for local files.")


def check_yamls(cfg: DictConfig, values: Mapping[str, Any]) -> None:
    """Refuse a chosen YAML that is empty, or does not say its name."""
    for group in CONFIG_GROUPS:
        choice = str(values.get(group))
        path = yaml_of(group, choice)
        if path is not None and not cfg[group].get("name"):
            lacks = "has no name" if cfg[group] else "is empty"
            raise ConfigError(
                f"{path} {lacks}: write name: {choice}, and what the others in its folder have."
            )


def check_own_name(cfg: DictConfig, values: Mapping[str, Any]) -> None:
    """Refuse a copied YAML of a model that still has the name of the one that it was."""
    name = str(cfg.model.get("name"))
    file = str(values.get("model", name))
    if file != name and "model.name" not in values:
        raise ConfigError(f"{file}.yaml holds name: {name}; write name: {file}.")


def check_names(cfg: DictConfig) -> None:
    """Refuse a name of a choice that could not be a folder's."""
    for group in CONFIG_GROUPS:
        section = cfg.get(group) or {}
        name = section.get("name")
        if name is None or not FOLDER_NAME.fullmatch(str(name)):
            raise ConfigError(
                f"{group}.name={name} must be of letters, digits and _ . + -, as in "
                f"{group}.name=mine_2."
            )


def check_sections(cfg: DictConfig) -> None:
    """Refuse a wrong key or type in the fixed sections."""
    opened: dict[str, Any] = {"model": None, "task": None, "scale": None, "peft": None}
    if "_target_" in cfg.logger:
        opened["logger"] = asdict(LoggerConfig())
    values = {key: opened[key] if key in opened else cfg[key] for key in cfg}
    validate(Config, OmegaConf.to_container(OmegaConf.create(values), resolve=True), "")
