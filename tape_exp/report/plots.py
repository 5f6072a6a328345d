"""The figures of artifacts and runs as the page's script draws them: grids and lines."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tape_exp.drawing.curves import Curves, Line, Panel
from tape_exp.drawing.figures import Figure
from tape_exp.drawing.heatmap import Heatmaps
from tape_exp.drawing.looks import series
from tape_exp.drawing.patterns import colour_range, visible
from tape_exp.runs.evaluation import Heatmap

LOSSES = {"train/loss": "training loss", "val/loss": "validation loss"}


@dataclass
class Grid:
    """A heatmap: ``z[row][column]``, rows downward, None where there is nothing."""

    title: str
    z: list[list[float | None]]
    x: list[str]
    y: list[str]
    xlabel: str
    ylabel: str
    label: str
    range: tuple[float, float]
    signed: bool = False
    trained: tuple[int, int] | None = None  # the corner of rows and columns that training saw


def plots_of(figure: Figure) -> list[Grid | Panel]:
    """The panels of a figure, each of which is a plot on the page."""
    if isinstance(figure, Curves):
        return [*figure.panels]
    if isinstance(figure, Heatmaps):
        return [_of_heatmap(name, heatmap) for name, heatmap in figure.panels.items()]
    return [
        _of_matrix(name, visible(matrix, name in figure.causal), name in figure.signed)
        for name, matrix in figure.panels.items()
    ]


def _of_heatmap(name: str, heatmap: Heatmap) -> Grid:
    height, width = heatmap.values.shape
    return Grid(
        name,
        _rounded(heatmap.values),
        heatmap.columns or [str(n) for n in range(1, width + 1)],
        heatmap.rows or [str(n) for n in range(1, height + 1)],
        heatmap.column_label,
        heatmap.row_label,
        heatmap.title,
        (0.0, 100.0),
        trained=heatmap.trained if all(heatmap.trained) else None,
    )


def _of_matrix(name: str, matrix: np.ndarray, signed: bool) -> Grid:
    """Queries downward, keys to the right, positions counted from 0."""
    y, x = ([str(n) for n in range(size)] for size in matrix.shape)
    labels = ("key position", "query position", "value")
    low, high, _ = colour_range(matrix, signed)
    return Grid(name, _rounded(matrix), x, y, *labels, (low, high), signed)


def _rounded(values: np.ndarray) -> list[list[float | None]]:
    """Four significant digits: what a heatmap shows, at a third of the size."""
    return [[float(f"{v:.4g}") if np.isfinite(v) else None for v in row] for row in values]


def curve(losses: dict[str, dict[str, list[float]]]) -> Panel:
    """The losses of a run while it trained, from its record."""
    lines = [
        Line(LOSSES.get(name, name), loss["step"], loss["value"], look=series(number))
        for number, (name, loss) in enumerate(losses.items())
    ]
    return Panel("training", "step", "loss (nats)", lines)


def as_json(plot: Grid | Panel) -> dict[str, Any]:
    """What ``figures.js`` draws."""
    if isinstance(plot, Grid):
        return asdict(plot) | {"kind": "grid"}
    keys = ("name", "x", "y", "low", "high", "hidden", "joined", "hollow", "each")
    lines = [{key: getattr(line, key) for key in keys} | asdict(line.look) for line in plot.lines]
    axes = ("title", "xlabel", "ylabel", "marks", "ticks", "logarithmic", "powers", "percent")
    return {key: getattr(plot, key) for key in axes} | {"kind": "lines", "lines": lines}


def counted(items: Sequence[object], name: str) -> str:
    """``1 row``, ``8 rows``."""
    return f"{len(items)} {name}" if len(items) == 1 else f"{len(items)} {name}s"


def describe(plot: Grid | Panel) -> str:
    """A plot in a sentence or two, for those who do not see it."""
    if isinstance(plot, Panel):
        names = ", ".join(line.name for line in plot.lines)
        return f"Lines of {plot.ylabel or 'values'} against {plot.xlabel}: {names}."
    values = [value for row in plot.z for value in row if value is not None]
    text = (
        f"Heatmap of {plot.label}, {counted(plot.y, 'row')} ({plot.ylabel}) by "
        f"{counted(plot.x, 'column')} ({plot.xlabel}); from {min(values):.4g} to "
        f"{max(values):.4g}, mean {sum(values) / len(values):.4g}."
    )
    if plot.trained:
        text += (
            f" Training saw the first {plot.trained[0]} rows and {plot.trained[1]} columns, "
            "which are framed."
        )
    return text
