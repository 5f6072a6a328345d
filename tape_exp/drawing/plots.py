"""Figures as functions of data: curves, grids and matrices; each writes a file.

The suffix of ``path`` is the format. ``formats`` names further ones, such as ``("pdf", "png")``,
that are written beside it. The same data give the same bytes.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from tape_exp.drawing.style import (
    DIVERGING,
    DOUBLE,
    LETTER,
    REFERENCE,
    SCALE,
    SINGLE,
    SMALL,
    TYPE,
    LineStyle,
    categorical,
    fitted,
    in_print,
    new_figure,
    save,
)
from tape_exp.runs.evaluation import Heatmap

MARKED = 16  # points of a line that have a marker, at most
DODGE = 0.014  # of the horizontal axis, between points of one place
QUANTILE = 0.99  # where a colour scale ends if a few entries are far above the others
KINDS = {"attention": "attention", "products": "E·Eᵀ"}  # of the matrices of a run


@dataclass(frozen=True)
class Line:
    """A series of points.

    Args:
        name: what the legend calls it.
        x, y: the points.
        low, high: the ends of each point's interval, None where there is none.
        style: :data:`REFERENCE` for a line to compare the others with; legends name it last.
        joined: whether a line goes through the points.
        hollow: open markers, which are in the legend only if no filled line has their style.
        dots: the points that these are means of.
        width: in points, if it is not the usual one.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float | None] = ()
    high: Sequence[float | None] = ()
    style: LineStyle = field(default_factory=lambda: categorical(0))
    joined: bool = True
    hollow: bool = False
    dots: Sequence[tuple[float, float]] = ()
    width: float | None = None


@dataclass(frozen=True)
class Panel:
    """A pair of axes.

    Args:
        marks: places of vertical lines, such as the trained length.
        ticks: places of labels on the horizontal axis, ``ticklabels`` what they say.
        ylim: the ends of the vertical axis.
        log_x: whether lengths double at equal distances.
        log_y: whether values grow by powers of ten.
        dodge: whether the points of one place are side by side, with intervals as bars, which are
            cut off where they would squeeze the points.
    """

    title: str
    xlabel: str
    ylabel: str
    lines: Sequence[Line]
    marks: Sequence[float] = ()
    ticks: Sequence[float] = ()
    ticklabels: Sequence[str] = ()
    ylim: tuple[float, float] | None = None
    log_x: bool = False
    log_y: bool = False
    dodge: bool = False


PERCENT = (-4.0, 104.0)  # ``ylim`` of percentages


def mean_line(name: str, x: Sequence[float], runs: Any, style: LineStyle) -> Line:
    """The mean over runs, (runs, points), in a band from the lowest to the highest."""
    values = np.array(runs)
    return Line(name, x, values.mean(0), values.min(0), values.max(0), style)


@in_print
def curves(
    panels: Sequence[Panel],
    path: Path,
    title: str = "",
    *,
    columns: int = 2,
    height: float = 2.1,
    shared: bool = True,
    formats: Sequence[str] = (),
) -> Path:
    """Draw panels of lines, with one legend for all below them.

    Args:
        columns: panels in a row; the figure is as wide as one column of a paper if this is 1.
        height: of a row, in inches.
        shared: whether panels share the vertical axis, and those of a column the horizontal one.
    """
    across = min(len(panels), columns)
    rows, width = math.ceil(len(panels) / across), SINGLE if across == 1 else DOUBLE
    handles = _handles(panels)
    longest = max((len(str(handle.get_label())) for handle in handles), default=0)
    in_a_row = max(1, min(len(handles), int(width / (0.4 + longest * LETTER * SMALL / 72))))
    below = math.ceil(len(handles) / in_a_row) * 1.6 * SMALL / 72 + 0.1
    figure = new_figure(width, rows * height + below, title)
    sharex: Any = "col" if shared else False
    axes = figure.subplots(rows, across, squeeze=False, sharex=sharex, sharey=shared)
    for place, (axis, panel) in enumerate(zip(axes.flat, panels, strict=False)):
        _draw_panel(axis, panel)
        axis.set_title(fitted(panel.title, width / across - 0.45))
        axis.tick_params(labelbottom=True)
        if shared and place + across < len(panels):
            axis.set_xlabel("")
            axis.tick_params(labelbottom=False)
        if shared and place % across and panel.ylabel == panels[place - 1].ylabel:
            axis.set_ylabel("")
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    figure.legend(handles=handles, loc="outside lower center", ncols=in_a_row)
    return save(figure, path, formats)


def _handles(panels: Sequence[Panel]) -> list[Line2D]:
    """A handle for every name, references last."""
    lines = [line for panel in panels for line in panel.lines]
    filled = {line.style for line in lines if not line.hollow}
    named = {line.name: line for line in lines if not (line.hollow and line.style in filled)}
    ordered = sorted(named.values(), key=lambda line: line.style == REFERENCE)
    return [Line2D([], [], label=line.name, **_properties(line)) for line in ordered]


def _properties(line: Line) -> dict[str, Any]:
    """The properties of a line in matplotlib's words."""
    return {
        "color": line.style.colour,
        "marker": line.style.marker,
        "linestyle": line.style.dash if line.joined else "none",
        "markerfacecolor": "none" if line.hollow else line.style.colour,
        **({"linewidth": line.width} if line.width else {}),
    }


def _draw_panel(axis: Any, panel: Panel) -> None:
    for line in panel.lines:
        _draw_line(axis, line, panel)
    for place in panel.marks:
        axis.axvline(place, color="grey", linestyle=":", linewidth=0.8)
    if panel.log_x:
        axis.set_xscale("log", base=2)
    if panel.log_y:
        axis.set_yscale("log")
    if panel.ylim or panel.dodge:
        axis.set_ylim(panel.ylim or _range(panel.lines))
    axis.grid()
    axis.set_xlabel(panel.xlabel)
    axis.set_ylabel(panel.ylabel)
    if panel.ticks:
        axis.set_xticks(panel.ticks, panel.ticklabels or [f"{tick:g}" for tick in panel.ticks])
        axis.xaxis.minorticks_off()


def _draw_line(axis: Any, line: Line, panel: Panel) -> None:
    """Draw a line, its dots and its intervals."""
    x = {place: _dodged(place, line, panel) if panel.dodge else place for place in line.x}
    colour, every = line.style.colour, math.ceil(len(x) / MARKED)
    axis.plot([*x.values()], line.y, label=line.name, markevery=every, **_properties(line))
    for place, y in line.dots:
        axis.plot(x[place], y, ".", color=colour, markersize=2.5, alpha=0.6, markeredgewidth=0)
    ends = zip(line.x, line.low, line.high, strict=True) if len(line.low) else ()
    known = [(x[place], low, high) for place, low, high in ends if None not in (low, high)]
    if not known or all(low == high for _, low, high in known):
        return
    if panel.dodge or not line.joined or len(known) < len(line.x):
        axis.vlines(*zip(*known, strict=True), color=colour, alpha=0.5, linewidth=0.9)
    else:
        axis.fill_between(*zip(*known, strict=True), color=colour, alpha=0.12, linewidth=0)


def _dodged(place: float, line: Line, panel: Panel) -> float:
    """Where a line's point is drawn, beside those of other styles at the same place."""
    here = list(dict.fromkeys(other.style for other in panel.lines if place in other.x))
    steps = DODGE * (here.index(line.style) - (len(here) - 1) / 2)
    places = [x for other in panel.lines for x in other.x]
    if panel.log_x:
        return place * (max(places) / min(places)) ** steps
    return place + (max(places) - min(places)) * steps


def _range(lines: Sequence[Line]) -> tuple[float, float]:
    """A vertical axis that has all points, and as much of the intervals as leaves these legible."""
    points = [y for line in lines for y in (*line.y, *(y for _, y in line.dots))]
    pairs = [pair for line in lines for pair in zip(line.low, line.high, strict=True)]
    ends = [(low, high) for low, high in pairs if low is not None and high is not None]
    low, high = min(points), max(points)
    reach = max(0.25 * (high - low), float(np.median([b - a for a, b in ends])) if ends else 0.0)
    low = min(low, max(low - reach, min((a for a, _ in ends), default=low)))
    high = max(high, min(high + reach, max((b for _, b in ends), default=high)))
    margin = 0.05 * (high - low) or 1.0
    return low - margin, high + margin


@in_print
def grids(
    panels: Mapping[str, Heatmap | np.ndarray],
    path: Path,
    title: str = "",
    *,
    trained: tuple[int, int] = (0, 0),
    label: str = "exact match (%)",
    axes: tuple[str, str] = ("row", "column"),
    formats: Sequence[str] = (),
) -> Path:
    """Draw percentages over two axes: a heatmap for each name, with one colour bar from 0 to 100.

    What was seen in training is framed. Where rows are not an axis, as in the grid of a task that
    varies the length only, each row is a curve.

    Args:
        panels: name -> grid; two spaces in a name, as before its mean, become a line break.
        trained, label, axes: of grids that are plain arrays: how many rows and columns were seen in
            training, the words of the colour bar, and those of rows and columns.
    """
    heatmaps = {
        name.replace("  ", "\n"): grid
        if isinstance(grid, Heatmap)
        else Heatmap(np.asarray(grid, float), label, *axes, trained)
        for name, grid in panels.items()
    }
    first = next(iter(heatmaps.values()))
    if not first.row_label:
        return curves(_as_curves(heatmaps), path, title, formats=formats)
    width = SINGLE if len(heatmaps) == 1 else DOUBLE
    rows = math.ceil(len(heatmaps) / 5)
    across = math.ceil(len(heatmaps) / rows)
    side = min((width - 1.2) / across - 0.05, 2.2)
    square = len({*first.values.shape}) == 1
    tall = side if square else min(side, 1.6)
    above = max(fitted(name, side).count("\n") for name in heatmaps) * 1.4 * TYPE / 72
    figure = new_figure(
        width, rows * (tall + above + (0.35 if first.columns else 0.27)) + 0.3, title
    )
    same = len({(h.values.shape, *h.rows, *h.columns) for h in heatmaps.values()}) == 1
    places = figure.subplots(rows, across, squeeze=False, sharex=same, sharey=same)
    image: Any = None
    for place, (axis, (name, heatmap)) in enumerate(
        zip(places.flat, heatmaps.items(), strict=False)
    ):
        image = _draw_grid(axis, heatmap)
        axis.set_title("\n".join(fitted(part, side) for part in name.split("\n")))
        if place % across == 0:
            axis.set_ylabel(fitted(heatmap.row_label, 1.3 * tall))
        axis.tick_params(labelbottom=not same or place + across >= len(heatmaps))
    for axis in places.flat[len(heatmaps) :]:
        axis.set_visible(False)
    figure.supxlabel(first.column_label, fontsize=TYPE)
    bar: Any = {"shrink": 0.9, "aspect": 14 * rows, "pad": 0.02}
    figure.colorbar(image, ax=places.ravel().tolist(), label=first.title, **bar)
    return save(figure, path, formats)


def _as_curves(heatmaps: Mapping[str, Heatmap]) -> list[Panel]:
    """One panel with a line for each row of a single grid; else one for each row, a line a grid."""
    first = next(iter(heatmaps.values()))
    x = list(range(1, len(first.values[0]) + 1))
    seen = [first.trained[1] + 0.5] if 0 < first.trained[1] < len(x) else []
    axis: Any = {"marks": seen, "ticks": x, "ticklabels": first.columns, "ylim": PERCENT}
    words = (first.column_label, first.title)
    rows = {
        row: [
            Line(name.replace("\n", " "), x, heatmap.values[place], style=categorical(number))
            for number, (name, heatmap) in enumerate(heatmaps.items())
        ]
        for place, row in enumerate(first.rows)
    }
    if len(heatmaps) > 1:
        return [Panel(row, *words, lines, **axis) for row, lines in rows.items()]
    (name,) = heatmaps
    lines = [
        Line(row, x, line.y, style=categorical(n)) for n, (row, (line,)) in enumerate(rows.items())
    ]
    return [Panel(name, *words, lines, **axis)]


def _draw_grid(axis: Any, heatmap: Heatmap) -> Any:
    """Draw a grid, rows downward, with the names of its rows and columns; returns the image."""
    rows, columns = heatmap.values.shape
    box: Any = {"extent": (0.5, columns + 0.5, rows + 0.5, 0.5), "interpolation": "none"}
    aspect: Any = "equal" if rows == columns else "auto"
    image = axis.imshow(heatmap.values, cmap=SCALE, vmin=0, vmax=100, aspect=aspect, **box)
    height, width = heatmap.trained
    if height and width:
        style: Any = {"fill": False, "edgecolor": "tab:red", "linestyle": "--", "linewidth": 1}
        axis.add_patch(Rectangle((0.5, 0.5), width, height, **style))
    axis.set_xticks(*ticks(columns, heatmap.columns, 6), rotation=45 if heatmap.columns else 0)
    axis.set_yticks(*ticks(rows, heatmap.rows, 6))
    return image


def ticks(n: int, names: Sequence[str], few: int = 10) -> tuple[list[int], list[str]]:
    """The places and labels of ticks: all rows or columns if few or named, else about four."""
    step = 1 if names or n <= few else 2 if n <= 10 else n // 4
    places = list(range(step, n + 1, step))
    return places, list(names) or [str(place) for place in places]


@in_print
def matrices(
    panels: Mapping[str, np.ndarray],
    path: Path,
    title: str = "",
    *,
    label: str | Mapping[str, str] = "",
    shared: bool = True,
    causal: Collection[str] = (),
    formats: Sequence[str] = (),
) -> Path:
    """Draw matrices of (query, key), queries downward, positions from 0.

    Panels of one label share a scale and its colour bar. If there are negative values, white is 0
    and the scale symmetric. A scale ends at the 99th percentile, and its bar is pointed, where few
    entries are far above all others.

    Args:
        panels: name -> (T, T); NaN stays blank, and is cut off where all have it at their ends.
        label: of the colour bar; of several kinds of matrices, name -> label.
        shared: otherwise each panel has a scale and a colour bar of its own.
        causal: names of panels that leave keys after the query blank.
    """
    drawn = {
        name: np.where(np.tri(*values.shape), values, np.nan) if name in causal else values
        for name, values in panels.items()
    }
    filled = [np.argwhere(np.isfinite(values)).max(0) + 1 for values in drawn.values()]
    height, length = np.max(filled, 0)
    labels = label if isinstance(label, Mapping) else dict.fromkeys(panels, label)
    groups: dict[str, list[str]] = {}
    for name in panels:
        groups.setdefault(labels[name] if shared else name, []).append(name)
    rows = [[*panels]]
    if len(panels) > 4:
        rows = [names[n : n + 4] for names in groups.values() for n in range(0, len(names), 4)]
    across, width = max(map(len, rows)), SINGLE if len(panels) == 1 else DOUBLE
    bars = max(len({labels[name] if shared else name for name in row}) for row in rows)
    side = min((width - 0.45 - 0.65 * bars) / across - 0.06, 2.0)
    figure = new_figure(width, len(rows) * (side + 0.25) + 0.3, title)
    axes = figure.subplots(len(rows), across, squeeze=False, sharex=True, sharey=True)
    for axis in axes.flat:
        axis.set_visible(False)
    axis_of = {name: axes[i, j] for i, names in enumerate(rows) for j, name in enumerate(names)}
    for names in groups.values():
        values = np.concatenate([drawn[name].ravel() for name in names])
        low, high, extend = colour_range(values)
        scale: Any = {"cmap": DIVERGING if low < 0 else SCALE, "vmin": low, "vmax": high}
        image: Any = None
        for name in names:
            axis = axis_of[name]
            axis.set_visible(True)
            image = axis.imshow(drawn[name][:height, :length], interpolation="none", **scale)
            axis.set_title(fitted(name, side))
            axis.locator_params(nbins=4, integer=True)
        bar: Any = {"aspect": 16 * math.ceil(len(names) / across), "pad": 0.02, "shrink": 0.9}
        own = [axis_of[name] for name in names]
        figure.colorbar(image, ax=own, label=labels[names[0]], extend=extend, **bar)
    for names in rows:
        axis_of[names[0]].set_ylabel("query position")
    for column in axes.T:
        bottom = [axis for axis in column if axis.get_visible()][-1]
        bottom.set_xlabel("key position")
        bottom.tick_params(labelbottom=True)
    return save(figure, path, formats)


def colour_range(values: np.ndarray) -> tuple[float, float, str]:
    """The ends of a colour scale, and which of them are exceeded, as matplotlib says it."""
    values = values[np.isfinite(values)]
    low, high = float(values.min()), float(values.max())
    if low >= 0:
        top = _top(values)
        return low, top, "max" if top < high else "neither"
    top = _top(np.abs(values))
    beyond = {(False, False): "neither", (True, False): "min", (False, True): "max"}
    return -top, top, beyond.get((low < -top, high > top), "both")


def _top(values: np.ndarray) -> float:
    """The largest value, or the 99th percentile if it is far below that."""
    low, most, high = values.min(), np.quantile(values, QUANTILE), values.max()
    return float(most if high - low > 3 * (most - low) > 0 else high)


def run_matrices(run: Mapping[str, np.ndarray], path: Path, title: str = "") -> Path:
    """Draw the matrices of a run, whose names are such as ``attention@2 first_solved``.

    Successive layers of the same matrix, as E·Eᵀ of an encoding without updates, share a panel.
    """
    merged: dict[str, list[list[str]]] = {}
    for key, values in run.items():
        kind, _, place = key.partition("@")
        groups = merged.setdefault(f"{kind} {place.partition(' ')[2]}", [])
        if groups and np.allclose(run[groups[-1][0]], values, equal_nan=True):
            groups[-1].append(key)
        else:
            groups.append([key])
    names = {keys[0]: matrix_name(*keys) for groups in merged.values() for keys in groups}
    panels = {name: run[key] for key, name in names.items()}
    label = {name: KINDS[key.partition("@")[0]] for key, name in names.items()}
    causal = [name for name, kind in label.items() if kind == "attention"]
    return matrices(panels, path, title, label=label, causal=causal)


def matrix_name(*keys: str) -> str:
    """The title of a run's matrix ``products@3``, or of equal ones: ``E·Eᵀ, layers 1 to 3``."""
    kind, _, place = keys[0].partition("@")
    layer, _, sample = place.partition(" ")
    last = keys[-1].partition("@")[2].partition(" ")[0]
    layers = f"layer {layer}" if len(keys) == 1 else f"layers {layer} to {last}"
    return ", ".join(filter(None, (KINDS[kind], layers, sample.replace("_", " "))))
