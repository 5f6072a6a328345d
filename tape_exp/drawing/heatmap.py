"""Heatmaps of a grid: a picture with one panel a model."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tape_exp.drawing.page import DOUBLE, SINGLE, TYPE, fitted, in_print, new_figure, save
from tape_exp.runs.evaluation import Heatmap

COLOURS = "YlGnBu"  # the paper's
ACROSS = 5  # panels in a row
FEW = 6  # rows or columns that have a tick each
TALLEST = 2.2  # inches of a panel
BESIDE = 1.2  # inches of the labels of rows and of the colour bar


@dataclass(frozen=True)
class Heatmaps:
    """A picture of heatmaps next to each other, by their names.

    Args:
        title: above all panels.
        panels: from left to right.
        suffix: what the name of its file ends with; None: it is drawn on the page of ``make
            report`` only.
    """

    title: str
    panels: dict[str, Heatmap]
    suffix: str | None = ""

    def draw(self, path: Path, mark: str = "", kinds: Sequence[str] = ("png",)) -> Path:
        """Write the picture as each of the kinds, whole or not at all."""
        return draw(self.panels, path, self.title, mark, kinds)


@in_print
def draw(
    panels: dict[str, Heatmap],
    path: Path,
    title: str = "",
    mark: str = "",
    kinds: Sequence[str] = ("png",),
) -> Path:
    """Write a picture: one panel a name, rows downward, one colour bar from 0 to 100 shared by all.

    What was seen in training is framed; its share of the mean is not generalisation. The file
    appears whole or not at all.
    """
    number, width = len(panels), SINGLE if len(panels) == 1 else DOUBLE
    rows = -(-number // ACROSS)
    across = -(-number // rows)
    side = min((width - BESIDE) / across - 0.05, TALLEST)
    first = next(iter(panels.values()))
    square = len({*first.values.shape}) == 1
    tall = side if square else min(side, 1.6)
    names = {name: fitted(name, side) for name in panels}
    if any("\n" in name for name in names.values()):  # then all have their numbers below
        names = {n: "\n".join(fitted(part, side) for part in n.split("  ")) for n in panels}
    above = max(name.count("\n") for name in names.values()) * 1.4 * TYPE / 72
    below = 0.35 if first.columns else 0.27
    figure = new_figure(width, rows * (tall + above + below) + 0.3, title)
    same = len({(h.values.shape, *h.rows, *h.columns) for h in panels.values()}) == 1
    axes = figure.subplots(rows, across, squeeze=False, sharex=same, sharey=same)
    image: Any = None
    for place, (axis, (name, heatmap)) in enumerate(zip(axes.flat, panels.items(), strict=False)):
        image = _draw_panel(axis, heatmap)
        axis.set_title(names[name])
        if place % across == 0:
            axis.set_ylabel(fitted(heatmap.row_label, 1.3 * tall))
        if place + across >= number:
            axis.tick_params(labelbottom=True)
    for axis in axes.flat[number:]:
        axis.set_visible(False)
    figure.supxlabel(first.column_label, fontsize=TYPE)
    bar: Any = {"shrink": 0.9, "aspect": 14 * rows, "pad": 0.02}
    figure.colorbar(image, ax=axes.ravel().tolist(), label=first.title, **bar)
    return save(figure, path, mark, kinds)


def _draw_panel(axis: Any, heatmap: Heatmap) -> Any:
    """Draw a grid with the names of its rows and columns, and return the image."""
    from matplotlib.patches import Rectangle

    rows, columns = heatmap.values.shape
    image = axis.imshow(
        heatmap.values,
        cmap=COLOURS,
        vmin=0,
        vmax=100,
        extent=(0.5, columns + 0.5, rows + 0.5, 0.5),
        aspect="equal" if rows == columns else "auto",
    )
    height, width = heatmap.trained
    if height and width:
        style: Any = {"fill": False, "edgecolor": "tab:red", "linestyle": "--", "linewidth": 1}
        axis.add_patch(Rectangle((0.5, 0.5), width, height, **style))
    axis.set_xticks(*ticks(columns, heatmap.columns, FEW), rotation=45 if heatmap.columns else 0)
    axis.set_yticks(*ticks(rows, heatmap.rows, FEW))
    return image


def ticks(n: int, names: list[str], few: int = 10) -> tuple[list[int], list[str]]:
    """The places and labels of ticks: all rows or columns if few or named, else about four."""
    if names:
        return list(range(1, n + 1)), names
    step = 1 if n <= few else 2 if n <= 10 else n // 4
    ticks = list(range(step, n + 1, step))
    return ticks, list(map(str, ticks))
