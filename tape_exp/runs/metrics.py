"""The rows of a run's metrics.jsonl and what is read from them, without torch or Lightning."""

import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tape_exp.machine.files import read_jsonl

log = logging.getLogger("tape_exp")
POINTS = {"train/loss": 20, "val/loss": 50}  # of a curve in a record


@dataclass
class Stopwatch:
    """Counts the seconds since ``began``, which is earlier by what earlier processes spent."""

    began: float = field(default_factory=time.monotonic)

    def seconds(self) -> float:
        """Return the seconds so far."""
        return time.monotonic() - self.began


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Read the rows of a metrics.jsonl, without damaged lines (a warning)."""
    rows = []
    for number, row in read_jsonl(path):
        if row is None:
            log.warning("%s, line %d is damaged and left out.", path, number)
        else:
            rows.append(row)
    return rows


def curves(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, list[Any]]]:
    """Return the losses of training: at most :data:`POINTS` of each, evenly spaced, with the first
    and the last. A single value is no curve, and one that is not finite is no point.

    >>> curves([{"step": 1, "val/loss": 2.5}, {"step": 2}, {"step": 3, "val/loss": 2.25}])
    {'val/loss': {'step': [1, 3], 'value': [2.5, 2.25]}}
    """
    thinned: dict[str, dict[str, list[Any]]] = {}
    for name, most in POINTS.items():
        points = []
        for row in rows:
            if math.isfinite(row.get(name, math.nan)):
                points.append((row["step"], row[name]))
        last = len(points) - 1
        if last >= most:
            points = [points[round(i * last / (most - 1))] for i in range(most)]
        if last > 0:
            values = [float(f"{value:.5g}") for _, value in points]
            thinned[name] = {"step": [step for step, _ in points], "value": values}
    return thinned
