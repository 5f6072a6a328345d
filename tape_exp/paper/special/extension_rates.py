"""tab_extension_rates: the learning rate of each method with the lowest validation loss."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tape_exp.results.statistics import lowest
from tape_exp.results.tables import Column, Table

if TYPE_CHECKING:
    from tape_exp.artifacts.view import View


def chosen(view: "View", table: Table) -> Table:
    """Say which rate of rows that differ only in it has the lowest validation loss; one rate is
    none to choose from.
    """
    losses: dict[tuple[Any, ...], dict[str, dict[int, float]]] = {}
    others = [name for name in view.dimensions() if name != "rate"]
    for row in view.rows:
        by_rate = losses.setdefault(tuple(row.labels[name] for name in others), {})
        by_rate[row.labels["rate"]] = {
            run.seed: run["metrics"]["val/loss"] for run in view.runs(row)
        }
    rows = []
    for cells in table.rows:
        by_rate = losses[tuple(str(cells[name]) for name in others)]
        rate = cells["rate"]
        mark = ""
        if len(by_rate) > 1 and rate == lowest(by_rate):
            at_edge = rate in (min(by_rate, key=float), max(by_rate, key=float))
            mark = "yes, at the edge" if at_edge else "yes"
        rows.append({**cells, "chosen": mark})
    columns = [*table.columns[:-3], Column("chosen"), *table.columns[-3:]]
    return replace(table, rows=rows, columns=columns)
