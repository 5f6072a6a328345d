"""YAML and JSON files; one that cannot be read is an error that names it."""

import json
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from tape_exp.settings.errors import ConfigError


def read(path: Path, advice: str = "restore or remove it") -> Any:
    """Read a YAML or JSON file. Raises :class:`ConfigError`, which ends with ``advice``."""
    try:
        if path.suffix != ".json":
            return OmegaConf.load(path)
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, YAMLError, OmegaConfBaseException) as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise ConfigError(f"{path} cannot be read ({reason}); {advice}.") from error
