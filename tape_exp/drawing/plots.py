"""Figures as functions of data: curves, grids and matrices; each writes a file of a column's width.

The suffix of ``path`` is the format. The same data give the same bytes.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import LogLocator

from tape_exp.drawing.style import (
    DIVERGING,
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
from tape_exp.runs.evaluation import Heatmap

MARKED = 16  # points of a line that have a marker, at most
MATRICES = {"attention": "attention", "products": "E·Eᵀ"}  # of the matrices of a run
SYMBOLS = 24  # letters below a matrix, at most
PERCENT = (-4.0, 104.0)  # ``ylim`` of percentages
AT_TRAINED: dict[str, Any] = {"color": "grey", "linestyle": ":", "linewidth": 0.8}
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
    for line in panel.lines:
        every = math.ceil(len(line.x) / MARKED)
        axis.plot(line.x, line.y, markevery=every, **_properties(line))
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
        labels = panel.ticklabels
        if panel.log_x:
            labels = labels_with_room(panel.ticks, panel.trained, width)
        axis.set_xticks(panel.ticks, labels or [f"{tick:g}" for tick in panel.ticks])
        axis.xaxis.minorticks_off()


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
    if not len(line.low):
        return
    points = zip(line.x, line.low, line.high, strict=True)
    intervals = [(x, low, high) for x, low, high in points if None not in (low, high)]
    if all(low == high for _, low, high in intervals):
        return
    x, low, high = zip(*intervals, strict=True)
    if panel.ylim == PERCENT:
        low = np.clip(low, 0, 100)
        high = np.clip(high, 0, 100)
    if panel.bars or not line.joined or len(intervals) < len(line.x):
        axis.vlines(x, low, high, color=line.style.colour, alpha=0.5, linewidth=0.9)
    else:
        axis.fill_between(x, low, high, color=line.style.colour, alpha=0.1, linewidth=0)


@in_print
def grids(panels: Mapping[str, Heatmap], path: Path, title: str = "") -> Path:
    """Draw percentages over two axes: a heatmap for each name, with one colour bar from 0 to 100.

    What was seen in training is framed. Where the rows of a single grid are not an axis, as of a
    task that varies the length only, each row is a curve. Two spaces in a name break its line.
    """
    heatmaps = {name.replace("  ", "\n"): grid for name, grid in panels.items()}
    first = next(iter(heatmaps.values()))
    if not first.row_label:
        return curves([_as_curve(first)], path, title)
    across = _grids_a_row(len(heatmaps))
    rows = math.ceil(len(heatmaps) / across)
    side = (WIDTH - 0.9) / across - 0.05  # inches of a grid
    above = max(fitted(name, side).count("\n") for name in heatmaps) * 1.4 * TYPE / 72
    below = 0.35 if first.columns else 0.27
    figure = new_figure(rows * (side + above + below) + 0.3, title)
    same = len({(h.values.shape, *h.rows, *h.columns) for h in heatmaps.values()}) == 1
    places = figure.subplots(rows, across, squeeze=False, sharex=same, sharey=same)
    image: Any = None
    for place, (axis, (name, grid)) in enumerate(zip(places.flat, heatmaps.items(), strict=False)):
        image = _draw_grid(axis, grid)
        axis.set_title("\n".join(fitted(part, side) for part in name.split("\n")))
        axis.tick_params(labelbottom=not same or place + across >= len(heatmaps))
    for axis in places.flat[len(heatmaps) :]:
        axis.set_visible(False)
    figure.supxlabel(first.column_label, fontsize=TYPE)
    figure.supylabel(fitted(first.row_label, rows * side), fontsize=TYPE)
    bar: Any = {"shrink": 0.9, "aspect": 14 * rows, "pad": 0.02}
    figure.colorbar(image, ax=places.ravel().tolist(), label=first.title, **bar)
    return save(figure, path)


def _grids_a_row(count: int) -> int:
    """Say how many of so many grids are drawn beside each other."""
    if count < 4:
        return count
    return 2 if count == 4 else 3


def _as_curve(heatmap: Heatmap) -> Panel:
    """Draw a line for each row, over the lengths that the columns name."""
    x = [int(name) for name in heatmap.columns] or [*range(1, len(heatmap.values[0]) + 1)]
    axis = length_axis(x, heatmap.trained_length) | {"ylim": PERCENT}
    lines = []
    for number, (name, y) in enumerate(zip(heatmap.rows, heatmap.values, strict=True)):
        lines.append(Line(name, x, y, style=categorical(number)))
    return Panel("", heatmap.column_label, heatmap.title, lines, **axis)


def length_axis(lengths: Sequence[int], trained: float | None) -> dict[str, Any]:
    """Describe the horizontal axis of every panel over lengths, as keywords of one."""
    return {"ticks": lengths, "trained": trained, "log_x": min(lengths) > 0}


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
    """List the places and labels of ticks: all rows or columns if few or named, else about four."""
    if names or n <= few:
        step = 1
    elif n <= 10:
        step = 2
    else:
        step = n // 4
    places = list(range(step, n + 1, step))
    return places, list(names) or [str(place) for place in places]


@in_print
def matrices(
    panels: Mapping[str, np.ndarray],
    path: Path,
    title: str,
    label: Mapping[str, str],
    symbols: Sequence[str] = (),
) -> Path:
    """Draw matrices of (query, key), queries downward, at positions from 0, or at ``symbols``.

    Panels of one label share a scale and its colour bar. If there are negative values, white is 0
    and the scale symmetric. A bar is pointed where a few entries are far above all others. NaN is
    blank, and cut off where all have it at their ends.
    """
    groups: dict[str, list[str]] = {}
    for name in panels:
        groups.setdefault(label[name], []).append(name)
    across = 2 if len(panels) < 7 else 4
    rows = {kind: math.ceil(len(names) / across) for kind, names in groups.items()}
    side = (WIDTH - 1.0) / across
    figure = new_figure(sum(rows.values()) * (side + 0.25) + 0.25 * len(rows), title)
    parts = figure.subfigures(len(rows), 1, squeeze=False, height_ratios=[*rows.values()])
    for part, (kind, names) in zip(parts.flat, groups.items(), strict=True):
        scale = colour_range(np.concatenate([panels[name].ravel() for name in names]))
        extend = scale.pop("extend")
        wide = min(across, len(names))
        axes = part.subplots(rows[kind], wide, squeeze=False, sharex=True, sharey=True)
        height, width = np.max([np.argwhere(np.isfinite(panels[n])).max(0) for n in names], 0) + 1
        for place, (axis, name) in enumerate(zip(axes.flat, names, strict=False)):
            shown = panels[name][:height, :width]
            image = axis.imshow(shown, interpolation="none", **scale)
            axis.set_title(name if wide == 1 else fitted(name, side))
            if symbols:
                axis.set_xticks(range(len(symbols)), symbols)
                axis.set_yticks(range(len(symbols)), symbols)
                axis.set(xlabel="key", ylabel="query")
            else:
                axis.locator_params(nbins=4, integer=True)
                axis.set(xlabel="key position", ylabel="query position")
            if place % wide:
                axis.set_ylabel("")
            below = place + wide < len(names)
            axis.tick_params(labelbottom=not below, labelleft=place % wide == 0)
            if below:
                axis.set_xlabel("")
        for axis in axes.flat[len(names) :]:
            axis.set_visible(False)
        bar: Any = {"aspect": 16 * rows[kind], "pad": 0.02, "shrink": 0.9, "extend": extend}
        part.colorbar(image, ax=[*axes.flat], label=kind, **bar)
    return save(figure, path)


def colour_range(values: np.ndarray) -> dict[str, Any]:
    """Choose the colours of values and the ends of their scale; say whether some are beyond it."""
    values = values[np.isfinite(values)]
    signed = values.min() < 0
    most = np.abs(values).max()
    usual = np.quantile(np.abs(values), 0.99)
    top = usual if most > 3 * usual > 0 else most
    beyond = top < most
    if signed:
        extend = "both" if beyond else "neither"
        return {"cmap": DIVERGING, "vmin": -top, "vmax": top, "extend": extend}
    extend = "max" if beyond else "neither"
    return {"cmap": SCALE, "vmin": values.min(), "vmax": top, "extend": extend}


def causal(values: np.ndarray) -> np.ndarray:
    """Blank the keys after the query in a matrix of (query, key)."""
    return np.where(np.tri(*values.shape), values, np.nan)


def run_matrices(
    run: Mapping[str, np.ndarray], path: Path, title: str = "", symbols: Sequence[str] = ()
) -> Path:
    """Draw the matrices of a run, whose names are such as ``attention@2 first_solved``; positions
    are named by their symbols where there is room for them.

    Successive layers of the same matrix, as E·Eᵀ of an encoding without updates, share a panel.
    """
    panels = {}
    label = {}
    for keys in successive_alike(run):
        kind = keys[0].partition("@")[0]
        words = [MATRICES[kind], layers_of(keys), sample(keys[0])]
        name = ", ".join(word for word in words if word)
        panels[name] = causal(run[keys[0]]) if kind == "attention" else run[keys[0]]
        label[name] = MATRICES[kind]
    shown = symbols if sum(map(len, symbols)) <= SYMBOLS else ()
    return matrices(panels, path, title, label, shown)


def successive_alike(run: Mapping[str, np.ndarray]) -> list[list[str]]:
    """List the names of matrices, those of successive layers with the same values together:
    ``[["products@1", "products@2"], ["products@3"]]``.
    """
    groups: list[list[str]] = []
    for key in sorted(run, key=kind_and_sample):
        before = groups[-1][-1] if groups else None
        if (
            before is not None
            and kind_and_sample(before) == kind_and_sample(key)
            and np.allclose(run[before], run[key], equal_nan=True)
        ):
            groups[-1].append(key)
        else:
            groups.append([key])
    return groups


def kind_and_sample(key: str) -> tuple[str, str]:
    """Say what a run's matrix is of: ``("attention", "first solved")``."""
    return key.partition("@")[0], sample(key)


def layers_of(keys: Sequence[str]) -> str:
    """Write the layers of matrices, in words: ``layer 2`` or ``layers 1 to 3``."""
    layers = [key.partition("@")[2].partition(" ")[0] for key in keys]
    return f"layer {layers[0]}" if len(layers) == 1 else f"layers {layers[0]} to {layers[-1]}"


def sample(key: str) -> str:
    """Say of which sample a run's matrix is."""
    return key.partition(" ")[2].replace("_", " ")
