"""Figures as functions of data: curves and grids; each writes a file of a column's width.

The suffix of ``path`` is the format. The same data give the same bytes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rcParams
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import LogLocator

from tape_exp.drawing.style import (
    LETTER,
    REFERENCE,
    SCALE,
    SMALL,
    TYPE,
    WIDTH,
    LineStyle,
    categorical,
    fitted,
    in_print,
    new_figure,
    save,
)
from tape_exp.results.evaluation import Heatmap

NEAR = 0.015  # of the height of a panel's lines: so far apart, one hides another
WIDER = 1.8  # points, for each line that hides another
MARKED = 16  # points of a line that have a marker, at most
PERCENT = (-4.0, 104.0)  # ``ylim`` of percentages
AT_TRAINED: dict[str, Any] = {"color": "grey", "linestyle": ":", "linewidth": 0.8}
TRAINED_FRAME: dict[str, Any] = {"color": "tab:red", "linestyle": "--", "linewidth": 1}
BESIDE = 0.5  # inches of a panel that its axis and its labels take


@dataclass(frozen=True)
class Line:
    """A series of points."""

    name: str  # in the legend; empty: not in it
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float | None] = ()  # the ends of each point's interval, None where there is none
    high: Sequence[float | None] = ()
    style: LineStyle = field(default_factory=lambda: categorical(0))  # legends name REFERENCE last
    joined: bool = True  # by a line through the points, and a band through their intervals
    hollow: bool = False  # markers


@dataclass(frozen=True)
class Panel:
    """A pair of axes."""

    title: str
    xlabel: str
    ylabel: str
    lines: Sequence[Line]
    trained: float | None = None  # the trained length, where a vertical line is
    ticks: Sequence[float] = ()  # places of labels on the horizontal axis
    ticklabels: Sequence[str] = ()  # what they say
    ylim: tuple[float, float] | None = None
    log_x: bool = False  # ticks are lengths, which double at equal distances
    log_y: bool = False  # values grow by powers of ten
    bars: bool = False  # intervals are bars, not bands


@dataclass(frozen=True)
class GridPanel:
    """A heatmap with what is above it, where two spaces break the line."""

    title: str
    heatmap: Heatmap


def mean_line(name: str, x: Sequence[float], runs: Any, style: LineStyle) -> Line:
    """Draw the mean over runs, (runs, points), in a band from the lowest to the highest."""
    values = np.array(runs)
    return Line(name, x, values.mean(0), values.min(0), values.max(0), style)


@in_print
def curves(panels: Sequence[Panel], path: Path, title: str = "", shared: bool = True) -> Path:
    """Draw panels of lines, with one legend for all below them; many, or those that share axes, in
    pairs.
    """
    across = min(len(panels), 2) if shared or len(panels) > 4 else 1
    rows = math.ceil(len(panels) / across)
    panel_height = 2.0 if across == 1 else 1.4  # inches
    handles = _handles(panels)
    names_a_row = _names_a_row(handles)
    legend_height = math.ceil(len(handles) / names_a_row) * 1.6 * SMALL / 72 + 0.1
    figure = new_figure(rows * panel_height + legend_height, title)
    axes = figure.subplots(rows, across, squeeze=False, sharex=shared, sharey=shared)
    for place, (axis, panel) in enumerate(zip(axes.flat, panels, strict=False)):
        _draw_panel(axis, panel, WIDTH / across - BESIDE)
        axis.set_title(fitted(panel.title, WIDTH / across - 0.45))
        axis.set_ylabel(fitted(panel.ylabel, panel_height - 0.45))
        last = not shared or place + across >= len(panels)
        axis.tick_params(labelbottom=last)
        axis.set_xlabel(panel.xlabel if last else "")
        if shared and place % across and panel.ylabel == panels[place - 1].ylabel:
            axis.set_ylabel("")
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    figure.legend(handles=handles, loc="outside lower center", ncols=names_a_row)
    return save(figure, path)


def _names_a_row(handles: Sequence[Line2D]) -> int:
    """Say how many names of a legend fit beside each other, each as wide as the longest."""
    letters = max((len(str(handle.get_label())) for handle in handles), default=0)
    width = 0.4 + letters * LETTER * SMALL / 72  # inches: the sample of the line, and the name
    return max(1, min(len(handles), int(WIDTH / width)))


def _handles(panels: Sequence[Panel]) -> list[Line2D]:
    """Make a handle for every name, references and the line at the trained length last."""
    named: dict[str, Line] = {}
    for panel in panels:
        named |= {line.name: line for line in panel.lines if line.name}
    ordered = sorted(named.values(), key=lambda line: line.style == REFERENCE)
    handles = [Line2D([], [], label=line.name, **_properties(line)) for line in ordered]
    if any(panel.trained for panel in panels):
        handles.append(Line2D([], [], label="trained length", **AT_TRAINED))
    return handles


def _properties(line: Line) -> dict[str, Any]:
    """Write the properties of a line in matplotlib's words."""
    return {
        "color": line.style.colour,
        "marker": line.style.marker,
        "linestyle": line.style.dash if line.joined else "none",
        "markerfacecolor": "none" if line.hollow else line.style.colour,
    }


def _draw_panel(axis: Any, panel: Panel, width: float) -> None:
    """Draw the lines and the axes of a panel, which is so many inches wide."""
    for number, line in enumerate(panel.lines):
        every = math.ceil(len(line.x) / MARKED)
        wider = WIDER * _hidden_by(panel, number)
        sizes = {
            "linewidth": rcParams["lines.linewidth"] + wider,
            "markersize": rcParams["lines.markersize"] + wider,
        }
        axis.plot(line.x, line.y, markevery=every, **_properties(line), **sizes)
        _draw_intervals(axis, line, panel)
    if panel.trained:
        axis.axvline(panel.trained, **AT_TRAINED)
    if panel.log_x:
        axis.set_xscale("log", base=2)
    if panel.log_y:
        axis.set_yscale("log")
        _label_logarithms(axis)
    if panel.ylim:
        axis.set_ylim(panel.ylim)
    axis.grid()
    if panel.ticks:
        _label_ticks(axis, panel, width)


def _hidden_by(panel: Panel, number: int) -> int:
    """Count the lines over the whole length of a line that are drawn after it: it is drawn wider,
    so that it is seen around them.
    """
    line = panel.lines[number]
    if not line.joined:
        return 0
    scale = np.log if panel.log_y else np.asarray
    heights = np.concatenate([scale(other.y) for other in panel.lines])
    near = NEAR * np.ptp(heights)
    count = 0
    for other in panel.lines[number + 1 :]:
        if list(other.x) == list(line.x):
            apart = np.abs(scale(other.y) - scale(line.y))
            count += bool((apart <= near).all())
    return count


def _label_ticks(axis: Any, panel: Panel, width: float) -> None:
    """Label the horizontal axis of a panel that is so many inches wide: lengths as far as there is
    room, and words aslant where a line of one is wider than its place.
    """
    axis.set_xticks(panel.ticks)
    axis.xaxis.minorticks_off()
    if panel.ticklabels:
        words = [line for label in panel.ticklabels for line in label.split("\n")]
        widest = max(map(len, words)) * LETTER * SMALL / 72
        if widest > width / len(panel.ticklabels):
            aslant = [label.replace("\n", " ") for label in panel.ticklabels]
            axis.set_xticklabels(aslant, rotation=30, ha="right", rotation_mode="anchor")
        else:
            axis.set_xticklabels(panel.ticklabels)
    elif panel.log_x:
        axis.set_xticklabels(labels_with_room(panel.ticks, panel.trained, width))
    else:
        axis.set_xticklabels([f"{tick:g}" for tick in panel.ticks])


def _label_logarithms(axis: Any) -> None:
    """Label powers of ten on the vertical axis, and 2 and 5 times them where there are few."""
    low, high = np.log10(axis.get_ylim())
    if math.floor(high) - math.ceil(low) < 2:
        axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.yaxis.set_major_formatter("{x:g}")
    axis.yaxis.minorticks_off()


def labels_with_room(lengths: Sequence[float], trained: float | None, width: float) -> list[str]:
    """List the labels of ticks at lengths on a logarithmic axis of so many inches; empty where
    another one is in the way: of the trained length, the longest, the shortest, or a power of two.
    """
    ascending = sorted(lengths)
    powers = [length for length in ascending if math.log2(length).is_integer()]
    ends = [ascending[-1], ascending[0]]
    known = [trained] if trained in ascending else []
    octave = 0.9 * width / math.log2(ascending[-1] / ascending[0]) if len(ascending) > 1 else width
    letter = LETTER * SMALL / 72
    kept: dict[float, str] = {}
    for length in dict.fromkeys([*known, *ends, *powers[::-1], *ascending[::-1]]):
        label = f"{length:g}"
        free = True
        for other, text in kept.items():
            apart = octave * abs(math.log2(length / other))
            free = free and apart > letter * (len(label) + len(text) + 1) / 2
        if free:
            kept[length] = label
    return [kept.get(length, "") for length in lengths]


def _draw_intervals(axis: Any, line: Line, panel: Panel) -> None:
    """Draw the intervals of the points that have one: a band where all have, else bars. Those of
    percentages end at 0 and 100.
    """
    x = []
    lows = []
    highs = []
    if len(line.low):
        for place, low, high in zip(line.x, line.low, line.high, strict=True):
            if low is not None and high is not None:
                x.append(place)
                lows.append(low)
                highs.append(high)
    if lows == highs:  # of a single run, or there are none
        return
    if panel.ylim == PERCENT:
        lows = [*np.clip(lows, 0, 100)]
        highs = [*np.clip(highs, 0, 100)]
    if panel.bars or not line.joined or len(x) < len(line.x):
        axis.vlines(x, lows, highs, color=line.style.colour, alpha=0.5, linewidth=0.9)
    else:
        axis.fill_between(x, lows, highs, color=line.style.colour, alpha=0.1, linewidth=0)


@in_print
def grids(panels: Sequence[GridPanel], path: Path, title: str = "") -> Path:
    """Draw percentages over two axes: a heatmap for each panel, with one colour bar from 0 to 100.

    What was seen in training is framed. Where the rows of a grid are not an axis, as of a task that
    varies the length only, each row is a curve.
    """
    heatmaps = [panel.heatmap for panel in panels]
    first = heatmaps[0]
    if not first.row_label:
        return curves([_as_curve(panel) for panel in panels], path, title)
    across = _grids_a_row(len(heatmaps))
    rows = math.ceil(len(heatmaps) / across)
    side = (WIDTH - 0.9) / across - 0.05  # inches of a grid
    titles = [_lines_of(panel.title, side) for panel in panels]
    xlabel = first.column_label
    if any(all(grid.trained) for grid in heatmaps):
        xlabel += "\nframed: seen in training"
    around = 0.2 + (xlabel.count("\n") + 1) * 0.1
    figure = new_figure(_height_of_rows(titles, across, side, bool(first.columns)) + around, title)
    same = _have_the_same_axes(heatmaps)
    axes = figure.subplots(rows, across, squeeze=False, sharex=same, sharey=same)
    image: Any = None
    for place, (axis, grid) in enumerate(zip(axes.flat, heatmaps, strict=False)):
        image = _draw_grid(axis, grid)
        axis.set_title("\n".join(titles[place]))
        axis.tick_params(labelbottom=not same or place + across >= len(heatmaps))
    for axis in axes.flat[len(heatmaps) :]:
        axis.set_visible(False)
    figure.supxlabel(xlabel, fontsize=TYPE)
    figure.supylabel(fitted(first.row_label, rows * (side + 0.3)), fontsize=TYPE)
    every = axes.ravel().tolist()
    figure.colorbar(image, ax=every, label=first.title, shrink=0.9, aspect=14 * rows, pad=0.02)
    return save(figure, path)


def _lines_of(title: str, width: float) -> list[str]:
    """Break the title of a grid at two spaces, and where it is wider than so many inches."""
    lines = []
    for part in title.split("  "):
        lines += fitted(part, width).split("\n")
    return lines


def _height_of_rows(
    titles: Sequence[Sequence[str]], across: int, side: float, named_columns: bool
) -> float:
    """Return the inches of rows of grids below their titles, which are given as lines."""
    below = 0.35 if named_columns else 0.27
    height = 0.0
    for begin in range(0, len(titles), across):
        lines = max(len(title) for title in titles[begin : begin + across])
        height += side + below + (lines - 1) * 1.4 * TYPE / 72
    return height


def _have_the_same_axes(grids: Sequence[Heatmap]) -> bool:
    """Say whether all grids have the same rows and columns, so that they can share axes."""
    first = grids[0]
    for grid in grids:
        same_names = grid.rows == first.rows and grid.columns == first.columns
        if grid.values.shape != first.values.shape or not same_names:
            return False
    return True


def _grids_a_row(count: int) -> int:
    """Say how many of so many grids are drawn beside each other."""
    if count < 4:
        return count
    return 2 if count == 4 else 3


def _as_curve(panel: GridPanel) -> Panel:
    """Draw a line for each row, over the lengths that the columns name."""
    heatmap = panel.heatmap
    lengths = [int(name) for name in heatmap.columns] or [*range(1, heatmap.values.shape[1] + 1)]
    lines = []
    for number, (name, y) in enumerate(zip(heatmap.rows, heatmap.values, strict=True)):
        lines.append(Line(name, lengths, y, style=categorical(number)))
    axis = length_axis(lengths, heatmap.trained_length)
    title = panel.title.replace("  ", ", ")
    return Panel(title, heatmap.column_label, heatmap.title, lines, ylim=PERCENT, **axis)


def length_axis(lengths: Sequence[int], trained: float | None) -> dict[str, Any]:
    """Describe the horizontal axis of a panel over lengths, as keywords of :class:`Panel`."""
    return {"ticks": lengths, "trained": trained, "log_x": min(lengths) > 0}


def _draw_grid(axis: Any, heatmap: Heatmap) -> Any:
    """Draw a grid, rows downward, with the names of its rows and columns; returns the image."""
    rows, columns = heatmap.values.shape
    image = axis.imshow(
        heatmap.values,
        cmap=SCALE,
        vmin=0,
        vmax=100,
        aspect="equal" if rows == columns else "auto",
        extent=(0.5, columns + 0.5, rows + 0.5, 0.5),
        interpolation="none",
    )
    height, width = heatmap.trained
    if height and width:
        axis.add_patch(Rectangle((0.5, 0.5), width, height, fill=False, **TRAINED_FRAME))
    below = ticks(columns, heatmap.columns, 6)
    axis.set_xticks([*below], [*below.values()], rotation=45 if heatmap.columns else 0)
    beside = ticks(rows, heatmap.rows, 6)
    axis.set_yticks([*beside], [*beside.values()])
    return image


def ticks(n: int, names: Sequence[str], few: int = 10) -> dict[int, str]:
    """Return the labels of rows or columns by their place, from 1: of all if these are few or
    named, else of about four.

    >>> ticks(2, ["sums", "products"]), ticks(40, [])
    ({1: 'sums', 2: 'products'}, {10: '10', 20: '20', 30: '30', 40: '40'})
    """
    if names:
        return dict(enumerate(names, 1))
    if n <= few:
        step = 1
    elif n <= 10:
        step = 2
    else:
        step = n // 4
    return {place: str(place) for place in range(step, n + 1, step)}
