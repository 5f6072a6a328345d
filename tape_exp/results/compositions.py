"""What overrides compose to, kept in ``cache/`` of the clone: tables ask for hundreds of configs,
and Hydra takes 0.1 s for one.
"""

import json
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from tape_exp.machine.files import read_jsonl, short_hash
from tape_exp.runs.identity import recorded_config
from tape_exp.settings import folders, plugins
from tape_exp.settings.compose import compose_config


def composed(overrides: Sequence[str]) -> dict[str, Any]:
    """Compose overrides into the config that a record of their run has, or read it where the same
    configs and code have composed it before.

    Raises:
        ConfigError: the overrides are wrong; nothing is kept of them.
    """
    elsewhere = any(word.startswith("hydra.") for word in overrides)  # configs of another folder
    kept = None if elsewhere else kept_in()
    known = _read(kept)
    key = "\n".join(overrides)
    if key not in known:
        known[key] = recorded_config(compose_config(overrides))
        if kept is not None:
            with suppress(OSError):  # a full disk, or a clone of somebody else
                _append(kept, {"overrides": key, "config": known[key]})
    return known[key]


def kept_in() -> Path | None:
    """Find the file of today's configs and code; None outside a clone, where nothing is kept."""
    if not folders.INSIDE:
        return None
    version = _version(tuple(plugins.conf_folders()))
    return folders.HERE / "cache" / "compositions" / f"{version}.jsonl"


@cache
def _version(conf_folders: tuple[Path, ...]) -> str:
    """Hash the names, times and sizes of all that a composition depends on."""
    files = [*(folders.PACKAGE / "settings").glob("*.py"), *(folders.PACKAGE / "runs").glob("*.py")]
    for folder in conf_folders:
        files += folder.rglob("*.yaml")
    parts = []
    for file in sorted(files):
        about = file.stat()
        parts.append(f"{file} {about.st_mtime_ns} {about.st_size}\n")
    return short_hash(parts)


@cache
def _read(path: Path | None) -> dict[str, dict[str, Any]]:
    known: dict[str, dict[str, Any]] = {}
    if path is not None and path.exists():
        for _, line in read_jsonl(path):
            if line is not None:
                known[line["overrides"]] = line["config"]
    return known


def _append(path: Path, line: dict[str, Any]) -> None:
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        for older in path.parent.glob("*.jsonl"):
            older.unlink(missing_ok=True)
    with path.open("ab", buffering=0) as file:  # one write: other processes append too
        file.write(json.dumps(line).encode() + b"\n")
