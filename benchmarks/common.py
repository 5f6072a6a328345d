"""What the benchmarks share: encodings, options, and records with the spread of a measurement."""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from tape_exp.machine.files import read_jsonl, write_atomically
from tape_exp.models.layers import LayerKind, kinds_of
from tape_exp.runs.git import git_state
from tape_exp.settings.compose import compose_config
from tape_exp.settings.folders import ROOT

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
RECORDS = ROOT / "results" / "speed.jsonl"
DIGITS = tuple(range(10))  # ids, for encodings that must know which tokens are digits
# One model of each encoding; the other YAMLs of conf/model change a number of one of them.
ENCODINGS = (
    *("rope", "tape", "nope", "xpos", "randpe", "alibi", "t5", "fire", "kerple_log"),
    *("kerple_power", "dape", "cope", "path", "fox", "path_fox", "wall", "p_rope", "pope"),
    *("selective_rope", "repo", "grape", "grape_additive", "tape_tensor", "tape_householder"),
    *("tape_randpe", "alibi_randpe", "fire_randpe", "tape_public_addition", "sinusoidal"),
    *("learned", "abacus", "coupling"),
)


def encoding(name: str) -> list[LayerKind]:
    """What makes the encoding of ``model=<name>`` for a decoder."""
    return kinds_of(compose_config([f"model={name}"]).model)


def parser(kind: str, description: str) -> argparse.ArgumentParser:
    """A parser with ``--out``."""
    made = argparse.ArgumentParser(f"python -m benchmarks.{kind}", description=description)
    made.add_argument("--out", type=Path, default=RECORDS, help="file of records (%(default)s)")
    return made


def write_record(kind: str, record: Mapping[str, Any], path: Path) -> Path:
    """Write a record with the commit as a line of ``path``, in place of an earlier one of the same
    benchmark and machine.
    """
    whole = {"benchmark": kind, "git": git_state(), **record}
    lines = [value for _, value in read_jsonl(path)] if path.exists() else []
    same = (kind, record["machine"])
    kept = [each for each in lines if each and (each["benchmark"], each["machine"]) != same]
    write_atomically(path, "".join(json.dumps(each) + "\n" for each in (*kept, whole)))
    return path


def seconds(work: Callable[[], Any]) -> float:
    """The seconds of one call, from an idle device to an idle device."""
    began = now()
    work()
    return now() - began


def now() -> float:
    """The clock, once a GPU has done what it was given."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def spread(values: list[float]) -> dict[str, float]:
    """Median and quartiles."""
    names = ("lower_quartile", "median", "upper_quartile")
    quartiles = zip(names, statistics.quantiles(values, n=4), strict=True)
    return {name: round(value, 4) for name, value in quartiles}
