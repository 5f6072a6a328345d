"""Curves: panels of lines with the bands of their intervals."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tape_exp.drawing.heatmap import new_figure, save

MARKERS = "osD^vPX*h"


@dataclass(frozen=True)
class Line:
    """A series of points.

    Args:
        name: what the legend calls it.
        x, y: the points.
        low, high: the ends of each point's interval, None where there is none.
        style: number of its colour and marker, the same for a name in all panels; None: a line to
            compare the others with, of one ``colour`` and without markers.
        dash: matplotlib's name of the line's pattern.
        width: in points; None: matplotlib's own.
        hidden: not drawn in an interactive figure before it is asked for.
        joined: whether a line goes through the points; otherwise their intervals are bars.
        hollow: whether the points are drawn open, as others' are; a picture's title says whose,
            and its legend has them only where no filled line is of their style.
        each: the points that these are means of, drawn as dots.
    """

    name: str
    x: list[float]
    y: list[float]
    low: list[float | None] = field(default_factory=list)
    high: list[float | None] = field(default_factory=list)
    style: int | None = 0
    colour: str = "grey"
    dash: str = "-"
    width: float | None = None
    hidden: bool = False
    joined: bool = True
    hollow: bool = False
    each: list[tuple[float, float]] = field(default_factory=list)


def mean_line(name: str, x: list[float], runs: list[list[float]], style: int) -> Line:
    """The mean over runs, in a band from the lowest to the highest."""
    values = np.array(runs)
    band = (values.min(0).tolist(), values.max(0).tolist())
    return Line(name, x, values.mean(0).tolist(), *band, style)


@dataclass(frozen=True)
class Panel:
    """A pair of axes.

    Args:
        title, xlabel, ylabel: words at its sides.
        lines: drawn in this order.
        marks: places of vertical lines, such as the trained length.
        ticks: places of the labels below; none: matplotlib's own.
        logarithmic: whether lengths double at equal distances.
        percent: whether values go from 0 to 100.
    """

    title: str
    xlabel: str
    ylabel: str
    lines: list[Line]
    marks: list[float] = field(default_factory=list)
    ticks: list[int] = field(default_factory=list)
    logarithmic: bool = False
    percent: bool = False


@dataclass(frozen=True)
class Curves:
    """A picture of panels, two in a row.

    Args:
        title: above all panels.
        panels: row by row.
        suffix: what the name of its file ends with; None: it is drawn on the page of ``make
            report`` only.
        size: width and height in inches, without the title.
        legend: one in each panel, or one for all to the right or below.
        shared: whether all panels have the same vertical axis.
        markersize: in points.
    """

    title: str
    panels: list[Panel]
    suffix: str | None = ""
    size: tuple[float, float] = (9.5, 3.6)
    legend: Literal["each", "right", "below"] = "each"
    markersize: float = 5
    shared: bool = True

    def draw(self, path: Path, mark: str = "") -> Path:
        """Write the picture as a PNG, whole or not at all."""
        picture = new_figure(*self.size, self.title)
        rows = -(-len(self.panels) // 2)
        grid = picture.subplots(rows, 2, squeeze=False, sharex="col", sharey=self.shared)
        for number, (axis, panel) in enumerate(zip(grid.flat, self.panels, strict=False)):
            self._draw_panel(axis, panel, last_row=number + 2 >= len(self.panels))
        for axis in grid.flat[len(self.panels) :]:  # of an odd number of panels
            axis.set_visible(False)
            grid.flat[len(self.panels) - 2].tick_params(labelbottom=True)
        handles: dict[str, Any] = {}
        for axis in grid.flat:
            drawn = dict(zip(*reversed(axis.get_legend_handles_labels()), strict=True))
            if self.legend == "each" and drawn:
                axis.legend(loc="best", fontsize="small")
            handles = {**drawn, **handles}
        # Lines that a panel lacks appear in the next one: their order is that of the styles.
        order = {line.name: line.style for panel in self.panels for line in panel.lines}
        names = sorted(handles, key=lambda name: (order[name] is None, order[name]))
        if self.legend != "each":
            place: Any = {"right": {"loc": "outside right upper"}}.get(
                self.legend, {"loc": "outside lower center", "ncols": 2}
            )
            picture.legend([handles[name] for name in names], names, fontsize="small", **place)
        return save(picture, path, mark)

    def _draw_panel(self, axis: Any, panel: Panel, last_row: bool) -> None:
        filled = {line.style for each in self.panels for line in each.lines if not line.hollow}
        for line in panel.lines:
            style: Any = {"color": line.colour, "linestyle": line.dash, "linewidth": line.width}
            if line.style is not None:
                style |= {"color": f"C{line.style}", "marker": MARKERS[line.style % len(MARKERS)]}
            if not line.joined:
                style["linestyle"] = "none"
            if line.hollow:
                style["markerfacecolor"] = "none"
            named = not line.hollow or line.style not in filled
            name = line.name if named else "_"  # matplotlib's legends skip what begins so
            axis.plot(line.x, line.y, label=name, markersize=self.markersize, **style)
            for x, y in line.each:
                axis.plot(x, y, ".", color=style["color"], markersize=3, alpha=0.7)
            if line.low and None not in (*line.low, *line.high):
                band: Any = {"color": style["color"], "alpha": 0.12, "linewidth": 0}
                if line.joined:
                    axis.fill_between(line.x, line.low, line.high, **band)
                else:
                    axis.vlines(line.x, line.low, line.high, color=style["color"], alpha=0.5)
        for place in panel.marks:
            axis.axvline(place, color="grey", linestyle=":", linewidth=1)
        if panel.logarithmic:
            axis.set_xscale("log", base=2)
        axis.set_title(panel.title)
        if panel.percent:
            axis.set_ylim(-4, 104)
        axis.grid(alpha=0.3)
        axis.set_ylabel(panel.ylabel)
        if last_row:
            axis.set_xlabel(panel.xlabel)
            if panel.ticks:
                axis.set_xticks(panel.ticks, map(str, panel.ticks))
