"""Packages of other authors that bring encodings, tasks and their YAMLs.

An installed package with an entry point in :data:`ENTRY_POINTS` is known to every command. Its
folder ``conf/`` is searched behind ours. One that is only importable is named on the command line
by Hydra's own ``hydra.searchpath=[pkg://my_pe.conf]``.
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

ENTRY_POINTS = ("tape_exp.positions", "tape_exp.tasks")


@cache
def packages() -> dict[str, Path]:
    """Return the packages that declare an entry point of ours or are searched, and their
    folders.
    """
    names = set()
    for group in ENTRY_POINTS:
        for entry in entry_points(group=group):
            names.add(entry.module.partition(".")[0])
    known = {}
    for name in sorted(names):
        folder = folder_of(name)
        if folder:
            known[name] = folder
    return known


def conf_folders() -> list[Path]:
    """List our folder of configs, then those of the packages."""
    return [folders.CONF, *(folder / "conf" for folder in packages().values())]


def names_in(group: str) -> list[str]:
    """List the choices of a group of configs, in order."""
    names: set[str] = set()
    for conf in conf_folders():
        names.update(path.stem for path in (conf / group).glob("[!.]*.yaml"))
    return sorted(names)


def yaml_of(group: str, name: str) -> Path | None:
    """Find the file of a choice, ours or a package's; None where there is none."""
    for conf in conf_folders():
        path = conf / group / f"{name}.yaml"
        if path.is_file():
            return path
    return None


def versions_of(config: Any) -> dict[str, dict[str, str | None]]:
    """Return the version of each package whose classes a config constructs, None where it is not
    installed, and ten digits of a hash of its Python files.
    """
    versions: dict[str, dict[str, str | None]] = {}
    names = {module.partition(".")[0] for module in modules_of(config)}
    for name in sorted(names - {"tape_exp"}):
        folder = folder_of(name)
        if folder is None:
            continue
        versions[name] = {"version": None, "sources": hash_of_folder(folder)}
        with suppress(PackageNotFoundError):
            versions[name]["version"] = version(packages_distributions().get(name, [name])[0])
    return versions


def hash_of_folder(folder: Path) -> str:
    """Hash the Python files in a folder, with their names, to ten digits."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("[!.]*.py")):  # an editor's lock is a link to nothing
        name = path.relative_to(folder).as_posix().encode()
        digest.update(name + b"\0" + path.read_bytes())
    return digest.hexdigest()[:10]


def modules_of(config: Any) -> list[str]:
    """List the modules whose classes a config constructs, in order.

    >>> modules_of({"model": {"_target_": "my_pe.ripple.Ripple"}})
    ['my_pe.ripple']
    """
    modules = re.findall(r'"_target_": "([\w.]+)\.\w+"', json.dumps(config))
    return sorted({*modules})


def sources_of(config: Any) -> dict[str, str]:
    """Return the modules whose classes a config constructs, with ten digits of a hash of their
    files: ``{"my_pe.ripple": "0123456789"}``.
    """
    sources = {}
    for module in modules_of(config):
        digits = source_hash(module)
        if digits:
            sources[module] = digits
    return sources


def changed_sources(sources: Mapping[str, str]) -> list[str]:
    """List the files of modules that differ from those of :func:`sources_of`; one that is not here
    any more tells nothing.
    """
    changed = []
    for module, digits in sources.items():
        if source_hash(module) not in (None, digits):
            changed.append(f"{module.rpartition('.')[2]}.py")
    return changed


def source_hash(module: str) -> str | None:
    """Hash a module's file, which is not imported, to ten digits; None where there is none."""
    try:
        spec = find_spec(module)
    except (ImportError, ValueError):
        return None
    if spec is None or spec.origin is None or not Path(spec.origin).is_file():
        return None
    return hashlib.sha256(Path(spec.origin).read_bytes()).hexdigest()[:10]


def folder_of(package: str) -> Path | None:
    """Find the folder of an importable package; None where there is none."""
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations)))
