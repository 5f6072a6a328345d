"""Packages of other authors that bring encodings and tasks: which are known, and their YAMLs.

A package is known where the user installed one with an entry point in :data:`GROUPS`, or names it
in ``plugins=[my_pe]``. Its folder ``conf/`` then lies behind ours, and a config may construct its
classes (:func:`~tape_exp.settings.targets.locate`). Nothing of it is imported before that.
"""

import functools
import hashlib
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, entry_points, packages_distributions, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from tape_exp.settings import folders
from tape_exp.settings.errors import ConfigError

GROUPS = {"tape_exp.positions": "model", "tape_exp.tasks": "task"}  # and what each brings
RESERVED = "tape_exp"
HINT = " What a package brings that is not installed needs plugins=[<package>]."


class Plugin(NamedTuple):
    """A package that is known: its name in an import, and its folder."""

    package: str
    folder: Path

    @property
    def conf(self) -> Path:
        """Its configs: ``conf/model/<name>.yaml``, ``conf/task/<name>.yaml``."""
        return self.folder / "conf"


_named: dict[str, Plugin] = {}  # by plugins=[…], for the rest of this process


def known() -> list[Plugin]:
    """Every package that is known now, in the order of their names.

    Raises:
        ConfigError: one of them cannot be found, or brings a YAML that is here already.
    """
    found = {**installed(), **_named}
    return [found[name] for name in sorted(found)]


@functools.cache
def installed() -> dict[str, Plugin]:
    """The packages whose installation declares an entry point of ours; broken ones are left out,
    with a warning.
    """
    packages = {}
    for group in GROUPS:
        for entry in entry_points(group=group):
            package = entry.value.partition(":")[0].partition(".")[0]
            packages[package] = f"the entry point {entry.name} in {group}"
    found: dict[str, Plugin] = {}
    for package, by in sorted(packages.items()):
        try:
            found = _checked([*found.values(), _found(package, by)])
        except ConfigError as error:  # one broken package must not stop what does without it
            print(f"warning: {error} It is left out.", file=sys.stderr)
    return found


def use(words: Sequence[str]) -> None:
    """Let the packages be known that ``plugins=[…]`` names among the words of a command.

    Raises:
        ConfigError: what it names is no package with configs.
    """
    for word in words:
        if names_packages(word):
            use_packages(_names_in(word))


def names_packages(word: str) -> bool:
    """Whether a word of a command is ``plugins=[…]``."""
    return word.lstrip("+").startswith("plugins=")


def naming(packages: Iterable[str]) -> list[str]:
    """The word ``plugins=[…]`` that those packages need which are not installed, if any."""
    missing = sorted({*packages} - {*installed()})
    return [f"plugins=[{','.join(missing)}]"] if missing else []


def use_packages(names: Iterable[str]) -> None:
    """Let packages be known from here on in this process."""
    new = [_found(name, f"plugins=[{name}]") for name in names if name not in _named]
    if new:
        _checked([*known(), *new])
        _named.update({plugin.package: plugin for plugin in new})


def conf_folders() -> list[Path]:
    """Ours, and those of the packages that are known."""
    return [folders.CONF, *(plugin.conf for plugin in known())]


def names_in(group: str) -> list[str]:
    """The names of the YAMLs of a group of configs, in order."""
    return sorted(
        path.stem for conf in conf_folders() for path in (conf / group).glob("[!.]*.yaml")
    )


def yaml_of(group: str, name: str) -> Path | None:
    """The file of a choice, ours or a package's; None where there is none."""
    if not re.fullmatch(r"[\w.-]+", name):
        return None
    paths = [conf / group / f"{name}.yaml" for conf in conf_folders()]
    return next((path for path in paths if path.is_file()), None)


def package_of(target: str) -> Plugin | None:
    """The known package one of whose YAMLs names a ``_target_``; other classes stay unknown."""
    first = target.partition(".")[0]
    plugin = next((plugin for plugin in known() if plugin.package == first), None)
    return plugin if plugin and target in _declared(plugin.conf) else None


@functools.cache
def _declared(conf: Path) -> frozenset[str]:
    """Every ``_target_`` of a package's YAMLs."""
    texts = (path.read_text() for path in sorted(conf.rglob("[!.]*.yaml")))
    return frozenset(t for text in texts for t in re.findall(r"_target_:\s*[\"']?([\w.]+)", text))


def versions_of(config: Any) -> dict[str, dict[str, str | None]]:
    """Of each package whose classes a config constructs: its version, None where it is not
    installed, and ten digits of a hash of its Python files.
    """
    used = {plugin.package: plugin for plugin in map(package_of, _targets(config)) if plugin}
    return {
        package: {"version": _version(package), "sources": _hash(plugin.folder)}
        for package, plugin in sorted(used.items())
    }


def changed(made_with: Any, config: Any) -> str:
    """A sentence where the packages of a run have other sources now; empty where they have not.

    Args:
        made_with: what :func:`versions_of` said when the run began.
    """
    now = versions_of(config) if made_with else {}
    others = [
        package
        for package, found in (made_with or {}).items()
        if package in now and now[package]["sources"] != found["sources"]
    ]
    return f"The code of {' and '.join(others)} has changed since this run." if others else ""


def continued(
    began: Mapping[str, Mapping[str, Any]], now: Mapping[str, dict[str, Any]]
) -> dict[str, Any]:
    """The packages of a run that goes on: as they were when it began, with the sources that they
    have had ``later``, if these are others.
    """
    found = {}
    for package, here in now.items():
        before = began.get(package, here)
        later = [*before.get("later", ())]
        if here["sources"] not in (before["sources"], *later):
            later.append(here["sources"])
        found[package] = dict(before) | ({"later": later} if later else {})
    return found


def _targets(node: Any) -> list[str]:
    if isinstance(node, dict):
        own = [node["_target_"]] if isinstance(node.get("_target_"), str) else []
        return own + [target for value in node.values() for target in _targets(value)]
    return [target for value in node for target in _targets(value)] if type(node) is list else []


def _version(package: str) -> str | None:
    try:
        return version(packages_distributions().get(package, [package])[0])
    except PackageNotFoundError:
        return None


def _hash(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("[!.]*.py")):  # an editor's lock is a link to nothing
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:10]


def _names_in(word: str) -> list[str]:
    """The packages of ``plugins=[a,b]``."""
    match = re.fullmatch(r"\+?plugins=\[([\w., '\"-]*)\]", word)
    names = [name.strip(" '\"") for name in (match[1].split(",") if match else [])]
    if not match or not all(re.fullmatch(r"[A-Za-z_]\w*", name) for name in names if names != [""]):
        raise ConfigError(f"{word} must be a list of packages, as in plugins=[my_pe].")
    return [name for name in names if name]


def _found(package: str, by: str) -> Plugin:
    if package == RESERVED:
        raise ConfigError(f"{by} names {RESERVED} itself; a plugin is a package of its own.")
    try:
        spec = find_spec(package)
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        raise ConfigError(
            f"{by}: there is no package {package} here; install it, as pip install -e "
            "<its folder> does, or put the folder that it is in into PYTHONPATH."
        )
    places = list(spec.submodule_search_locations or [])
    folder = Path(places[0]) if places else None
    if folder is None or not any(folder.glob("conf/*/*.yaml")):
        raise ConfigError(
            f"{by}: the package {package} has no configs; it needs a conf/model/<name>.yaml or "
            "conf/task/<name>.yaml beside its Python files."
        )
    for path in sorted(folder.glob("conf/**/*.yaml")):
        name = re.search(r"^name: *[\"']?([^\s\"'#]+)", _text_of(path, by), re.MULTILINE)
        if path.parent == folder / "conf" / "model" and (not name or name[1] != path.stem):
            has = f"the name {name[1]}" if name else "no name of its own"
            raise ConfigError(f"{by}: {path} has {has}; write name: {path.stem}.")
    return Plugin(package, folder)


def _text_of(path: Path, by: str) -> str:
    """The text of a YAML without aliases."""
    from yaml import YAMLError  # here, since a command's help imports this module

    from tape_exp.settings.files import refuse_aliases

    try:
        text = path.read_text()
        with suppress(YAMLError):  # Hydra says what is wrong with it
            refuse_aliases(text)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{by}: {path} cannot be read ({error}); mend or remove it.") from error
    return text


def _checked(plugins: Iterable[Plugin]) -> dict[str, Plugin]:
    """The plugins by name, none of which has a YAML that another has: one would hide the other."""
    found = {plugin.package: plugin for plugin in plugins}
    owners: dict[Path, str] = {}
    places = [(RESERVED, folders.CONF), *((p.package, p.conf) for p in found.values())]
    for package, conf in places:
        for path in conf.rglob("[!.]*.yaml"):
            name = path.relative_to(conf)
            if owners.setdefault(name, package) != package:
                raise ConfigError(
                    f"{package} and {owners[name]} both have a conf/{name.as_posix()}; rename that "
                    f"of {package}, or uninstall it."
                )
    return found
