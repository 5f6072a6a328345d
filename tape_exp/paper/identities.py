"""The identities of artifacts' runs, kept from one command to the next: composing takes seconds."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tape_exp.machine.files import parse_json, write_atomically
from tape_exp.runs.identity import identity_of
from tape_exp.settings import folders, plugins
from tape_exp.settings.compose import compose_config

_kept: dict[str, dict[str, Any]] | None = None


@cache
def identity(words: tuple[str, ...]) -> dict[str, Any]:
    """The identity of the run of a command line; it is shared, and composed once."""
    key = json.dumps(words)
    if _kept is None or "${" in key:  # which may read the environment
        return identity_of(compose_config(words))
    if key not in _kept:
        _kept[key] = identity_of(compose_config(words))
    return _kept[key]


@contextmanager
def kept_on_disk(folder: Path | None = None) -> Iterator[None]:
    """Read the identities that an earlier command left in ``cache/identities.json``, and leave
    those of this one; they are made anew whenever a config or the code that composes has changed.
    """
    global _kept
    path = (folder or folders.ROOT / "cache") / "identities.json"
    state, before = _state(), {}
    with suppress(OSError, ValueError, KeyError, TypeError):
        content = parse_json(path.read_text())
        before = dict(content["identities"]) if content["state"] == state else {}
    _kept = dict(before)
    identity.cache_clear()
    try:
        yield
    finally:
        found, _kept = _kept, None
        identity.cache_clear()
        if found != before:
            with suppress(OSError):  # it only saves time
                path.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(path, json.dumps({"state": state, "identities": found}) + "\n")


def _state() -> str:
    """A hash of all configs, of the code that makes identities of them, and of its libraries."""
    digest = hashlib.sha256()
    code = [folders.PACKAGE / "runs", folders.PACKAGE / "settings"]
    sources = [*(p for place in code for p in place.glob("*.py")), Path(__file__)]
    configs = [p for place in plugins.conf_folders() for p in place.rglob("[!.]*.yaml")]
    for path in sorted([*sources, *configs]):
        digest.update(f"{path}\0".encode() + path.read_bytes())
    digest.update(f"{version('hydra-core')} {version('omegaconf')}".encode())
    return digest.hexdigest()
