"""The settings of a cluster, ``launch/cluster.yaml``: options of sbatch, and lines of ``setup``."""

from collections.abc import Mapping
from typing import Any

import yaml

from tape_exp.settings.errors import ConfigError
from tape_exp.settings.folders import HERE

CLUSTER = HERE / "launch" / "cluster.yaml"
UNSET = ("false", "null", "")  # values of an option that is left out


def cluster_settings() -> dict[str, Any]:
    """Read its options, ``{"cpus-per-task": "8"}``, and ``setup`` as a list of lines; empty without
    a file.

    Raises:
        ConfigError: it is no YAML, or no mapping.
    """
    text = CLUSTER.read_text(encoding="utf-8") if CLUSTER.exists() else ""
    try:
        chosen = yaml.load(text, yaml.BaseLoader) or {}  # as text: 24:00:00 is no number
    except yaml.YAMLError as error:
        raise ConfigError(f"{CLUSTER} is no YAML: {' '.join(str(error).split())}") from error
    if not isinstance(chosen, dict):
        example = CLUSTER.with_name("cluster.example.yaml")
        raise ConfigError(f"{CLUSTER} must hold <option>: <value>, as {example} does.")
    settings = {option.replace("_", "-"): value for option, value in chosen.items()}
    if isinstance(lines := settings.get("setup"), str):
        settings["setup"] = [lines]
    return settings


def flags(options: Mapping[str, str]) -> list[str]:
    """Write options as sbatch takes them: ``--time=600``, or ``--requeue`` of one that is ``true``;
    one that is ``false`` or has no value is left out.
    """
    set_ones = {option: value for option, value in options.items() if value not in UNSET}
    return [
        f"--{option}" if value == "true" else f"--{option}={value}"
        for option, value in set_ones.items()
    ]
