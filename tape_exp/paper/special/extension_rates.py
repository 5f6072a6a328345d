"""tab_extension_rates: the learning rate of each method with the lowest validation loss."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from tape_exp.results.statistics import lowest
from tape_exp.results.tables import Column, Table

if TYPE_CHECKING:
    from tape_exp.artifacts.view import View


def chosen(view: "View", table: Table) -> Table:
    """Say which rate of rows that differ only in it has the lowest validation loss; one rate is
    none to choose from.
    """
    others = [name for name in view.dimensions() if name != "rate"]
    losses: dict[tuple[str, ...], dict[str, dict[int, float]]] = {}  # by the others, rate and seed
    for row in view.rows:
        alike = tuple(row.labels[name] for name in others)
        by_seed = {run.seed: run["metrics"]["val/loss"] for run in view.runs(row)}
        losses.setdefault(alike, {})[row.labels["rate"]] = by_seed
    rows = []
    for cells in table.rows:
        by_rate = losses[tuple(str(cells[name]) for name in others)]
        rows.append({**cells, "chosen": mark_of(str(cells["rate"]), by_rate)})
    *columns, seeds, scale, commit = table.columns
    return replace(table, rows=rows, columns=[*columns, Column("chosen"), seeds, scale, commit])


def mark_of(rate: str, losses: Mapping[str, Mapping[int, float]]) -> str:
    """Mark the rate with the lowest of the losses, which are by rate and seed.

    >>> losses = {"0.001": {0: 0.5}, "0.003": {0: 0.4}, "0.01": {0: 0.6}}
    >>> mark_of("0.003", losses), mark_of("0.01", losses)
    ('yes', '')
    >>> mark_of("0.003", {"0.001": {0: 0.5}, "0.003": {0: 0.4}})
    'yes, at the edge'
    """
    if len(losses) == 1 or rate != lowest(losses):
        return ""
    at_edge = rate in (min(losses, key=float), max(losses, key=float))
    return "yes, at the edge" if at_edge else "yes"
