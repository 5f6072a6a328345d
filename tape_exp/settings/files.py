"""YAML and JSON files; one that cannot be read is an error that names it."""

import json
from pathlib import Path
from typing import Any

from tape_exp.settings.errors import ConfigError


def read_yaml(path: Path, advice: str) -> Any:
    """What a YAML file holds. Raises :class:`ConfigError`, which ends with ``advice``."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    try:
        return OmegaConf.load(path)
    except (OSError, ValueError, YAMLError, OmegaConfBaseException) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{path} cannot be read ({reason}); {advice}.") from error


def read_json(path: Path) -> Any:
    """The content of a JSON file. Raises :class:`ConfigError` where it cannot be read."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{path} cannot be read ({reason}); restore or remove it.") from error
