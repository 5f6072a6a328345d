"""Heatmaps of a grid: a PNG with one panel a model."""

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tape_exp.machine.files import write_atomically
from tape_exp.runs.evaluation import Heatmap

COLOURS = "YlGnBu"  # the paper's


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

    def draw(self, path: Path, mark: str = "") -> Path:
        """Write the picture as a PNG, whole or not at all."""
        return draw(self.panels, path, self.title, mark)


def draw(panels: dict[str, Heatmap], path: Path, title: str | None = None, mark: str = "") -> Path:
    """Write a PNG: one panel a name, rows downward, one colour bar from 0 to 100 shared by all.

    What was seen in training is framed; its share of the mean is not generalisation. The file
    appears whole or not at all.
    """
    from matplotlib.patches import Rectangle

    figure = new_figure(2.9 * len(panels) + 1.0, 3.4, title)
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    image: Any = None
    for number, (axis, (name, heatmap)) in enumerate(zip(axes, panels.items(), strict=True)):
        rows, columns = heatmap.values.shape
        extent = (0.5, columns + 0.5, rows + 0.5, 0.5)
        aspect = "equal" if rows == columns else "auto"
        image = axis.imshow(
            heatmap.values, cmap=COLOURS, vmin=0, vmax=100, extent=extent, aspect=aspect
        )
        height, width = heatmap.trained
        if height and width:
            style: Any = {"fill": False, "edgecolor": "tab:red", "linestyle": "--", "linewidth": 1}
            axis.add_patch(Rectangle((0.5, 0.5), width, height, **style))
        axis.set_title(name)
        axis.set_xticks(*ticks(columns, heatmap.columns), rotation=45 if heatmap.columns else 0)
        axis.set_yticks(*ticks(rows, heatmap.rows))
        axis.set_xlabel(heatmap.column_label)
        if number == 0:
            axis.set_ylabel(heatmap.row_label)
    figure.colorbar(image, ax=list(axes), label=next(iter(panels.values())).title, shrink=0.85)
    return save(figure, path, mark)


def ticks(n: int, names: list[str]) -> tuple[list[int], list[str]]:
    """The places and labels of ticks: all rows or columns if few or named, else about four."""
    if names:
        return list(range(1, n + 1)), names
    ticks = [t for t in range(1, n + 1) if n <= 10 or t % (n // 4) == 0]
    return ticks, list(map(str, ticks))


def new_figure(
    width: float, height: float, title: str | None = None, layout: Any = "constrained"
) -> Any:
    """A figure of this many inches, a title on top of that, which needs no screen."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height + (0.3 if title else 0)), layout=layout)
    FigureCanvasAgg(figure)
    if title:
        figure.suptitle(title)
    return figure


def save(figure: Any, path: Path, mark: str = "") -> Path:
    """Write a PNG, whole or not at all, and the same bytes for the same figure.

    A ``mark`` is written into it as what it was drawn from.
    """
    picture = io.BytesIO()
    metadata = {"Software": None} | ({"Source": mark} if mark else {})
    figure.savefig(picture, dpi=150, format="png", metadata=metadata)
    write_atomically(path, picture.getvalue())
    return path
