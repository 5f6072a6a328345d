"""What the benchmarks share: where their records are written, and the spread of a measurement."""

import argparse
import json
import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from tape_exp.machine.files import write_atomically
from tape_exp.machine.hardware import file_name
from tape_exp.settings.commit import git_state
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


def write_record(kind: str, record: Mapping[str, Any], folder: Path) -> Path:
    """Write ``<folder>/<kind>-<machine>.json`` with the commit, and return its path."""
    path = folder / f"{kind}-{file_name(record['machine'])}.json"
    write_atomically(path, json.dumps({"git": git_state()} | dict(record), indent=1) + "\n")
    return path


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
