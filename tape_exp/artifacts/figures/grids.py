"""Heatmaps, one for each row of an artifact."""

from collections.abc import Sequence
from functools import partial

import numpy as np

from tape_exp.artifacts.cells import Cells
from tape_exp.artifacts.figures.shared import Draw, title_of
from tape_exp.artifacts.rows import Row
from tape_exp.drawing import plots
from tape_exp.drawing.plots import GridPanel
from tape_exp.results.evaluation import Heatmap
from tape_exp.results.record import Record
from tape_exp.settings.naming import display_name


def draw_grids(cells: Cells) -> Draw | None:
    """Draw the mean over seeds of each row; None where there is no heatmap, or none that shows
    something.
    """
    panels = []
    dimensions = varying_dimensions(cells.rows)
    for row in cells.rows:
        runs = [run for run in cells.runs(row) if "axes" in run]
        if runs:
            grid = mean_grid(runs)
            names = ", ".join(display_name(row.labels[name]) for name in dimensions)
            panels.append(GridPanel(f"{names}  {np.nanmean(grid.values):.1f} %", grid))
    are_grids = all(min(panel.heatmap.values.shape) > 2 for panel in panels)
    if not are_grids or not any(np.nanmax(panel.heatmap.values) > 0 for panel in panels):
        return None
    return partial(plots.grids, panels, title=title_of(cells))


def varying_dimensions(rows: Sequence[Row]) -> list[str]:
    """Name the dimensions in which rows differ, and the last one, which is the model or method.

    >>> labels = [{"task": "c4", "rate": rate, "model": "tape"} for rate in ("0.1", "0.2")]
    >>> varying_dimensions([Row(of_row, []) for of_row in labels])
    ['rate', 'model']
    """
    labels_of: dict[str, set[str]] = {}
    for row in rows:
        for name, label in row.labels.items():
            labels_of.setdefault(name, set()).add(label)
    last = [*labels_of][-1:]
    return [name for name, labels in labels_of.items() if len(labels) > 1 or name in last]


def mean_grid(runs: Sequence[Record]) -> Heatmap:
    """Average the heatmaps of runs over seeds."""
    values = np.mean([np.array(run["heatmap"], float) for run in runs], axis=0)
    return Heatmap(values, **runs[0]["axes"])
