"""tab_encodings: the mean rank of each encoding over the columns that count."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import mean
from typing import TYPE_CHECKING

import numpy as np

from tape_exp.results.statistics import Value
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
        sizes = []
        seeds = []
        for column in columns:
            runs = view.runs(row, column)
            seeds.append(str(len(runs)))
            if runs:
                sizes.append(f"{runs[0]['parameters'] / 1000:.0f}")
        rank = ranks.get(row.labels["model"])
        further: dict[str, Cell] = {
            "parameters (thousands)": " / ".join(sizes),
            "seeds": " / ".join(seeds),
            "mean rank": None if rank is None else Value(rank),
        }
        rows.append({**cells, **further})
    rows.sort(key=lambda cells: ranks.get(str(cells["model"]), float("inf")))
    model, *measured, scale, commit = table.columns
    size = Column("parameters (thousands)")
    return replace(
        table, rows=rows, columns=[model, Column("mean rank"), *measured, size, scale, commit]
    )


def mean_ranks(view: "View", columns: Sequence[Column]) -> dict[str, float]:
    """Model -> its mean rank over columns, 1 the best; empty where no seed is shared by all."""
    from scipy.stats import rankdata  # half a second to import

    by_seed: dict[str, list[Mapping[int, Value]]] = {}
    for row in view.rows:
        values = [view.cell(row, column) for column in columns]
        if all(view.runs(row, column) for column in columns):
            by_seed[row.labels["model"]] = [value.runs for value in values]  # type: ignore[union-attr]
    every = [set(runs) for of_model in by_seed.values() for runs in of_model]
    seeds = set.intersection(*every) if every else set()
    if not seeds:
        return {}
    signs = [1 if column.spec["rank"] == "lower" else -1 for column in columns]
    means = np.zeros((len(by_seed), len(columns)))
    for i, of_model in enumerate(by_seed.values()):
        for j, runs in enumerate(of_model):
            means[i, j] = mean(runs[seed].number for seed in seeds)
    ranks = rankdata(means * signs, axis=0).mean(1)
    return dict(zip(by_seed, map(float, ranks), strict=True))
