"""tab_perplexity: what a model reaches that knows only how often each token occurs."""

from dataclasses import replace
from typing import TYPE_CHECKING

from tape_exp.results.statistics import Value
from tape_exp.results.tables import Cell, Table

if TYPE_CHECKING:
    from tape_exp.artifacts.view import View

COLUMN = "{c} {n}"  # the perplexity of a corpus at a length


def with_unigram(view: "View", table: Table) -> Table:
    """Add the row of the unigram model: the entropy of the test set's own token counts, which the
    runs have measured, as a perplexity.
    """
    cells: dict[str, Cell] = {"model": "unigram"}
    for column in view.columns_named(COLUMN):
        for perplexity in view.lookup(f"{column.at['c']}/unigram_perplexity", view.every_run)[:1]:
            cells[column.name] = Value(perplexity)
    return replace(table, rows=[*table.rows, cells]) if len(cells) > 1 else table
