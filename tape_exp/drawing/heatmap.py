"""Heatmaps of a grid: a PNG with one panel a model, and coloured blocks for a terminal."""

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from rich.console import Console
from rich.text import Text

from tape_exp.machine.files import write_atomically
from tape_exp.runs.evaluation import Heatmap

COLOURS = "YlGnBu"  # the paper's


class Terminal(Console):
    """A console that leaves it to its caller what to do where nobody reads it any more."""

    def on_broken_pipe(self) -> None:
        """Raise the BrokenPipeError, where rich itself ends the process."""
        raise


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
        axis.set_xticks(*_ticks(columns, heatmap.columns), rotation=45 if heatmap.columns else 0)
        axis.set_yticks(*_ticks(rows, heatmap.rows))
        axis.set_xlabel(heatmap.column_label)
        if number == 0:
            axis.set_ylabel(heatmap.row_label)
    figure.colorbar(image, ax=list(axes), label=next(iter(panels.values())).title, shrink=0.85)
    return save(figure, path, mark)


def _ticks(n: int, names: list[str]) -> tuple[list[int], list[str]]:
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


def print_heatmaps(panels: dict[str, Heatmap], console: Console | None = None) -> None:
    """Print grids side by side as coloured blocks, or without colours as tenths from 0 to 9."""
    console = console or Terminal()
    colours = matplotlib.colormaps[COLOURS]
    for group in _fitting(panels, console.width):
        lines: list[Any] = [Text() for _ in range(max(len(h.values) for h in group.values()) + 1)]
        for name, heatmap in group.items():
            width = 2 * heatmap.values.shape[1]
            for number, line in enumerate(lines):
                if number == 0:
                    line.append(name[: width + 2].ljust(width + 3), style="bold")
                elif number <= len(heatmap.values):
                    for value in heatmap.values[number - 1]:
                        line.append(*_cell(value, colours, console.is_terminal))
                    line.append("   ")
                else:
                    line.append(" " * (width + 3))
        for line in lines:
            console.print(line, no_wrap=True, highlight=False)
    if not console.is_terminal:
        console.print("digit = tens of percent, 9 = 90 to 100; · = not evaluated", highlight=False)


def _cell(value: float, colours: Any, coloured: bool) -> tuple[str, str]:
    if np.isnan(value):
        return "··", ""
    digit = str(min(int(value // 10), 9))
    if not coloured:
        return f"{digit} ", ""
    red, green, blue = (int(255 * c) for c in colours(value / 100)[:3])
    return "  ", f"on rgb({red},{green},{blue})"


def _fitting(panels: dict[str, Heatmap], width: int) -> list[dict[str, Heatmap]]:
    """Panels in rows that fit the terminal."""
    rows: list[dict[str, Heatmap]] = [{}]
    used = 0
    for name, heatmap in panels.items():
        needed = 2 * heatmap.values.shape[1] + 3
        if used and used + needed > width:
            rows.append({})
            used = 0
        rows[-1][name] = heatmap
        used += needed
    return rows
