"""Matrices of (query, key) as figures: attention, and the products of positional states, E·Eᵀ."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import SubFigure

from tape_exp.drawing.style import DIVERGING, SCALE, WIDTH, fitted, in_print, new_figure, save

QUANTITIES = {"attention": "attention", "products": "E·Eᵀ"}  # what the kinds of matrices show
SYMBOLS = 24  # letters below a matrix, at most


@dataclass(frozen=True)
class Matrix:
    """A panel: values of (query, key), of which NaN is blank."""

    title: str
    values: np.ndarray
    quantity: str  # beside the colour bar; panels of one quantity share it and its scale


@in_print
def matrices(panels: Sequence[Matrix], path: Path, title: str, symbols: Sequence[str] = ()) -> Path:
    """Draw matrices, queries downward, at positions from 0, or at ``symbols``.

    Rows and columns at the end that are blank in every panel of a quantity are cut off.
    """
    by_quantity: dict[str, list[Matrix]] = {}
    for panel in panels:
        by_quantity.setdefault(panel.quantity, []).append(panel)
    across = 2 if len(panels) < 7 else 4
    side = (WIDTH - 1.0) / across  # inches of a panel
    rows = [math.ceil(len(group) / across) for group in by_quantity.values()]
    figure = new_figure(sum(rows) * (side + 0.25) + 0.25 * len(rows), title)
    parts = figure.subfigures(len(rows), 1, squeeze=False, height_ratios=rows)
    for part, group in zip(parts.flat, by_quantity.values(), strict=True):
        _draw_group(part, group, across, side, symbols)
    return save(figure, path)


def _draw_group(
    part: SubFigure, group: Sequence[Matrix], across: int, side: float, symbols: Sequence[str]
) -> None:
    """Draw the panels of one quantity, each so many inches wide, with their colour bar."""
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
        axis.set_title(panel.title if columns == 1 else fitted(panel.title, side))
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
    """Choose the scale of values: symmetric with white at 0 where some are negative, and ended at
    the 99 % quantile where a few are far above all others.
    """
    values = values[np.isfinite(values)]
    sizes = np.abs(values)
    largest = sizes.max()
    usual = np.quantile(sizes, 0.99)
    high = usual if largest > 3 * usual > 0 else largest
    beyond = high < largest
    if values.min() < 0:
        return ColourScale(DIVERGING, -high, high, "both" if beyond else "neither")
    return ColourScale(SCALE, values.min(), high, "max" if beyond else "neither")


def causal(values: np.ndarray) -> np.ndarray:
    """Blank the keys after the query in a matrix of (query, key)."""
    return np.where(np.tri(*values.shape), values, np.nan)


@dataclass(frozen=True)
class MatrixName:
    """What a matrix of a run shows."""

    kind: str  # a key of QUANTITIES
    layer: int
    sample: str  # empty where a run has one only

    @classmethod
    def parse(cls, name: str) -> "MatrixName":
        """Read the name of a run's matrix.

        >>> MatrixName.parse("attention@2 first_solved")
        MatrixName(kind='attention', layer=2, sample='first solved')
        """
        kind, _, place = name.partition("@")
        layer, _, sample = place.partition(" ")
        return cls(kind, int(layer), sample.replace("_", " "))


def run_matrices(
    run: Mapping[str, np.ndarray], path: Path, title: str = "", symbols: Sequence[str] = ()
) -> Path:
    """Draw the matrices of a run by their names, which :class:`MatrixName` reads; positions are
    named by their symbols where there is room for them.

    Successive layers of the same matrix, as E·Eᵀ of an encoding without updates, share a panel.
    """
    panels = []
    for names in successive_alike(run):
        first = MatrixName.parse(names[0])
        quantity = QUANTITIES[first.kind]
        layers = f"layer {first.layer}"
        if len(names) > 1:
            layers = f"layers {first.layer} to {MatrixName.parse(names[-1]).layer}"
        words = [quantity, layers, first.sample]
        values = run[names[0]]
        if first.kind == "attention":
            values = causal(values)
        panels.append(Matrix(", ".join(filter(None, words)), values, quantity))
    shown = symbols if sum(map(len, symbols)) <= SYMBOLS else ()
    return matrices(panels, path, title, shown)


def successive_alike(run: Mapping[str, np.ndarray]) -> list[list[str]]:
    """List the names of matrices, those of successive layers with the same values together.

    >>> same = np.eye(2)
    >>> successive_alike({"products@1": same, "products@2": same, "products@3": 2 * same})
    [['products@1', 'products@2'], ['products@3']]
    """

    def kind_and_sample(name: str) -> tuple[str, str]:
        parsed = MatrixName.parse(name)
        return parsed.kind, parsed.sample

    groups: list[list[str]] = []
    for name in sorted(run, key=kind_and_sample):
        previous = groups[-1][-1] if groups else name
        same_kind = kind_and_sample(previous) == kind_and_sample(name)
        if groups and same_kind and np.allclose(run[previous], run[name], equal_nan=True):
            groups[-1].append(name)
        else:
            groups.append([name])
    return groups
