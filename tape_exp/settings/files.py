"""YAML and JSON files that others may have written or damaged."""

import json
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from tape_exp.settings.errors import ConfigError
from tape_exp.settings.folders import CONF


def read_yaml(path: Path, advice: str) -> Any:
    """What a YAML file holds, which can also be written again.

    Raises:
        ConfigError: it cannot be read, or has aliases; the sentence names the file and ends with
            ``advice``.
    """
    try:
        refuse_aliases(path.read_text())
        content = OmegaConf.load(path)
        OmegaConf.to_yaml(content)
    except RecursionError as error:
        raise ConfigError(f"{path} cannot be read (it nests without end); {advice}.") from error
    except (OSError, ValueError, yaml.YAMLError, OmegaConfBaseException) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{path} cannot be read ({reason}); {advice}.") from error
    return content


def refuse_aliases(text: str) -> None:
    """Refuse a YAML with aliases: ten lines of them can stand for more than a memory holds.

    Raises:
        ValueError: the text has one.
        YAMLError: it is no YAML.
    """
    for event in yaml.parse(text, yaml.SafeLoader) if "*" in text else ():
        if isinstance(event, yaml.AliasEvent):
            assert event.start_mark is not None
            line = event.start_mark.line + 1
            raise ValueError(f"line {line} has the alias *{event.anchor}; write its value out")


def read_json(path: Path) -> Any:
    """The content of a JSON file. Raises :class:`ConfigError` where it cannot be read."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise ConfigError(f"{path} cannot be read ({reason}); restore or remove it.") from error


def _beside(path: Path, name: str) -> Path:
    """The YAML of the same group, in the same folder or in ours."""
    own = path.with_name(f"{name}.yaml")
    return own if own.is_file() else CONF / path.parent.name / own.name


def inherited(path: Path) -> Any:
    """A YAML on top of those of its folder that its ``defaults`` name."""
    node: Any = OmegaConf.load(path)
    names = [name for name in node.pop("defaults", []) if isinstance(name, str) and "/" not in name]
    below = (_beside(path, name) for name in names if name != "_self_")
    return OmegaConf.merge(*(inherited(other) for other in below), node)
