"""The record that tables are made from: making it, checking it and writing it."""

import json
import os
import platform
import re
import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING, Any

from omegaconf import OmegaConf

from tape_exp.runs.identity import without_folders
from tape_exp.runs.starting_weights import apply_llama_config, fingerprint
from tape_exp.settings import plugins
from tape_exp.settings.compose import compose_config
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.folders import INSTALLED, ROOT
from tape_exp.settings.naming import choice_of, literal
from tape_exp.settings.redact import redact, redact_tree
from tape_exp.settings.schema import GROUPS

if TYPE_CHECKING:
    from tape_exp.runs.directory import RunDirectory

PACKAGES = "torch lightning hydra-core numpy wandb datasets transformers lm_eval flash-attn"
PARTS = {"run", "config", "seed", "metrics", "started", "git"}  # that tables read of every record
KEYS = ("seed", "model", "task", "peft", "debug", "checkpoint")
NAMED = ("model", "task", "scale")  # choices that a command names even where they are the default


def manifest(run: "RunDirectory", began: dict[str, Any] | None) -> dict[str, Any]:
    """Who makes a run: command, commit, versions, machine, time, the fingerprint of the weights
    that it begins from, the files of encoding and task, and the packages of other authors whose
    classes the config constructs. A resumed run keeps the time, commit, files and packages of
    ``began``, its manifest so far; ``later`` are the commits with which it was resumed.
    """
    made = {
        "command": [Path(sys.argv[0]).name, *map(redact, sys.argv[1:])],
        "config_hash": run.hash,
        **environment_info(),
        "plugins": plugins.versions_of(run.identity),
        "sources": plugins.sources_of([run.identity[key] for key in ("model", "task")]),
        "rerun": run.cfg.rerun,
        "begun_from_weights": run.start and fingerprint(run.start),
    }
    if began:
        first, git = began["git"], made["git"]
        later = dict.fromkeys([*first.get("later", ()), git["commit"]])
        later.pop(first["commit"], None)
        git = {"commit": first["commit"], "dirty": first["dirty"] or git["dirty"]}
        made["git"] = git | ({"later": [*later]} if later else {})
        made |= {key: began.get(key) for key in ("plugins", "sources", "rerun", "started")}
    return {key: value for key, value in made.items() if value}


def environment_info() -> dict[str, Any]:
    """What every record begins with: commit, versions, machine, time."""
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
    """The commit, and whether tracked files outside results/, or new ones of the code, differ.
    Outside a clone nothing is known: a repository around the working directory is another's.

    The answer is about this clone, whatever repository a hook or ``git rebase --exec`` has named in
    the environment, and the same under every user's config of git.
    """
    # The clone may be another user's, as in a container that mounts it: its code runs already.
    words = ["git", "--no-optional-locks", "-c", f"safe.directory={ROOT}", "status", "--branch"]
    words += ["--porcelain=v2", "--untracked-files=normal", "--", ".", ":!results"]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    lines: list[str] = []
    if not INSTALLED and which("git"):
        asked = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True)
        lines = asked.stdout.decode(errors="replace").splitlines()
    commit = next((line.split()[2] for line in lines if line.startswith("# branch.oid")), None)
    code = ("? tape_exp/", "? conf/", "1", "2", "u")
    return {"commit": commit, "dirty": commit and any(line.startswith(code) for line in lines)}


def make_record(run: "RunDirectory", **facts: Any) -> dict[str, Any]:
    """The record of a finished run: all that tables and figures need, small enough to commit."""
    made = json.loads((run.path / "manifest.json").read_text(encoding="utf-8"))
    config, words = without_folders(redact_tree(run.identity)), made["command"][1:]
    with suppress(ConfigError):  # of a package that only the command's search path names
        words = words_of(config, run.start)
    return {
        "run": run.name,
        "words": words,
        "config_hash": run.hash,
        "config": config,
        "seed": run.cfg.seed,
        **{key: made[key] for key in made if key not in ("command", "config_hash", "rerun")},
        **facts,
        "artifacts": sorted(p.name for p in run.artifacts.iterdir() if p.name[0] != "."),
    }


def words_of(config: dict[str, Any], start: Path | None = None) -> list[str]:
    """The overrides that compose to a recorded config, as far as this can tell: its choices, every
    key that differs from what they and the checkpoint ``start`` give, and its seed.
    """
    source = config["task"].get("text", config["task"]).get("source")
    wanted: dict[str, Any] = {key: config[key] for key in KEYS if key in config}
    if wanted.get("checkpoint") == config["task"].get("init_from"):
        wanted.pop("checkpoint", None)  # it follows from the task's key
    wanted["scale"] = {"name": config["scale"]} | ({} if source is None else {"text": source})
    wanted["trainer"] = {"precision": config["precision"]}
    plain, chosen = _composed(), []
    for group in (group for group in GROUPS if "name" in wanted.get(group, {})):
        choice = choice_of(group, wanted[group])
        if group in NAMED or choice != plain[group]["name"]:
            chosen.append(f"{group}={choice}")
    # The keys of the scale come first: other keys are computed from them.
    chosen += differences(_composed(*chosen)["scale"], wanted["scale"], "scale")
    chosen += differences(_composed(*chosen, start=start), wanted, "")
    chosen += [f"seed={wanted['seed']}"] if wanted["seed"] == plain["seed"] else []
    # A name such as scrolls_qasper is computed from other keys.
    return [word for word in chosen if not re.match(r"\w+\.name=", word)]


@cache
def _composed(*overrides: str, start: Path | None = None) -> dict[str, Any]:
    cfg = compose_config(overrides)
    content: Any = apply_llama_config(cfg, start) if start else cfg
    return without_folders(OmegaConf.to_container(content, resolve=True))


def differences(composed: Any, wanted: Any, key: str) -> list[str]:
    """The words that turn a node, ``composed`` at ``key``, into what is ``wanted``; keys that it
    lacks get a plus.
    """
    if not (isinstance(composed, dict) and isinstance(wanted, dict) and composed):
        return [] if composed == wanted else [f"{key}={literal(wanted)}"]
    words = []
    for name, value in wanted.items():
        dotted = f"{key}.{name}".lstrip(".")
        if name in composed:
            words += differences(composed[name], value, dotted)
        else:
            words.append(f"+{dotted}={literal(value)}")
    return words
