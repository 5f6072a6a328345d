"""Heatmaps, one for each row of an artifact."""

from collections.abc import Sequence
from functools import partial

import numpy as np

from tape_exp.artifacts.cells import Cells
from tape_exp.artifacts.figures.shared import Draw, last_label, title_of
from tape_exp.drawing import plots
from tape_exp.results.record import Record
from tape_exp.runs.evaluation import Heatmap
from tape_exp.settings.naming import display_name


def draw_grids(cells: Cells) -> Draw | None:
    """Draw the mean over seeds of each row; None where there is no heatmap, or none that shows
    something.
    """
    panels = {}
    for row in cells.rows:
        runs = [run for run in cells.runs(row) if "axes" in run]
        if runs:
            grid = mean_grid(runs)
            panels[f"{display_name(last_label(row))}  {np.nanmean(grid.values):.1f} %"] = grid
    are_grids = all(min(grid.values.shape) > 2 for grid in panels.values())
    if not are_grids or not any(np.nanmax(grid.values) > 0 for grid in panels.values()):
        return None
    return partial(plots.grids, panels, title=title_of(cells))


def mean_grid(runs: Sequence[Record]) -> Heatmap:
    """Average the heatmaps of runs over seeds."""
    values = np.mean([np.array(run["heatmap"], float) for run in runs], axis=0)
    return Heatmap(values, **runs[0]["axes"])
