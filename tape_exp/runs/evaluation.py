"""The results of an evaluation: metrics, a grid, tables and samples; torch is not imported."""

import logging
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from tape_exp.settings.errors import ConfigError, did_you_mean

log = logging.getLogger("tape_exp")
FEW = 8  # columns of a comparison, where nobody chooses them
Z_95 = 1.959963984540054  # the 97.5 % quantile of the normal distribution


def is_result(metric: str) -> bool:
    """Say whether a metric is a result, which logs, cards and ``compare`` show: no standard
    error, no end of an interval, and no diagnostic, which only explains one.

    >>> is_result("test/perplexity@512"), is_result("test/loss_stderr"), is_result("state/size@1")
    (True, False, False)
    """
    diagnostics = ("address", "causal", "failures", "forced", "state")
    diagnostic = metric.partition("/")[0] in diagnostics
    return not diagnostic and not metric.endswith(("_stderr", "_low", "_high"))


def main_results(metrics: Sequence[str]) -> list[str]:
    """Choose the few results that a comparison shows unless the user names them: of rows of trained
    and of longer lengths the first measure of the task, over all, ``id/…`` and ``ood/…``; else
    what the model scores, and where that is much, at the longest length only.
    """
    results = list(filter(is_result, metrics))
    for metric in results:
        split, _, measure = metric.partition("/")
        if split in ("id", "ood"):
            splits = [f"{split}/{measure}" for split in ("test", "id", "ood")]
            return [name for name in results if name in splits]
    of_the_text = ("/tokens", "/unigram_perplexity")
    scores = [name for name in results if not name.endswith(of_the_text)]
    if len(scores) <= FEW:
        return scores
    longest: dict[str, str] = {}
    for name in scores:
        measure, _, length = name.partition("@")
        known = longest.get(measure, "").partition("@")[2]
        if not (known.isdigit() and length.isdigit()) or int(length) > int(known):
            longest[measure] = name
    return list(longest.values())


def check_metric(metric: str, expected: Sequence[str], derived: Sequence[str] = ()) -> None:
    """Raise :class:`ConfigError` where a metric is none of those that are expected of a task, by
    name or pattern of a shell, nor of those that a table makes of them.
    """
    names = [*expected, *derived]
    if not any(fnmatchcase(metric, pattern) for pattern in names):
        results = ", ".join(filter(is_result, expected))
        raise ConfigError(f"metric {metric}{did_you_mean(metric, names)} The task has {results}.")


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


def depth_heatmap(
    values: np.ndarray, lengths: list[int], train_length: int, what: str = "pass key"
) -> Heatmap:
    """Make the grid of accuracy by depth (rows) and length (columns), in percent; NaN where nothing
    was asked.
    """
    bins = len(values)
    return Heatmap(
        values,
        title="accuracy (%)",
        row_label=f"depth of the {what} (%)",
        column_label="length (tokens)",
        trained=(bins, sum(length <= train_length for length in lengths)),
        rows=[f"{100 * n / bins:.0f} – {100 * (n + 1) / bins:.0f}" for n in range(bins)],
        columns=list(map(str, lengths)),
    )


def wilson(correct: float, trials: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a share of successes, in percent.

    >>> low, high = wilson(9, 10)
    >>> round(low, 1), round(high, 1)
    (59.6, 98.2)
    """
    share = correct / trials
    centre = 2 * correct + Z_95**2
    half = Z_95 * math.sqrt(4 * correct * (1 - share) + Z_95**2)
    low = (centre - half) / (2 * (trials + Z_95**2))
    high = (centre + half) / (2 * (trials + Z_95**2))
    return 100 * max(low, 0.0), 100 * min(high, 1.0)
