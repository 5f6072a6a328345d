"""Matrices of (query, key) as figures: attention, and the products of positional states, E·Eᵀ."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import SubFigure

from tape_exp.drawing.style import (
    DIVERGING,
    LETTER,
    SCALE,
    SMALL,
    WIDTH,
    fitted,
    in_print,
    new_figure,
    save,
)

QUANTITIES = {"attention": "attention", "products": "E·Eᵀ"}  # what the kinds of matrices show


@dataclass(frozen=True)
class Matrix:
    """A panel: values of (query, key), of which NaN is blank."""

    title: str
    values: np.ndarray
    quantity: str  # beside the colour bar; panels of one quantity share it and its scale


@in_print
def matrices(panels: Sequence[Matrix], path: Path, title: str, symbols: Sequence[str] = ()) -> Path:
    """Draw matrices, queries downward, at ``symbols``, or where these have no room at positions
    from 0.

    Rows and columns at the end that are blank in every panel of a quantity are cut off.
    """
    by_quantity: dict[str, list[Matrix]] = {}
    for panel in panels:
        by_quantity.setdefault(panel.quantity, []).append(panel)
    across = 2 if len(panels) < 7 else 4
    if symbols and not _have_room(symbols, across):
        if _have_room(symbols, across // 2):
            across //= 2
        else:
            symbols = ()
    heights = [_height(group, across, symbols) for group in by_quantity.values()]
    figure = new_figure(sum(heights), title)
    parts = figure.subfigures(len(heights), 1, squeeze=False, height_ratios=heights)
    for part, group in zip(parts.flat, by_quantity.values(), strict=True):
        _draw_group(part, group, across, symbols)
    return save(figure, path)


def _side(across: int, symbols: Sequence[str] = ()) -> float:
    """Return the inches of a panel of so many beside each other, right of symbols."""
    longest = max(map(len, symbols), default=0)
    return (WIDTH - 1.0 - longest * LETTER * SMALL / 72) / across


def _have_room(symbols: Sequence[str], across: int) -> bool:
    """Say whether symbols, which are equally far apart, can be read below and beside panels of
    which so many are beside each other.
    """
    side = _side(across, symbols)
    widest = max(((len(a) + len(b)) / 2 for a, b in pairwise(symbols)), default=0)
    letters = len(symbols) * (widest + 0.5)  # with half a space between two
    widths = letters * LETTER * SMALL / 72
    heights = len(symbols) * 1.1 * SMALL / 72
    return max(widths, heights) < side


def _height(group: Sequence[Matrix], across: int, symbols: Sequence[str]) -> float:
    """Return the inches of the rows of a group, with their titles and the labels of the axes."""
    lines = max(_title(panel, group, across).count("\n") + 1 for panel in group)
    rows = math.ceil(len(group) / across)
    return rows * (_side(across, symbols) + 0.1 + lines * 0.15) + 0.25


def _title(panel: Matrix, group: Sequence[Matrix], across: int) -> str:
    """Wrap the title of a panel; one that is alone has the width of the figure."""
    return panel.title if len(group) == 1 else fitted(panel.title, _side(across))


def _draw_group(
    part: SubFigure, group: Sequence[Matrix], across: int, symbols: Sequence[str]
) -> None:
    """Draw the panels of one quantity, so many beside each other, with their colour bar."""
    rows = math.ceil(len(group) / across)
    columns = min(across, len(group))
    axes = part.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    scale = colour_scale(np.concatenate([panel.values.ravel() for panel in group]))
    ends = [np.argwhere(np.isfinite(panel.values)).max(axis=0) for panel in group]
    height, width = np.max(ends, axis=0) + 1
    for place, (axis, panel) in enumerate(zip(axes.flat, group, strict=False)):
        image = axis.imshow(
            panel.values[:height, :width],
            interpolation="none",
            cmap=scale.colours,
            vmin=scale.low,
            vmax=scale.high,
        )
        axis.set_title(_title(panel, group, across))
        leftmost = place % columns == 0
        lowest = place + columns >= len(group)
        _label(axis, symbols, leftmost, lowest)
    for axis in axes.flat[len(group) :]:
        axis.set_visible(False)
    part.colorbar(
        image,
        ax=[*axes.flat],
        label=group[0].quantity,
        aspect=16 * rows,
        pad=0.02,
        shrink=0.9,
        extend=scale.extend,
    )


def _label(axis: Any, symbols: Sequence[str], leftmost: bool, lowest: bool) -> None:
    """Label the axes of a panel as far as no other one, to the left or below, does it."""
    if symbols:
        axis.set_xticks(range(len(symbols)), symbols)
        axis.set_yticks(range(len(symbols)), symbols)
    else:
        axis.locator_params(nbins=4, integer=True)
    unit = "" if symbols else " position"
    axis.set_xlabel(f"key{unit}" if lowest else "")
    axis.set_ylabel(f"query{unit}" if leftmost else "")
    axis.tick_params(labelbottom=lowest, labelleft=leftmost)


@dataclass(frozen=True)
class ColourScale:
    """A colour map, the values at its ends, and at which end some values lie beyond it."""

    colours: str
    low: float
    high: float
    extend: str  # as matplotlib names it; there the colour bar is pointed


def colour_scale(values: np.ndarray) -> ColourScale:
    """Choose the scale of values: from 0, or symmetric with white at 0 where some are negative, and
    ended at the 99 % quantile where a few are far above all others.
    """
    values = values[np.isfinite(values)]
    sizes = np.abs(values)
    largest = sizes.max()
    usual = np.quantile(sizes, 0.99)
    high = usual if largest > 3 * usual > 0 else largest
    beyond = high < largest
    if values.min() < 0:
        return ColourScale(DIVERGING, -high, high, "both" if beyond else "neither")
    return ColourScale(SCALE, 0.0, high, "max" if beyond else "neither")


def causal(values: np.ndarray) -> np.ndarray:
    """Blank the keys after the query in a matrix of (query, key)."""
    return np.where(np.tri(*values.shape), values, np.nan)


@dataclass(frozen=True)
class MatrixName:
    """What a matrix of a run shows."""

    kind: str  # a key of QUANTITIES
    layer: int

    @classmethod
    def parse(cls, name: str) -> "MatrixName":
        """Read the name of a run's matrix.

        >>> MatrixName.parse("attention@2")
        MatrixName(kind='attention', layer=2)
        """
        kind, _, layer = name.partition("@")
        return cls(kind, int(layer))


def run_matrices(
    run: Mapping[str, np.ndarray], path: Path, title: str = "", symbols: Sequence[str] = ()
) -> Path:
    """Draw the matrices of a run by their names, which :class:`MatrixName` reads.

    Successive layers of the same matrix, as E·Eᵀ of an encoding without updates, share a panel.
    """
    panels = []
    for names in successive_alike(run):
        values = run[names[0]]
        first = MatrixName.parse(names[0])
        last = MatrixName.parse(names[-1])
        layers = f"layer {first.layer}"
        if last != first:
            layers = f"layers {first.layer} to {last.layer}"
        shown = causal(values) if first.kind == "attention" else values
        panels.append(Matrix(layers, shown, QUANTITIES[first.kind]))
    return matrices(panels, path, title, symbols)


def successive_alike(run: Mapping[str, np.ndarray]) -> list[list[str]]:
    """List the names of matrices, those of successive layers with the same values together.

    >>> same = np.eye(2)
    >>> successive_alike({"products@1": same, "products@2": same, "products@3": 2 * same})
    [['products@1', 'products@2'], ['products@3']]
    """

    def kind(name: str) -> str:
        return MatrixName.parse(name).kind

    groups: list[list[str]] = []
    for name in sorted(run, key=kind):
        previous = groups[-1][-1] if groups else ""
        same_kind = previous and kind(previous) == kind(name)
        if same_kind and np.allclose(run[previous], run[name], equal_nan=True):
            groups[-1].append(name)
        else:
            groups.append([name])
    return groups
