"""The committed records: reading them, and leaving out what is none."""

import errno
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tape_exp.paper import identities
from tape_exp.runs import starting_weights
from tape_exp.runs.identity import hash_of, without_folders
from tape_exp.runs.record import Record, validate_record
from tape_exp.settings import folders
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.files import read_json


def read_records(folder: Path | None = None) -> list[Record]:
    """Every committed record; a file that is not one is named on stderr and left out.

    Raises:
        OSError: the folder is there and cannot be read: without records, tables would be removed.
    """
    folder = folder or folders.RECORDS
    if folder.is_symlink() and not folder.exists():
        raise FileNotFoundError(errno.ENOENT, "it is a link that leads nowhere", str(folder))
    names = folder.iterdir() if folder.exists() else ()
    return _read(sorted(path for path in names if path.suffix == ".json"))


def records_of_runs(folder: Path) -> list[Record]:
    """The records of the finished runs ``<folder>/<task>/<scale>/<variant>/<run>``."""
    return _read(sorted(folder.glob("[!.]*/*/*/*/record.json")))


def known_records() -> list[Record]:
    """Those of ``results/records`` and of the finished runs in ``runs/``, but not of ``debug=``."""
    runs = records_of_runs(Path("runs"))
    return each_once([*read_records(), *(run for run in runs if "debug" not in run["config"])])


def _read(paths: Iterable[Path]) -> list[Record]:
    records = []
    for path in paths:
        try:
            records.append(validate_record(read_json(path), path))
        except ConfigError as error:
            warn(f"{error} It is left out.")
    return records


def tell_where() -> None:
    """Say why nothing is recorded outside a clone."""
    if folders.INSTALLED and not folders.RECORDS.exists():
        warn(
            f"nothing is recorded in {folders.RECORDS}: outside a clone of the repository, which "
            "holds the committed records, tables show those of the working directory."
        )


def run_of(record: Record) -> tuple[str, int, str]:
    """What tells a record from others."""
    return record.get("run", ""), record["seed"], record["started"]


def each_once(records: Iterable[Record]) -> list[Record]:
    """The records without copies: a run's may be in several folders."""
    return list({run_of(record): record for record in records}.values())


def warn(sentence: str) -> None:
    """Say something on stderr."""
    print(f"warning: {sentence}", file=sys.stderr)


def read_or_leave_out(paths: Mapping[str, Path]) -> dict[str, list[Record]]:
    """The content of JSON files, by label; one that holds no object is named and left out."""
    found = {}
    for label, path in paths.items():
        try:
            content = read_json(path)
        except ConfigError as error:
            warn(f"{error} It is left out.")
            continue
        if isinstance(content, dict):
            found[label] = [content]
        else:
            warn(f"{path} is of type {type(content).__name__} and left out; restore or remove it.")
    return found


def matches(record: Record, current: dict[str, Any], folders: bool = False) -> bool:
    """Whether a record's config is the current one, the seed aside.

    A key that the record lacks, since the code has grown, must have the value that the YAMLs give
    it; one that only the record has makes another run. Sizes and positions that follow from a Llama
    do not count, since the checkpoint names it. A checkpoint that is a path must be the very one. A
    precision counts as the one that ``auto`` chose where the run took place.

    Args:
        folders: whether the data must be in the very folder, which only the hash of the run tells,
            and not in one with the same last name, which is all that a record has of it.
    """
    if any(
        record["config"].get(key, {}).get("name") != current[key]["name"]
        for key in ("model", "task")
    ):
        return False  # at once: of hundreds of records few are of the same task
    base = starting_weights.resolve(current["checkpoint"]) if "begun_from" in record else None
    if base is not None and starting_weights.title(base) != record["begun_from"]:
        return False
    held = record.get("begun_from_weights")
    if base is not None and held not in (None, starting_weights.fingerprint(base)):
        return False
    if folders and record.get("config_hash") != _hash_of(record, current):
        return False
    recorded, current = record["config"], without_folders(current)
    if "debug" in recorded or recorded.get("checkpoint") != current["checkpoint"]:
        return False
    if current["precision"] not in (recorded["precision"], record.get("precision")):
        return False
    if "llama" in record:
        recorded = starting_weights.without_llama_keys(recorded)
    keys = {"model", "task", "peft", "scale"} & recorded.keys()
    return all(_agree(recorded[key], current[key], current, (key,)) for key in keys)


def _hash_of(record: Record, current: dict[str, Any]) -> str:
    """The hash that the record's run would have if it were of the current config."""
    run = {"seed": record["seed"], "precision": record["config"]["precision"]}
    return hash_of(current | run, record.get("begun_from"))


def _agree(recorded: Any, here: Any, current: Mapping[str, Any], path: tuple[str, ...]) -> bool:
    """Whether a part of a record's config is ``here``, that part of the current one."""
    if not (isinstance(recorded, dict) and isinstance(here, dict)):
        return bool(recorded == here)
    if recorded.keys() - here.keys():
        return False
    return all(
        _agree(recorded[key], value, current, (*path, key))
        if key in recorded
        else value == _usual(current, (*path, key))
        for key, value in here.items()
    )


def _usual(current: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    """What the YAMLs of a config's choices have at a key; ... where they have none."""
    section, *keys = path
    words = [f"{section}={current[section]['name']}", f"scale={current['scale']}"]
    if section == "task" and (dataset := current["task"].get("dataset")):
        words[0] = words[0].removesuffix(f"_{dataset}")  # the one task that is named after it
    try:
        value: Any = identities.identity(tuple(words))[section]
    except ConfigError:
        return ...  # layers with encodings of their own, say, have no YAML
    for key in keys:
        value = value.get(key, ...) if isinstance(value, dict) else ...
    return value
