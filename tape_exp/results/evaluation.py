"""What an evaluation of a model finds: metrics, a grid, tables, samples and matrices."""

import logging
import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np

log = logging.getLogger("tape_exp")


@dataclass
class Heatmap:
    """Values from 0 to 100 over two axes, drawn and stored with the run."""

    values: np.ndarray  # (rows, columns)
    title: str
    row_label: str
    column_label: str
    trained: tuple[int, int]  # rows and columns up to here were seen in training
    rows: list[str] = field(default_factory=list)  # their names; none: 1, 2, …
    columns: list[str] = field(default_factory=list)
    trained_length: int | None = None  # of columns that are lengths, among which it need not be

    @property
    def name(self) -> str:
        """Name its files, from what is to its left or, of curves, below it: of ``digits of
        the first operand`` ``accuracy_by_digits``.
        """
        word = re.match(r"\w+", self.row_label or self.column_label)
        return f"accuracy_by_{word[0].lower() if word else 'length'}"

    def to_rows(self) -> list[list[float | None]]:
        """Round the values for a record; None where a cell was not scored."""
        rows = []
        for row in self.values:
            rows.append([None if np.isnan(value) else round(float(value), 2) for value in row])
        return rows


@dataclass
class Evaluation:
    """What ``Task.evaluate`` returns."""

    metrics: dict[str, float]  # split/name -> value
    heatmap: Heatmap | None = None
    tables: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    samples: list[dict[str, Any]] = field(default_factory=list)  # a few rows, for the record
    matrices: dict[str, np.ndarray] = field(default_factory=dict)  # (T, T) each, drawn side by side

    def for_record(self) -> dict[str, Any]:
        """Return the samples and pictures that a record holds: rounded, since it is committed."""
        record: dict[str, Any] = {}
        if self.samples:
            record["samples"] = self.samples
        if self.heatmap:
            record["heatmap"] = self.heatmap.to_rows()
            axes = dict(vars(self.heatmap))
            del axes["values"]
            record["axes"] = axes | {"trained": list(self.heatmap.trained)}
        if self.matrices:
            record["matrices"] = {}
            left_out = []
            for name, matrix in self.matrices.items():
                if np.isfinite(matrix).all():
                    record["matrices"][name] = np.round(matrix, 4).tolist()
                else:
                    left_out.append(name)
            if left_out:
                log.warning("Not finite, and not in the record: %s.", ", ".join(sorted(left_out)))
        return record
