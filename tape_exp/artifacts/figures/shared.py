"""What the figures of artifacts share."""

from collections.abc import Callable
from pathlib import Path

from tape_exp.artifacts.cells import Cells
from tape_exp.artifacts.rows import Row

FEWEST = 3  # points of a curve
Draw = Callable[[Path], Path]
"""Draws a figure into a file, and returns its path."""


def title_of(cells: Cells) -> str:
    """Write what is above a figure: the artifact's title and its scale."""
    place = cells.artifact.place.get(cells.scale) or f"scale {cells.scale}"
    return f"{cells.artifact.title} — {place}"


def last_label(row: Row) -> str:
    """Name the model or method of a row."""
    return [*row.labels.values()][-1]
