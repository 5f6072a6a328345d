"""tab_encodings: the mean rank of each encoding over the columns that count."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import mean
from typing import TYPE_CHECKING

import numpy as np

from tape_exp.artifacts.captions import KNOWS_DIGITS
from tape_exp.artifacts.rows import Row
from tape_exp.results.statistics import Value, shared_seeds
from tape_exp.results.tables import Cell, Column, Table

if TYPE_CHECKING:
    from tape_exp.artifacts.columns import ArtifactColumn
    from tape_exp.artifacts.view import View

RANKED = {  # the columns whose ranks count -> what is better there
    "addition, > {n} digits (%)": "higher",
    "parity, ≤ {n} letters (%)": "higher",
    "perplexity at {n} tokens": "lower",
}


def ranked(view: "View", table: Table) -> Table:
    """Order a table by the mean rank over the columns of :data:`RANKED`, among the models that have
    a value in all of them, by the seeds that all have; the others follow without a rank.
    """
    columns: list[ArtifactColumn] = []
    for heading in RANKED:
        columns += view.columns_named(heading)
    ranks = mean_ranks(view, columns)
    row_of = {row.labels["model"]: row for row in view.rows}
    rows = []
    for cells in table.rows:  # without the rows of which nothing is known
        row = row_of[str(cells["model"]).removesuffix(KNOWS_DIGITS)]
        rank = ranks.get(row.labels["model"])
        mean_rank = None if rank is None else Value(rank)
        rows.append({**cells, **sizes_and_seeds(view, row, columns), "mean rank": mean_rank})
    rows.sort(key=lambda cells: ranks.get(str(cells["model"]), float("inf")))
    model, *measured, seeds, commit = table.columns
    size = Column("parameters (thousands)")
    columns_shown = [model, Column("mean rank"), *measured, size, seeds, commit]
    return replace(table, rows=rows, columns=columns_shown)


def sizes_and_seeds(view: "View", row: Row, columns: Sequence["ArtifactColumn"]) -> dict[str, Cell]:
    """Write the parameters of a row's models and their seeds, each column in turn: ``88 / 12``."""
    sizes = []
    seeds = []
    for column in columns:
        runs = view.runs(row, column)
        seeds.append(str(len(runs)))
        if runs:
            sizes.append(f"{runs[0]['parameters'] / 1000:.0f}")
    return {"parameters (thousands)": " / ".join(sizes), "seeds": " / ".join(seeds)}


def mean_ranks(view: "View", columns: Sequence["ArtifactColumn"]) -> dict[str, float]:
    """Return the mean rank over columns, 1 the best, of each model that has a value in all of them;
    empty where no seed is shared by all.
    """
    from scipy.stats import rankdata  # half a second to import

    by_model: dict[str, list[Value]] = {}
    for row in view.rows:
        cells = [view.cell(row, column) for column in columns]
        values = [cell for cell in cells if isinstance(cell, Value)]
        if len(values) == len(columns):
            by_model[row.labels["model"]] = values
    seeds = shared_seeds(value.runs for values in by_model.values() for value in values)
    if not seeds:
        return {}
    means = np.zeros((len(by_model), len(columns)))  # the lower the better
    for i, values in enumerate(by_model.values()):
        for j, (column, value) in enumerate(zip(columns, values, strict=True)):
            sign = 1 if RANKED[column.template] == "lower" else -1
            means[i, j] = sign * mean(value.runs[seed].number for seed in seeds)
    ranks = rankdata(means, axis=0).mean(axis=1)
    return dict(zip(by_model, map(float, ranks), strict=True))
