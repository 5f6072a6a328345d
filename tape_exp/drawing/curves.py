"""Curves: panels of lines with the bands of their intervals."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tape_exp.drawing.looks import GUIDE, Look, series
from tape_exp.drawing.page import DOUBLE, SINGLE, TYPE, WIDE, fitted, in_print, new_figure, save

HANDLE = 0.6  # inches of a sign in a legend, with the space around it
MARKED = 16  # points of a line that have a marker, at most
APART = 3.0  # points between lines of single points at the same place


@dataclass(frozen=True)
class Line:
    """A series of points.

    Args:
        name: what the legend calls it.
        x, y: the points.
        low, high: the ends of each point's interval, None where there is none.
        look: its colour, marker and dash, the same for a name in all panels; ``GUIDE`` of a line to
            compare the others with, which legends name last.
        width: in points; None: that of the page.
        hidden: not drawn in an interactive figure before it is asked for.
        joined: whether a line goes through the points; otherwise, and where a point has no
            interval, the intervals are bars.
        hollow: whether the points are drawn open, as others' are; a picture's title says whose,
            and its legend has them only where no filled line has their look.
        each: the points that these are means of, drawn as dots.
    """

    name: str
    x: list[float]
    y: list[float]
    low: list[float | None] = field(default_factory=list)
    high: list[float | None] = field(default_factory=list)
    look: Look = field(default_factory=lambda: series(0))
    width: float | None = None
    hidden: bool = False
    joined: bool = True
    hollow: bool = False
    each: list[tuple[float, float]] = field(default_factory=list)


def mean_line(name: str, x: list[float], runs: list[list[float]], look: Look) -> Line:
    """The mean over runs, in a band from the lowest to the highest."""
    values = np.array(runs)
    band = (values.min(0).tolist(), values.max(0).tolist())
    return Line(name, x, values.mean(0).tolist(), *band, look)


@dataclass(frozen=True)
class Panel:
    """A pair of axes.

    Args:
        title, xlabel, ylabel: words at its sides.
        lines: drawn in this order.
        marks: places of vertical lines, such as the trained length.
        ticks: places of the labels below; none: matplotlib's own.
        logarithmic: whether lengths double at equal distances.
        powers: whether values grow by powers of ten.
        percent: whether values go from 0 to 100.
    """

    title: str
    xlabel: str
    ylabel: str
    lines: list[Line]
    marks: list[float] = field(default_factory=list)
    ticks: list[int] | list[float] = field(default_factory=list)
    logarithmic: bool = False
    powers: bool = False
    percent: bool = False


@dataclass(frozen=True)
class Curves:
    """A picture of panels, with one legend for all below them.

    It is as wide as a column of a paper if it has one panel, else as both columns.

    Args:
        title: above all panels.
        panels: row by row.
        suffix: what the name of its file ends with; None: it is drawn on the page of ``make
            report`` only.
        across: panels in a row.
        tall: inches of a row.
        shared: whether all panels have the same vertical axis, and those above each other the
            same horizontal one.
    """

    title: str
    panels: list[Panel]
    suffix: str | None = ""
    across: int = 2
    tall: float = 2.1
    shared: bool = True

    @in_print
    def draw(self, path: Path, mark: str = "", kinds: Sequence[str] = ("png",)) -> Path:
        """Write the picture as each of the kinds, whole or not at all."""
        number, width = len(self.panels), SINGLE if len(self.panels) == 1 else DOUBLE
        across = min(number, self.across)
        rows, signs = -(-number // across), self._signs()
        columns = _columns([name for name, _ in signs], width)
        below = -(-len(signs) // columns) * 1.6 * (TYPE - 0.5) / 72 + 0.1 if signs else 0
        picture = new_figure(width, rows * self.tall + below, self.title)
        below_alike = "col" if self.shared else False
        grid = picture.subplots(rows, across, squeeze=False, sharex=below_alike, sharey=self.shared)
        for place, (axis, panel) in enumerate(zip(grid.flat, self.panels, strict=False)):
            _draw_panel(axis, panel)
            axis.set_title(fitted(panel.title, width / across - 0.45))
            if place % across and self.shared and panel.ylabel == self.panels[place - 1].ylabel:
                axis.set_ylabel("")
            if place + across < number and self.shared:
                axis.set_xlabel("")
            else:
                axis.tick_params(labelbottom=True)  # also above a place that is empty
        for axis in grid.flat[number:]:
            axis.set_visible(False)
        if signs:
            names, handles = zip(*signs, strict=True)
            picture.legend(handles, names, loc="outside lower center", ncols=columns)
        return save(picture, path, mark, kinds)

    def _signs(self) -> list[tuple[str, Any]]:
        """The name and the sign of every line that the legend has, each once, guides last."""
        from matplotlib.lines import Line2D

        lines = [line for panel in self.panels for line in panel.lines]
        filled = {line.look for line in lines if not line.hollow}
        named = {line.name: line for line in lines if not (line.hollow and line.look in filled)}
        ordered = sorted(named.values(), key=lambda line: line.look == GUIDE)
        return [(line.name, Line2D([], [], **_style(line))) for line in ordered]


def _style(line: Line) -> dict[str, Any]:
    """A line's look in the words of matplotlib."""
    style: dict[str, Any] = {"color": line.look.colour, "marker": line.look.marker}
    style["linestyle"] = line.look.dash if line.joined else "none"
    style |= {} if line.width is None else {"linewidth": line.width}
    return style | ({"markerfacecolor": "none"} if line.hollow else {})


def _columns(names: Sequence[str], width: float) -> int:
    """How many columns of a legend fit the width."""
    longest = max((len(name) for name in names), default=0) * WIDE * (TYPE - 0.5) / 72
    return max(1, min(len(names), math.floor(width / (HANDLE + longest))))


def _draw_panel(axis: Any, panel: Panel) -> None:
    """Draw the lines of a panel, its marks and its axes."""
    single = [line for line in panel.lines if not line.joined and {*line.x} <= {*panel.ticks}]
    for line in panel.lines:
        beside = 0.0
        if len(single) > 1 and line in single:
            looks = list(dict.fromkeys(one.look for one in single))
            beside = APART * (looks.index(line.look) - (len(looks) - 1) / 2)
        _draw_line(axis, line, beside)
    if len(single) > 1:
        axis.margins(x=0.1)  # the outermost points are beside their place
    for place in panel.marks:
        axis.axvline(place, color="grey", linestyle=":", linewidth=0.8)
    if panel.logarithmic:
        axis.set_xscale("log", base=2)
    if panel.powers:
        axis.set_yscale("log")
    if panel.percent:
        axis.set_ylim(-4, 104)
    axis.grid()
    axis.set_xlabel(panel.xlabel)
    axis.set_ylabel(panel.ylabel)
    if panel.ticks:
        axis.set_xticks(panel.ticks, [f"{tick:g}" for tick in panel.ticks])
        axis.minorticks_off() if not panel.powers else axis.xaxis.minorticks_off()


def _draw_line(axis: Any, line: Line, beside: float) -> None:
    """Draw a line, the dots it is the mean of, and its intervals, so many points to the side."""
    from matplotlib.transforms import ScaledTranslation

    colour, every = line.look.colour, -(-len(line.x) // MARKED)
    drawn = axis.plot(line.x, line.y, label=line.name, markevery=every, **_style(line))
    for x, y in line.each:
        drawn += axis.plot(x, y, ".", color=colour, markersize=2, alpha=0.7)
    ends = zip(line.x, line.low, line.high, strict=True) if line.low else ()
    known = [each for each in ends if None not in each]
    if known and line.low != line.high:
        if line.joined and len(known) == len(line.x):
            axis.fill_between(*zip(*known, strict=True), color=colour, alpha=0.12, linewidth=0)
        else:
            style: Any = {"color": colour, "alpha": 0.5, "linewidth": 0.9}
            drawn.append(axis.vlines(*zip(*known, strict=True), **style))
    if beside:  # once the limits of the axes are known
        shift = ScaledTranslation(beside / 72, 0, axis.figure.dpi_scale_trans)
        for each in drawn:
            each.set_transform(axis.transData + shift)
