"""The figures of artifacts: a file for each kind, whose options are in ``specs.py``."""

import gc
import multiprocessing
import operator
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from tape_exp.artifacts.cells import Cells
from tape_exp.artifacts.figures.grids import draw_grids
from tape_exp.artifacts.figures.lengths import draw_lengths
from tape_exp.artifacts.figures.losses import draw_losses
from tape_exp.artifacts.figures.shared import Draw
from tape_exp.artifacts.specs import (
    Figure,
    FunctionFigure,
    GridsFigure,
    LengthsFigure,
    LossesFigure,
)
from tape_exp.settings.construct import function_at


def figures(cells: Cells) -> Iterator[tuple[str, Draw]]:
    """Yield a suffix of the file's name, and what draws it, for each figure to show."""
    several = cells.artifact.figures
    for suffix, figure in zip(suffixes(several), several, strict=True):
        draw = draw_of(cells, figure)
        if draw is not None:
            yield suffix, draw


def suffixes(figures: Sequence[Figure]) -> list[str]:
    """List the suffix of each figure's file: none of the first, and else its kind, with a number
    from the second further one of a kind.

    >>> suffixes([LengthsFigure(), LengthsFigure(), GridsFigure(), LengthsFigure()])
    ['', '-lengths', '-grids', '-lengths-2']
    """
    found = [""] if figures else []
    counts: Counter[str] = Counter()
    for figure in figures[1:]:
        counts[figure.kind] += 1
        count = counts[figure.kind]
        found.append(f"-{figure.kind}" if count == 1 else f"-{figure.kind}-{count}")
    return found


def draw_of(cells: Cells, figure: Figure) -> Draw | None:
    """Make what draws a figure; None where it would show nothing."""
    match figure:
        case GridsFigure():
            return draw_grids(cells)
        case LengthsFigure():
            return draw_lengths(cells, figure)
        case LossesFigure():
            return draw_losses(cells, figure)
        case FunctionFigure(path):
            return function_at(path, f"figures.kind of {cells.artifact.name}")(cells)


def draw_all(drawings: Sequence[tuple[Draw, Path]]) -> None:
    """Draw each into its file, in as many processes as there are cores."""
    gc.freeze()  # so that the processes do not look through all records again and again
    with multiprocessing.Pool(min(len(drawings), os.cpu_count() or 1) or 1) as pool:
        pool.starmap(operator.call, drawings, chunksize=1)
