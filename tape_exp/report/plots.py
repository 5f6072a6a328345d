"""The interactive figures of an artifact: heatmaps from its records, lines from its table.
``page.js`` draws them.
"""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import singledispatch
from typing import Any

import numpy as np

from tape_exp.paper import addition, passkey
from tape_exp.paper.addition import Addition
from tape_exp.paper.artifacts import Artifact, Record
from tape_exp.paper.language import Layers, Pattern
from tape_exp.paper.passkey import Passkey

SHOWN = 0.99  # of the entries of a matrix lie inside its colours: a few are far above all others
FAR = 2.5  # times what most lines say: such a line is hidden at first, it would flatten the others
NUMBER = r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?"
Rows = Sequence[Sequence[str]]


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
    kind: str = "grid"


@dataclass
class Line:
    """A series with the ends of its intervals, None where there is none."""

    name: str
    x: list[float]
    y: list[float]
    low: list[float | None] = field(default_factory=list)
    high: list[float | None] = field(default_factory=list)
    style: int = 0  # colour and marker: the same for a name in all figures of a table
    hidden: bool = False


@dataclass
class Lines:
    """A figure of several series."""

    title: str
    xlabel: str
    ylabel: str
    lines: list[Line]
    kind: str = "lines"


@singledispatch
def grids(artifact: Artifact, records: dict[str, list[Record]]) -> list[Grid]:
    """The heatmaps of an artifact at a scale, whatever kind it is: every grid and matrix of its
    records' first seeds.
    """
    found = []
    for name, mine in records.items():
        if "heatmap" in mine[0]:
            found.append(
                _of_matrix(name, np.array(mine[0]["heatmap"], dtype=float), axes=("row", "column"))
            )
        for title, matrix in mine[0].get("matrices", {}).items():
            found.append(_of_matrix(f"{name} {title}", np.array(matrix, dtype=float)))
    return found


@grids.register
def _(artifact: Addition, records: dict[str, list[Record]]) -> list[Grid]:
    return [
        _of_heatmap(model, addition.panel(records[model]))
        for model in artifact.models
        if model in records
    ]


@grids.register
def _(artifact: Passkey, records: dict[str, list[Record]]) -> list[Grid]:
    return [
        _of_heatmap(method, passkey.panel(records[method]))
        for method in artifact.models
        if method in records
    ]


@grids.register
def _(artifact: Layers, records: dict[str, list[Record]]) -> list[Grid]:
    named = {
        f"E·Eᵀ of {model}, layer {layer}": matrix
        for model, layer, matrix in _matrices(records, "products")
    }
    return [_of_matrix(name, matrix) for name, matrix in named.items()]


@grids.register
def _(artifact: Pattern, records: dict[str, list[Record]]) -> list[Grid]:
    found = []
    for kind, label in (("products", "E·Eᵀ"), ("attention", "attention")):
        matrices = _matrices(records, kind)
        last = max((layer for _, layer, _ in matrices), default=0)
        ends = {model: matrix for model, layer, matrix in matrices if layer == last}
        found += [
            _of_matrix(f"{label} of {model}, layer {last}", m, kind == "attention")
            for model, m in ends.items()
        ]
        if kind == "attention" and {"tape", "rope"} <= ends.keys():
            difference = ends["tape"] - ends["rope"]
            found.append(
                _of_matrix(
                    f"attention, TAPE − RoPE, layer {last}", difference, causal=True, signed=True
                )
            )
    return found


def _matrices(records: dict[str, list[Record]], kind: str) -> list[tuple[str, int, np.ndarray]]:
    """(model, layer, matrix) of the first seed."""
    found = []
    for model, mine in records.items():
        for name, rows in mine[0]["matrices"].items():
            if name.startswith(f"{kind}@"):
                found.append((model, int(name.split("@")[1]), np.array(rows, dtype=float)))
    return found


def _of_heatmap(name: str, heatmap: Any) -> Grid:
    """As the artifact's own picture has it."""
    height, width = heatmap.values.shape
    return Grid(
        f"{name}, mean {np.nanmean(heatmap.values):.1f}",
        _rounded(heatmap.values),
        heatmap.columns or [str(n) for n in range(1, width + 1)],
        heatmap.rows or [str(n) for n in range(1, height + 1)],
        heatmap.column_label,
        heatmap.row_label,
        heatmap.title,
        (0.0, 100.0),
        trained=heatmap.trained if all(heatmap.trained) else None,
    )


def _of_matrix(
    name: str,
    matrix: np.ndarray,
    causal: bool = False,
    signed: bool = False,
    axes: tuple[str, str] = ("query position", "key position"),
) -> Grid:
    """Queries downward, keys to the right, positions counted from 0."""
    if causal:
        matrix = np.where(np.tri(*matrix.shape), matrix, np.nan)
    seen = matrix[np.isfinite(matrix)]
    top = float(np.quantile(np.abs(seen) if signed else seen, SHOWN))
    height, width = matrix.shape
    x, y = [str(n) for n in range(width)], [str(n) for n in range(height)]
    ends = (-top, top) if signed else (float(seen.min()), top)
    return Grid(name, _rounded(matrix), x, y, axes[1], axes[0], "value", ends, signed)


def _rounded(values: np.ndarray) -> list[list[float | None]]:
    """Four significant digits: what a heatmap shows, at a third of the size."""
    return [
        [float(f"{v:.4g}") if np.isfinite(v) else None for v in row]
        for row in np.asarray(values, dtype=float)
    ]


def lines(columns: Sequence[str], rows: Rows, caption: str) -> list[Lines]:
    """A figure for each group of columns that are called the same but for a number: ``ours 64``,
    ``ours 128``, ``ours 256``.

    A line is a row, called by its first cells, as many as tell the rows apart; where that takes
    two, the first chooses the figure. Cells read ``value``, ``value ± half-width`` or ``value [low,
    high]``.
    """
    groups: dict[str, list[tuple[float, int]]] = {}
    for place, column in enumerate(columns):
        if match := re.fullmatch(rf"(.+) ({NUMBER})", column):
            groups.setdefault(match[1], []).append((float(match[2]), place))
    groups = {name: places for name, places in groups.items() if len(places) > 2}
    if not groups:
        return []
    names = next(
        (n for n in range(1, len(columns)) if len({tuple(row[:n]) for row in rows}) == len(rows)), 1
    )
    xlabel = "length (tokens)" if "length" in caption else ""
    measure = re.search(r"(?:perplexity|exact match|accuracy)(?: \(%\))?", caption, re.IGNORECASE)
    called = [" ".join(row[max(names - 1, 0) : names]) for row in rows]
    styles = {name: number for number, name in enumerate(dict.fromkeys(called))}
    figures: dict[str, Lines] = {}
    for group, places in groups.items():
        for name, row in zip(called, rows, strict=True):
            line = _line(name, styles[name], [(x, row[place]) for x, place in places])
            title = f"{row[0]}: {group}" if names > 1 else group
            if line.x:
                figure = figures.setdefault(
                    title, Lines(title, xlabel, measure[0].lower() if measure else "", [])
                )
                figure.lines.append(line)
    for figure in figures.values():
        usual = float(np.median([np.median(line.y) for line in figure.lines]))
        for line in figure.lines:
            line.hidden = (
                len(figure.lines) > 2 and usual > 0 and float(np.median(line.y)) > FAR * usual
            )
    return [figures[title] for title in sorted(figures)]


def _line(name: str, style: int, cells: list[tuple[float, str]]) -> Line:
    line = Line(name, [], [], style=style)
    for x, cell in cells:
        match = re.fullmatch(rf"({NUMBER})(?: ± ({NUMBER})| \[({NUMBER}), ({NUMBER})\])?", cell)
        if match:
            value, half, low, high = (
                None if found is None else float(found) for found in match.groups()
            )
            assert value is not None
            line.x.append(x)
            line.y.append(value)
            line.low.append(low if half is None else value - half)
            line.high.append(high if half is None else value + half)
    return line


def curve(found: dict[str, dict[str, list[float]]]) -> Lines:
    """The losses of a run while it trained, from its record."""
    told = [
        Line(name, line["step"], line["value"], style=number)
        for number, (name, line) in enumerate(found.items())
    ]
    return Lines("training", "step", "loss (nats)", told)


def as_json(figure: Grid | Lines) -> dict[str, Any]:
    """What ``page.js`` reads."""
    return asdict(figure)
