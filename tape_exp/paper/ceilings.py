"""Ceilings among models: encodings that are told which tokens are digits, and so are no rivals."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from tape_exp.paper.figure_kinds import Curves, Figure, Heatmaps, Patterns
from tape_exp.paper.tables import Table
from tape_exp.settings.naming import display_name

MARK = "†"
TOLD = f"{MARK} told which tokens are digits"


def ceilings(records: Mapping[str, Sequence[Mapping[str, Any]]]) -> set[str]:
    """The names of the models in some records whose encoding knows digits."""
    every = (run for runs in records.values() for run in runs)
    return {run["config"]["model"]["name"] for run in every if run.get("knows_digits")}


def marked(text: str, names: Iterable[str]) -> str:
    """The text with the mark after each of the names."""
    for name in names:
        text = re.sub(rf"(?<!\w){re.escape(name)}(?![\w{MARK}])", name + MARK, text)
    return text


def marked_table(table: Table, names: set[str]) -> Table:
    """The table with the mark in its labels, and what it means in its caption."""
    if not names:
        return table
    rows = [{**row, table.label: marked(str(row[table.label]), names)} for row in table.rows]
    words = "the others must find out which these are, so that these models are no rivals"
    return replace(table, rows=rows, caption=f"{table.caption} {TOLD}; {words}.")


def marked_figure(figure: Figure, names: set[str]) -> Figure:
    """The figure with the mark in its legend and the titles of its panels, and with what it means
    in its own; a picture that another program drew stays as it is.
    """
    if not names:
        return figure
    words = partial(marked, names=[*map(display_name, names)])
    panels: Any = None
    if isinstance(figure, Curves):
        panels = [
            replace(
                panel,
                title=words(panel.title),
                lines=[replace(line, name=words(line.name)) for line in panel.lines],
            )
            for panel in figure.panels
        ]
    elif isinstance(figure, Heatmaps | Patterns):
        panels = {words(name): panel for name, panel in figure.panels.items()}
    else:
        return figure
    return replace(figure, panels=panels, title=f"{figure.title} ({TOLD})")
