"""What the benchmarks share: where their records are written, and the spread of a measurement."""

import argparse
import json
import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from tape_exp.machine.files import parse_json, write_atomically
from tape_exp.machine.hardware import file_name
from tape_exp.runs.record import git_state
from tape_exp.settings.folders import ROOT

FOLDER = ROOT / "results" / "speed"


def add_folder(parser: argparse.ArgumentParser, kind: str, file: str = "") -> None:
    """Add ``--out``, the folder of ``<kind>-<machine>.json``, or of ``file``."""
    parser.add_argument(
        "--out",
        type=Path,
        default=FOLDER,
        help=f"folder of {file or f'{kind}-<machine>.json'} (default: results/speed)",
    )


def add_device(parser: argparse.ArgumentParser) -> None:
    """Add ``--device``, one that is there: the GPU by default, if there is one."""
    parser.add_argument(
        "--device",
        type=_device,
        default="cuda" if torch.cuda.is_available() else "cpu",
        help="where to measure (default: %(default)s)",
    )


def _device(text: str) -> torch.device:
    """The argparse type of a device that is there."""
    try:
        torch.empty(0, device=text)
    except (RuntimeError, AssertionError) as error:  # the second, of a PyTorch without CUDA
        raise argparse.ArgumentTypeError(
            f"{text} is no device that PyTorch finds on this machine; name another, as cpu."
        ) from error
    return torch.device(text)


def write_record(kind: str, record: Mapping[str, Any], folder: Path, finished: bool = True) -> Path:
    """Write ``<folder>/<kind>-<machine>.json`` with the commit, and return its path.

    What no machine measured, but was counted or compiled, is ``<kind>.json``. A record that is not
    ``finished`` says so. It does not take the place of one that is: then it goes to
    ``unfinished-<kind>-<machine>.json``, until it is finished.
    """
    machine = f"-{file_name(record['machine'])}" if "machine" in record else ""
    path = folder / f"{kind}{machine}.json"
    aside = path.with_name(f"unfinished-{path.name}")
    state: dict[str, Any] = {"git": git_state()} | ({} if finished else {"unfinished": True})
    where = path if finished or not _finished(path) else aside
    write_atomically(where, json.dumps(state | dict(record), indent=1) + "\n")
    if finished:
        aside.unlink(missing_ok=True)
    return where


def _finished(path: Path) -> bool:
    """Whether there is a record of a measurement that came to its end."""
    try:
        record = parse_json(path.read_text())
    except (OSError, ValueError):
        return False
    return isinstance(record, dict) and "unfinished" not in record


def why(error: Exception) -> str:
    """The first line of an error, at most 300 characters, for the record of what failed."""
    return f"{type(error).__name__}: {error}".splitlines()[0][:300]


def spread(values: list[float]) -> dict[str, float]:
    """Median and quartiles."""
    low, middle, high = statistics.quantiles(values, n=4)
    return {
        "median": round(middle, 4),
        "lower_quartile": round(low, 4),
        "upper_quartile": round(high, 4),
    }


def span(values: Iterable[float]) -> str:
    """The least and the most, or the one that all are."""
    low, *_, high = ordered if len(ordered := sorted(values)) > 1 else ordered * 2
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"
