"""The committed records, a line a run: reading, selecting and adding them.

``results/records/<file>.jsonl`` holds the runs of the tasks of a module, such as ``pretrain``, with
6 significant digits, and ``<file>.npz`` the matrices of those that have some.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from tape_exp.machine.files import open_atomically, parsed, read_jsonl, write_atomically
from tape_exp.results.experiment import rounded
from tape_exp.results.record import Record
from tape_exp.runs.identity import flat
from tape_exp.runs.record import REQUIRED
from tape_exp.settings import folders, plugins
from tape_exp.settings.errors import warn


def read_records(folder: Path | None = None) -> list[Record]:
    """Read every record of ``results/records`` and of those of packages, or of another folder, by
    time; a line that is none is named and left out.
    """
    if folder is None:
        places = [folders.RECORDS]
        places += [package / "results" / "records" for package in plugins.packages().values()]
    else:
        places = [folder]
    records = []
    for place in places:
        for path in sorted(place.glob("*.jsonl")):
            records += read_file(path)
    return sorted(records, key=lambda record: record["started"])


def read_file(path: Path) -> list[Record]:
    """Read a file of records with the matrices that are beside it."""
    matrices = read_matrices(path)
    records = []
    for number, value in read_jsonl(path):
        record = checked(value, f"{path}, line {number},")
        if record is None:
            continue
        if record.name in matrices:
            record["matrices"] = matrices[record.name]
        records.append(record)
    return records


def read_matrices(path: Path) -> dict[str, dict[str, np.ndarray]]:
    """Read the matrices beside a file of records: run -> name -> matrix."""
    stored = path.with_suffix(".npz")
    matrices: dict[str, dict[str, np.ndarray]] = defaultdict(dict)
    if stored.exists():
        for key, matrix in np.load(stored).items():
            run, _, name = key.partition("/")
            matrices[run][name] = matrix
    return matrices


def records_of_runs(folder: Path) -> list[Record]:
    """Read the records of the finished runs ``<folder>/<task>/<scale>/<variant>/<run>``, of those
    in a folder on the way there, or of a run's own, but not of ``debug=``.
    """
    paths: list[Path] = []
    for depth in range(5):
        paths += folder.glob("[!.]*/" * depth + "record.json")
    records = []
    for path in sorted(paths):
        record = checked(parsed(path.read_text("utf-8")), str(path))
        if record and "debug" not in record.config:
            records.append(record)
    return records


def known_records() -> list[Record]:
    """Read those of ``results/records`` and of the finished runs in ``runs/``."""
    return merged(records_of_runs(Path("runs")), read_records())


def merged(*sources: Iterable[Record]) -> list[Record]:
    """Merge the records of several places by time, each run once: as it was made last, since it may
    have been made anew in one of them, and of equal ones as the last of the places has it.

    >>> first = Record(run="a", started="2026-01-01")
    >>> again = Record(run="a", started="2026-01-03")
    >>> other = Record(run="b", started="2026-01-02")
    >>> [record["started"] for record in merged([again, other], [first])]
    ['2026-01-03', '2026-01-02']
    """
    records = sorted(chain.from_iterable(sources), key=lambda record: record["started"])
    return list({record.name: record for record in records}.values())


def checked(value: Any, where: str) -> Record | None:
    """Take a value as a record; None, after a warning, where it is none."""
    if isinstance(value, dict) and value.keys() >= REQUIRED:
        return Record(value)
    warn(f"{where} is not a record; it is left out.")
    return None


def add_records(folder: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Add records to the files of their tasks' modules. Of a run that has been made several times
    the last record stays.
    """
    by_file = defaultdict(list)
    for record in records:
        module = record["config"]["task"]["_target_"].split(".")[-2]
        by_file[module].append(record)
    for module, new in by_file.items():
        with FileLock(folder / ".lock"):
            add_to_file(folder / f"{module}.jsonl", new)


def add_to_file(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Add records to a file, and their matrices to the one beside it."""
    lines: dict[str, str] = {}
    started: dict[str, str] = {}
    for number, value in read_jsonl(path) if path.exists() else ():
        stored = checked(value, f"{path}, line {number},")
        if stored:
            lines[stored.name] = dumped(stored)
            started[stored.name] = stored["started"]
    matrices = read_matrices(path)
    has_new_matrices = False
    for record in records:
        run = record["run"]
        if record["started"] < started.get(run, ""):
            continue
        line = dict(record)
        line.pop("artifacts", None)  # they are in the run's folder
        for name, matrix in line.pop("matrices", {}).items():
            matrices[run][name] = np.asarray(matrix, np.float32)
            has_new_matrices = True
        lines[run] = dumped(rounded(line))
    if has_new_matrices:
        write_matrices(path, matrices)
    write_atomically(path, "".join(f"{lines[run]}\n" for run in sorted(lines)))


def write_matrices(path: Path, matrices: Mapping[str, Mapping[str, np.ndarray]]) -> None:
    """Write the matrices beside a file of records, for :func:`read_matrices`."""
    stored: dict[str, Any] = {}
    for run, of_run in matrices.items():
        for name, matrix in of_run.items():
            stored[f"{run}/{name}"] = matrix
    with open_atomically(path.with_suffix(".npz")) as file:
        np.savez_compressed(file, **stored)


def dumped(record: Mapping[str, Any]) -> str:
    """Write a record as a line of its file."""
    return json.dumps(record, ensure_ascii=False, separators=(",", ":"))


def varying(rows: Sequence[Sequence[Record]], declared: Iterable[str]) -> dict[str, list[Any]]:
    """Return the keys in which the runs of rows differ, with their values, besides the declared
    ones, by which rows are told apart, and those of declared groups. 1 and 1.0 are the same.

    >>> rope = Record(config={"model": {"name": "rope"}, "task": {"lr": 0.1}})
    >>> tape = Record(config={"model": {"name": "tape"}, "task": {"lr": 0.3}})
    >>> varying([[rope], [tape]], ["model"])
    {'task.lr': [0.1, 0.3]}
    """
    names = ("seed", *declared)
    prefixes = tuple(f"{name}." for name in names)
    values: dict[str, list[Any]] = defaultdict(list)
    for record in chain.from_iterable(rows):
        for key, value in flat(record.config).items():
            if key in names or key.startswith(prefixes):
                continue
            if value not in values[key]:
                values[key].append(value)
    return {key: found for key, found in values.items() if len(found) > 1}


def commits(records: Iterable[Mapping[str, Any]]) -> str:
    """List the commits of records, each once, by their first seven digits: those at which runs
    began and those at which they were resumed, with a + where a tracked file had been changed.

    >>> commits([{"git": {"commit": "0123456789", "dirty": True, "later": ["89abcdef01"]}}])
    '0123456+ 89abcde+'
    """
    names = set()
    for record in records:
        git = record["git"]
        changed = "+" if git["dirty"] else ""
        for commit in (git["commit"], *git.get("later", ())):
            names.add((commit or "unknown")[:7] + changed)
    return " ".join(sorted(names))
