"""The record that tables are made from: making it, checking it and writing it."""

import json
import os
import platform
import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING, Any

from tape_exp.runs.identity import recorded_config, recorded_overrides
from tape_exp.runs.starting_weights import fingerprint
from tape_exp.settings import plugins
from tape_exp.settings.folders import INSTALLED, ROOT
from tape_exp.settings.redact import redact

if TYPE_CHECKING:
    from tape_exp.runs.directory import RunDirectory

PACKAGES = "torch lightning hydra-core numpy wandb datasets transformers lm_eval flash-attn"
PARTS = {"run", "config", "seed", "metrics", "started", "git"}  # that tables read of every record


def manifest(run: "RunDirectory", earlier: dict[str, Any] | None) -> dict[str, Any]:
    """Say what makes a run: command, commit, versions, machine, time, the fingerprint of the
    weights that it begins from, the files of encoding and task, and the packages of other authors
    whose classes the config constructs. A resumed run keeps the time, commit, files and packages of
    its ``earlier`` manifest; ``later`` are the commits with which it was resumed.
    """
    now = {
        "command": [Path(sys.argv[0]).name, *map(redact, sys.argv[1:])],
        "config_hash": run.hash,
        **environment_info(),
        "plugins": plugins.versions_of(run.identity),
        "sources": plugins.sources_of([run.identity[key] for key in ("model", "task")]),
        "rerun": run.cfg.rerun,
        "begun_from_weights": run.start and fingerprint(run.start),
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


def git_state() -> dict[str, Any]:
    """Return the commit, and whether tracked files outside results/, or new ones of the code,
    differ. Outside a clone nothing is known: a repository around the working directory is
    another's.

    The answer is about this clone, whatever repository a hook or ``git rebase --exec`` has named in
    the environment, and the same under every user's config of git.
    """
    # The clone may be another user's, as in a container that mounts it: its code runs already.
    words = ["git", "--no-optional-locks", "-c", f"safe.directory={ROOT}", "status", "--branch"]
    words += ["--porcelain=v2", "--untracked-files=normal", "--", ".", ":!results"]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    lines: list[str] = []
    if not INSTALLED and which("git"):
        status = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True)
        lines = status.stdout.decode(errors="replace").splitlines()
    commit = next((line.split()[2] for line in lines if line.startswith("# branch.oid")), None)
    code = ("? tape_exp/", "? conf/", "1", "2", "u")
    return {"commit": commit, "dirty": commit and any(line.startswith(code) for line in lines)}


def make_record(run: "RunDirectory", **facts: Any) -> dict[str, Any]:
    """Make the record of a finished run: what tables and figures need, small enough to commit."""
    made = json.loads((run.path / "manifest.json").read_text(encoding="utf-8"))
    for key in ("command", "config_hash", "rerun"):
        made.pop(key, None)
    return {
        "run": run.name,
        "overrides": recorded_overrides(run.cfg.get("overrides") or ()),
        "config_hash": run.hash,
        "config": recorded_config(run.cfg),
        "seed": run.cfg.seed,
        **made,
        **facts,
        "artifacts": sorted(p.name for p in run.artifacts.iterdir() if p.name[0] != "."),
    }
