"""The manifest of a run: its command, commit, versions, machine and time."""

import os
import platform
import sys
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tape_exp.runs.checkpoint_info import fingerprint
from tape_exp.runs.git import git_state
from tape_exp.settings import plugins
from tape_exp.settings.redact import redact

PACKAGES = "torch lightning hydra-core numpy wandb datasets transformers lm_eval flash-attn"


def manifest(
    config_hash: str,
    identity: Mapping[str, Any],
    rerun: bool,
    start: Path | None,
    earlier: dict[str, Any] | None,
) -> dict[str, Any]:
    """Say what makes a run: command, commit, versions, machine, time, the fingerprint of the
    weights that it begins from, the files of encoding and task, and the packages of other authors
    whose classes the config constructs. A resumed run keeps the time, commit, files and packages of
    its ``earlier`` manifest; ``later`` are the commits with which it was resumed.
    """
    now = {
        "command": [Path(sys.argv[0]).name, *map(redact, sys.argv[1:])],
        "config_hash": config_hash,
        **environment_info(),
        "plugins": plugins.versions_of(identity),
        "sources": plugins.sources_of([identity[key] for key in ("model", "task")]),
        "rerun": rerun,
        "begun_from_weights": start and fingerprint(start),
    }
    if earlier:
        now["git"] = git_of_resumed(earlier["git"], now["git"])
        for key in ("plugins", "sources", "rerun", "started"):
            now[key] = earlier.get(key)
    return {key: value for key, value in now.items() if value}


def git_of_resumed(first: dict[str, Any], git: dict[str, Any]) -> dict[str, Any]:
    """Join the state with which a run began and that with which it is resumed.

    >>> git_of_resumed({"commit": "a", "dirty": False}, {"commit": "b", "dirty": True})
    {'commit': 'a', 'dirty': True, 'later': ['b']}
    """
    joined = {"commit": first["commit"], "dirty": first["dirty"] or git["dirty"]}
    later = dict.fromkeys([*first.get("later", ()), git["commit"]])
    later.pop(first["commit"], None)
    if later:
        joined["later"] = [*later]
    return joined


def environment_info() -> dict[str, Any]:
    """Return what every record begins with: commit, versions, machine, time."""
    import torch

    from tape_exp.machine.hardware import cpu_name

    packages = {"python": platform.python_version()}
    for package in PACKAGES.split():
        with suppress(PackageNotFoundError):
            packages[package] = version(package)
    hardware = {
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
    }
    started = datetime.now(UTC).isoformat(timespec="seconds")
    return {"git": git_state(), "packages": packages, "hardware": hardware, "started": started}
