"""The record that tables are made from: making it, writing it, and telling whether one is whole."""

import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NotRequired, Required
from uuid import uuid4

from annotated_types import Ge, MinLen
from typing_extensions import TypedDict  # which pydantic needs below Python 3.12

from tape_exp.runs.identity import identity_of, without_folders
from tape_exp.settings import plugins
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.folders import INSTALLED, ROOT
from tape_exp.settings.redact import redact, redact_tree

if TYPE_CHECKING:
    from tape_exp.runs.directory import RunDirectory

PACKAGES = "torch lightning hydra-core numpy wandb datasets transformers lm_eval triton flash-attn"

STRICT = {"strict": True, "allow_inf_nan": False}
Record = dict[str, Any]  # as :class:`RecordSchema` describes it


class Named(TypedDict):
    """A section of a config: what it is called."""

    name: str


class Config(TypedDict):
    """What is read of a record's config."""

    precision: str
    scale: str
    model: Named
    task: Named
    peft: NotRequired[Named]


class Git(TypedDict):
    """The state of the code: its commit, and whether it had changes; the commits of resumptions."""

    commit: str | None
    dirty: bool | None
    later: NotRequired[list[str | None]]


class RecordSchema(TypedDict, total=False):
    """What tables, figures and the report read of a record; it may hold more."""

    __pydantic_config__ = STRICT  # type: ignore[misc]
    config: Required[Config]
    seed: Required[Annotated[int, Ge(0)]]
    metrics: Required[Annotated[dict[str, float], MinLen(1)]]
    started: Required[str]
    git: Required[Git]
    run: str
    config_hash: str
    data_fingerprint: str
    parameters: int
    steps: int
    tokens: float
    seconds: dict[str, float]
    packages: dict[str, str]
    curves: dict[str, dict[str, list[float]]]
    heatmap: list[list[float | None]]
    matrices: dict[str, list[list[float]]]
    samples: list[dict[str, Any]]
    artifacts: list[str]


@cache
def _schema() -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(RecordSchema)


def validate_record(record: Any, path: Path) -> Record:
    """The record. Raises :class:`ConfigError` where it lacks what is read of it, or is damaged."""
    from pydantic import ValidationError

    try:
        _schema().validate_python(record)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise ConfigError(
            f"{path} is not a record ({place}: {first['msg']}); restore or remove it."
        ) from error
    return record


def manifest(config_hash: str, config: Any, begins_from: str | None) -> dict[str, Any]:
    """Who makes a run: command, commit, versions, machine, time, the fingerprint of the weights
    that it begins from, and the packages of other authors whose classes the config constructs.
    """
    others = plugins.versions_of(config)
    return {
        "command": [Path(sys.argv[0]).name, *map(redact, sys.argv[1:])],
        "config_hash": config_hash,
        **environment_info(),
        **({"plugins": others} if others else {}),
        **({"begun_from_weights": begins_from} if begins_from else {}),
    }


def continue_manifest(began: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """The manifest of a resumed run: as of ``now``, with the time, commit and packages with which
    it began, and the commits with which it was resumed as ``later``.
    """
    first, git = began["git"], now["git"]
    later = dict.fromkeys([*first.get("later", ()), git["commit"]])
    later.pop(first["commit"], None)
    git = {"commit": first["commit"], "dirty": first["dirty"] or git["dirty"]}
    git |= {"later": [*later]} if later else {}
    packages = {"plugins": began["plugins"]} if "plugins" in began else {}
    return {**now, **packages, "git": git, "started": began["started"]}


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

    Outside a clone nothing is known: a repository around the working directory is another
    project's.
    """
    if INSTALLED:
        return {"commit": None, "dirty": None}
    # The clone may be another user's, as in a container that mounts it: its code runs already.
    words = ["git", "-c", f"safe.directory={ROOT.resolve()}", "status", "--porcelain=v2"]
    words += ["--branch", "--", ".", ":!results"]
    try:
        text = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return {"commit": None, "dirty": None}
    lines = text.splitlines()
    commit = next(line.split()[2] for line in lines if line.startswith("# branch.oid"))
    code = ("? tape_exp/", "? conf/", "? launch/", "1", "2", "u")
    return {"commit": commit, "dirty": any(line.startswith(code) for line in lines)}


def make_record(
    run: "RunDirectory", fingerprint: str, metrics: dict[str, float], **facts: Any
) -> Record:
    """The record of a finished run: all that tables and figures need, small enough to commit."""
    made = json.loads((run.path / "manifest.json").read_text())
    copied = ("git", "packages", "hardware", "started", "plugins", "begun_from_weights")
    return {
        "run": run.name,
        "config_hash": run.hash,
        "config": without_folders(redact_tree(identity_of(run.cfg))),
        "seed": run.cfg.seed,
        **{key: made[key] for key in copied if key in made},
        "data_fingerprint": fingerprint,
        **facts,
        "metrics": metrics,
        "artifacts": sorted(p.name for p in run.artifacts.iterdir() if p.name[0] != "."),
    }


def dump_record(record: Record) -> str:
    """JSON with one line for each row of a grid and for each curve, which reads and diffs well."""
    lines: dict[str, str] = {}

    def line(part: Any) -> str:
        mark = uuid4().hex  # which no text of a record has
        lines[f'"{mark}"'] = json.dumps(part, allow_nan=False)
        return mark

    short = dict(record)
    if "heatmap" in record:
        short["heatmap"] = [line(row) for row in record["heatmap"]]
    if "matrices" in record:
        grids = record["matrices"].items()
        short["matrices"] = {name: [line(row) for row in grid] for name, grid in grids}
    if "curves" in record:
        short["curves"] = {name: line(curve) for name, curve in record["curves"].items()}
    text = json.dumps(short, indent=1, allow_nan=False)
    for mark, part in lines.items():
        text = text.replace(mark, part, 1)
    return text + "\n"
