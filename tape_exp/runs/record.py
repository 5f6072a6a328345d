"""The record that tables are made from, with its commit, versions, machine and time."""

import json
import os
import platform
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tape_exp.machine.files import parse_json
from tape_exp.runs.identity import identity_of, without_folders
from tape_exp.settings import plugins
from tape_exp.settings.commit import git_state
from tape_exp.settings.redaction import redact, redact_tree

if TYPE_CHECKING:
    from tape_exp.runs.directory import RunDirectory

PACKAGES = (
    "torch",
    "lightning",
    "hydra-core",
    "numpy",
    "wandb",
    "datasets",
    "transformers",
    "lm_eval",
    "triton",
    "flash-attn",
)


def manifest(hash_: str, config: Any) -> dict[str, Any]:
    """Who made this run: command, commit, versions, machine, time, and the packages of other
    authors whose classes the config constructs.
    """
    others = plugins.versions_of(config)
    return {
        "command": [Path(sys.argv[0]).name, *map(redact, sys.argv[1:])],
        "config_hash": hash_,
        **circumstances(),
        **({"plugins": others} if others else {}),
    }


def circumstances() -> dict[str, Any]:
    """What every record begins with: commit, versions, machine, time."""
    return {
        "git": git_state(),
        "packages": package_versions(),
        "hardware": hardware(),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def package_versions() -> dict[str, str]:
    """Versions of the packages that matter, those that are installed."""
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions


def hardware() -> dict[str, Any]:
    """Processor, cores, threads and GPUs; no host name."""
    import torch

    from tape_exp.machine.hardware import cpu_name

    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpus": gpus,
    }


def make_record(
    run: "RunDirectory", fingerprint: str, metrics: dict[str, float], **facts: Any
) -> dict[str, Any]:
    """The record of a finished run: all that tables and figures need, small enough to commit."""
    made = parse_json((run.path / "manifest.json").read_text())
    return {
        "run": run.name,
        "config_hash": run.hash,
        "config": without_folders(redact_tree(identity_of(run.cfg))),
        "seed": run.cfg.seed,
        **{key: made[key] for key in ("git", "packages", "hardware", "started")},
        **({"plugins": made["plugins"]} if "plugins" in made else {}),
        "data_fingerprint": fingerprint,
        **facts,
        "metrics": metrics,
        "artifacts": sorted(p.name for p in run.artifacts.iterdir() if p.name[0] != "."),
    }


def dump_record(record: dict[str, Any]) -> str:
    """JSON with one line for each row of a grid and for each curve, which reads and diffs well."""
    parts: list[str] = []

    def apart(text: str) -> str:
        parts.append(text)
        return f"@part {len(parts) - 1}@"

    def rows(grid: list[Any]) -> str:
        return apart("[\n  " + ",\n  ".join(map(json.dumps, grid)) + "\n ]")

    short = dict(record)
    if "heatmap" in short:
        short["heatmap"] = rows(short["heatmap"])
    if "matrices" in short:
        short["matrices"] = {name: rows(grid) for name, grid in short["matrices"].items()}
    if "curves" in short:
        short["curves"] = {
            name: apart(json.dumps(curve)) for name, curve in short["curves"].items()
        }
    text = json.dumps(short, indent=1, allow_nan=False)
    for number, part in enumerate(parts):
        text = text.replace(f'"@part {number}@"', part, 1)
    return text + "\n"
