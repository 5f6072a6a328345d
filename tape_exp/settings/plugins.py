"""Packages of other authors that bring encodings, tasks and their YAMLs.

An installed package with an entry point in :data:`GROUPS` is known to every command. Its folder
``conf/`` is searched behind ours. One that is only importable is named on the command line by
Hydra's own ``hydra.searchpath=[pkg://my_pe.conf]``.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, entry_points, packages_distributions, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tape_exp.settings import folders

GROUPS = ("tape_exp.positions", "tape_exp.tasks")


@cache
def packages() -> dict[str, Path]:
    """The packages that declare an entry point of ours or are searched, and their folders."""
    entries = [entry for group in GROUPS for entry in entry_points(group=group)]
    names = {entry.module.partition(".")[0] for entry in entries}
    return {name: folder for name in sorted(names) if (folder := folder_of(name))}


def conf_folders() -> list[Path]:
    """Our folder of configs, then those of the packages."""
    return [folders.CONF, *(folder / "conf" for folder in packages().values())]


def names_in(group: str) -> list[str]:
    """The choices of a group of configs, in order."""
    return sorted({p.stem for conf in conf_folders() for p in (conf / group).glob("[!.]*.yaml")})


def yaml_of(group: str, name: str) -> Path | None:
    """The file of a choice, ours or a package's; None where there is none."""
    paths = (conf / group / f"{name}.yaml" for conf in conf_folders())
    return next((path for path in paths if path.is_file()), None)


def versions_of(config: Any) -> dict[str, dict[str, str | None]]:
    """The version of each package whose classes a config constructs, None where it is not
    installed, and ten digits of a hash of its Python files.
    """
    versions: dict[str, dict[str, str | None]] = {}
    for name in sorted({*re.findall(r'"_target_": "(\w+)\.', json.dumps(config))} - {"tape_exp"}):
        if folder := folder_of(name):
            digest = hashlib.sha256()
            for path in sorted(folder.rglob("[!.]*.py")):  # an editor's lock is a link to nothing
                place = path.relative_to(folder).as_posix().encode()
                digest.update(place + b"\0" + path.read_bytes())
            versions[name] = {"version": None, "sources": digest.hexdigest()[:10]}
            with suppress(PackageNotFoundError):
                versions[name]["version"] = version(packages_distributions().get(name, [name])[0])
    return versions


def sources_of(config: Any) -> dict[str, str]:
    """The modules whose classes a config constructs, ``{"my_pe.ripple": "0123456789"}``, with ten
    digits of a hash of their files.
    """
    modules = re.findall(r'"_target_": "([\w.]+)\.\w+"', json.dumps(config))
    hashes = {module: source_hash(module) for module in sorted({*modules})}
    return {module: digits for module, digits in hashes.items() if digits}


def changed_sources(sources: Mapping[str, str]) -> list[str]:
    """The files of modules that differ from those of :func:`sources_of`; one that is not here any
    more tells nothing.
    """
    now = {module: source_hash(module) for module in sources}
    changed = [module for module, digits in now.items() if digits not in (None, sources[module])]
    return [f"{module.rpartition('.')[2]}.py" for module in changed]


def source_hash(module: str) -> str | None:
    """Ten digits of a hash of a module's file, which is not imported; None where there is none."""
    try:
        spec = find_spec(module)
    except (ImportError, ValueError):
        return None
    path = Path(spec.origin) if spec and spec.origin else None
    return hashlib.sha256(path.read_bytes()).hexdigest()[:10] if path and path.is_file() else None


def folder_of(package: str) -> Path | None:
    """Where an importable package is."""
    spec = find_spec(package)
    places = list(spec.submodule_search_locations or []) if spec else []
    return Path(places[0]) if places else None
