"""tab_encodings: the mean rank of each encoding over the columns that count."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import mean
from typing import TYPE_CHECKING

import numpy as np

from tape_exp.artifacts.rows import Row
from tape_exp.results.statistics import Value, shared_seeds
from tape_exp.results.tables import Cell, Column, Table
from tape_exp.settings.errors import ConfigError

if TYPE_CHECKING:
    from tape_exp.artifacts.view import View


def ranked(view: "View", table: Table) -> Table:
    """Order a table by the mean rank over the columns with a key ``rank``, ``lower`` or ``higher``
    being the better, among the models that have all of them, by the seeds that all have.
    """
    columns = [column for column in view.columns if column.spec.get("rank")]
    better = {column.spec["rank"] for column in columns}
    if not columns or not better <= {"lower", "higher"}:
        raise ConfigError(
            f"conf/paper/{view.artifact.name}.yaml: finish: ranked needs rank: lower or rank: "
            "higher in each column whose ranks count."
        )
    ranks = mean_ranks(view, columns)
    rows = []
    for row, cells in zip(view.rows, table.rows, strict=True):
        rank = ranks.get(row.labels["model"])
        mean_rank = None if rank is None else Value(rank)
        rows.append({**cells, **sizes_and_seeds(view, row, columns), "mean rank": mean_rank})
    rows.sort(key=lambda cells: ranks.get(str(cells["model"]), float("inf")))
    model, *measured, seeds, commit = table.columns
    size = Column("parameters (thousands)")
    columns_shown = [model, Column("mean rank"), *measured, size, seeds, commit]
    return replace(table, rows=rows, columns=columns_shown)


def sizes_and_seeds(view: "View", row: Row, columns: Sequence[Column]) -> dict[str, Cell]:
    """Write the parameters of a row's models and their seeds, each column in turn: ``88 / 12``."""
    sizes = []
    seeds = []
    for column in columns:
        runs = view.runs(row, column)
        seeds.append(str(len(runs)))
        if runs:
            sizes.append(f"{runs[0]['parameters'] / 1000:.0f}")
    return {"parameters (thousands)": " / ".join(sizes), "seeds": " / ".join(seeds)}


def mean_ranks(view: "View", columns: Sequence[Column]) -> dict[str, float]:
    """Return the mean rank of each model over columns, 1 the best; empty where no seed is shared by
    all.
    """
    from scipy.stats import rankdata  # half a second to import

    by_model: dict[str, list[Value]] = {}
    for row in view.rows:
        if all(view.runs(row, column) for column in columns):
            cells = [view.cell(row, column) for column in columns]
            by_model[row.labels["model"]] = [cell for cell in cells if isinstance(cell, Value)]
    seeds = shared_seeds(value.runs for values in by_model.values() for value in values)
    if not seeds:
        return {}
    means = np.zeros((len(by_model), len(columns)))  # the lower the better
    for i, values in enumerate(by_model.values()):
        for j, (column, value) in enumerate(zip(columns, values, strict=True)):
            sign = 1 if column.spec["rank"] == "lower" else -1
            means[i, j] = sign * mean(value.runs[seed].number for seed in seeds)
    ranks = rankdata(means, axis=0).mean(axis=1)
    return dict(zip(by_model, map(float, ranks), strict=True))
