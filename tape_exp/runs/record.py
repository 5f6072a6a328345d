"""The record of a run, from which tables are made."""

import json
from typing import Any

from tape_exp.runs.directory import RunDirectory
from tape_exp.runs.identity import recorded_config, recorded_overrides

REQUIRED = {"run", "config", "seed", "metrics", "started", "git"}  # keys that tables read


def make_record(run: RunDirectory, **facts: Any) -> dict[str, Any]:
    """Make the record of a finished run: what tables and figures need, small enough to commit."""
    manifest = json.loads((run.path / "manifest.json").read_text(encoding="utf-8"))
    for key in ("command", "config_hash", "rerun"):
        manifest.pop(key, None)
    return {
        "run": run.name,
        "overrides": recorded_overrides(run.cfg.get("overrides") or ()),
        "config_hash": run.hash,
        "config": recorded_config(run.cfg),
        "seed": run.cfg.seed,
        **manifest,
        **facts,
        "artifacts": sorted(p.name for p in run.artifacts.iterdir() if p.name[0] != "."),
    }
