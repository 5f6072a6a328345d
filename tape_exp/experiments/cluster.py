"""The settings of a cluster, ``launch/cluster.yaml``: options of sbatch, and lines of ``setup``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from tape_exp.settings.errors import ConfigError
from tape_exp.settings.folders import HERE

CLUSTER = HERE / "launch" / "cluster.yaml"
UNSET = ("false", "null", "")  # values of an option that is left out


@dataclass
class JobSettings:
    """What every job gets.

    Attributes:
        options: of sbatch, as ``{"cpus-per-task": "8"}``.
        setup: lines of bash that a job begins with.
    """

    options: dict[str, str] = field(default_factory=dict)
    setup: list[str] = field(default_factory=list)


def cluster_settings() -> JobSettings:
    """Read the settings of the cluster; empty ones without a file.

    Raises:
        ConfigError: it is no YAML, or no mapping.
    """
    text = CLUSTER.read_text(encoding="utf-8") if CLUSTER.exists() else ""
    try:
        content: Any = yaml.load(text, yaml.BaseLoader) or {}  # as text: 24:00:00 is no number
    except yaml.YAMLError as error:
        raise ConfigError(f"{CLUSTER} is no YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        example = CLUSTER.with_name("cluster.example.yaml")
        raise ConfigError(f"{CLUSTER} must hold <option>: <value>, as {example} does.")
    setup = content.pop("setup", [])
    options = {option.replace("_", "-"): value for option, value in content.items()}
    return JobSettings(options, [setup] if isinstance(setup, str) else setup)


def chosen_settings(arguments: Sequence[str]) -> JobSettings:
    """Collect what the user has chosen: the settings of the cluster, and on top of them
    ``slurm.<option>=<value>`` and ``slurm.setup=<line>`` among the arguments of a command.
    """
    settings = cluster_settings()
    for argument in arguments:
        if not argument.startswith("slurm."):
            continue
        option, _, value = argument.removeprefix("slurm.").partition("=")
        if option == "setup":
            settings.setup = [value]
        else:
            settings.options[option.replace("_", "-")] = value
    return settings


def flags(options: Mapping[str, str]) -> list[str]:
    """Write options as sbatch takes them; one that is ``false`` or has no value is left out.

    >>> flags({"time": "600", "requeue": "true", "exclusive": "false"})
    ['--time=600', '--requeue']
    """
    written = []
    for option, value in options.items():
        if value == "true":
            written.append(f"--{option}")
        elif value not in UNSET:
            written.append(f"--{option}={value}")
    return written
