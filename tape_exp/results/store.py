"""The committed records, a line a run: reading, selecting and adding them.

``results/records/<file>.jsonl`` holds the runs of the tasks of a module, such as ``pretrain``, with
6 significant digits, and ``<file>.npz`` the matrices of those that have some.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from tape_exp.machine.files import open_atomically, parsed, read_jsonl, write_atomically
from tape_exp.results.experiment import rounded
from tape_exp.results.record import Record
from tape_exp.runs.identity import flat
from tape_exp.runs.record import PARTS
from tape_exp.settings import folders, plugins
from tape_exp.settings.errors import warn


def read_records(folder: Path | None = None) -> list[Record]:
    """Every record of ``results/records`` and of those of packages, or of another folder, by time;
    a line that is none is named and left out.
    """
    own = [package / "results" / "records" for package in plugins.packages().values()]
    records = []
    parts = [folder] if folder else [folders.RECORDS, *own]
    for path in [path for part in parts for path in sorted(part.glob("*.jsonl"))]:
        stored = path.with_suffix(".npz")
        matrices = np.load(stored) if stored.exists() else {}
        for number, value in read_jsonl(path):
            if record := checked(value, f"{path}, line {number},"):
                names = [key for key in matrices if key.startswith(f"{record['run']}/")]
                if names:
                    record["matrices"] = {key.split("/")[1]: matrices[key] for key in names}
                records.append(record)
    return sorted(records, key=lambda record: record["started"])


def records_of_runs(folder: Path) -> list[Record]:
    """The records of the finished runs ``<folder>/<task>/<scale>/<variant>/<run>``, of those in a
    folder on the way there, or of a run's own, but not of ``debug=``.
    """
    depths = ["[!.]*/" * depth + "record.json" for depth in range(5)]
    paths = sorted(path for depth in depths for path in folder.glob(depth))
    records = [
        record for path in paths if (record := checked(parsed(path.read_text("utf-8")), str(path)))
    ]
    return [record for record in records if "debug" not in record["config"]]


def known_records() -> list[Record]:
    """Those of ``results/records`` and of the finished runs in ``runs/``."""
    return merged(records_of_runs(Path("runs")), read_records())


def merged(*sources: Iterable[Record]) -> list[Record]:
    """The records of several places by time, each run once: as it was made last, since it may have
    been made anew in one of them, and of equal ones as the last of the places has it.
    """
    every = sorted((one for records in sources for one in records), key=lambda one: one["started"])
    return list({record["run"]: record for record in every}.values())


def checked(value: Any, where: str) -> Record | None:
    """A value as a record; None, after a warning, where it is none."""
    if isinstance(value, dict) and value.keys() >= PARTS:
        return Record(value)
    warn(f"{where} is not a record; it is left out.")
    return None


def add_records(folder: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Add records to the files of their tasks' modules. Of a run that has been made several times
    the last record stays.
    """
    by_file = defaultdict(list)
    for record in records:
        by_file[record["config"]["task"]["_target_"].split(".")[-2]].append(record)
    for name, new in by_file.items():
        path = folder / f"{name}.jsonl"
        with FileLock(folder / ".lock"):
            old = read_jsonl(path) if path.exists() else ()
            every = (checked(value, f"{path}, line {number},") for number, value in old)
            recorded = [record for record in every if record]
            lines = {record["run"]: dumped(record) for record in recorded}
            started = {record["run"]: record["started"] for record in recorded}
            stored = path.with_suffix(".npz")
            matrices = dict(np.load(stored)) if stored.exists() else {}
            before = len(matrices)
            for record in new:
                run = record["run"]
                if record["started"] < started.get(run, ""):
                    continue
                part = dict(record)
                grids = part.pop("matrices", {})
                matrices |= {f"{run}/{key}": np.float32(grid) for key, grid in grids.items()}
                part.pop("artifacts", None)  # they are in the run's folder
                lines[run] = dumped(rounded(part))
            if len(matrices) > before:
                with open_atomically(stored) as file:
                    np.savez_compressed(file, **matrices)
            write_atomically(path, "".join(f"{lines[run]}\n" for run in sorted(lines)))


def dumped(record: Mapping[str, Any]) -> str:
    """A record as a line of its file."""
    return json.dumps(record, ensure_ascii=False, separators=(",", ":"))


def varying(rows: Sequence[Sequence[Record]], declared: Iterable[str]) -> dict[str, list[Any]]:
    """The keys in which the runs of rows differ, with their values, besides the declared ones, by
    which rows are told apart, and those of declared groups. 1 and 1.0 are the same.
    """
    declared = {"seed", *declared}
    values: dict[str, list[Any]] = defaultdict(list)
    for record in (record for row in rows for record in row):
        for key, value in flat(record["config"]).items():
            if any(key == word or key.startswith(f"{word}.") for word in declared):
                continue
            if value not in values[key]:
                values[key].append(value)
    return {key: found for key, found in values.items() if len(found) > 1}


def commits(records: Iterable[Mapping[str, Any]]) -> str:
    """The commits of records, each once, by their first seven digits: those at which runs began
    and those at which they were resumed. A + where tracked files differed from one of a run's.
    """
    names = set()
    for git in (record["git"] for record in records):
        changed = "+" if git["dirty"] else ""
        for commit in (git["commit"], *git.get("later", ())):
            names.add((commit or "unknown")[:7] + changed)
    return " ".join(sorted(names))
