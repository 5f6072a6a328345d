"""The figures of a bench, as SVG: scores as a heatmap, and ranks on an axis."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tape_exp.bench.board import Board
from tape_exp.drawing.style import (
    DOUBLE,
    REFERENCE,
    SCALE,
    TYPE,
    in_print,
    new_figure,
    save,
    style_of,
)
from tape_exp.settings.naming import display_name


def draw(board: Board, stem: Path) -> list[Path]:
    """Draw both, and return their paths."""
    return [*heatmap(board, stem), *ranking(board, stem.with_name(f"{stem.name}-ranks"))]


def cliques(ranks: Sequence[float], difference: float) -> list[tuple[int, int]]:
    """The largest runs of sorted ranks, first and last, whose ends differ by less than that."""
    found: list[tuple[int, int]] = []
    for first in range(len(ranks)):
        last = max(i for i in range(first, len(ranks)) if ranks[i] - ranks[first] < difference)
        if last > first and (not found or last > found[-1][1]):
            found.append((first, last))
    return found


@in_print
def heatmap(board: Board, stem: Path) -> list[Path]:
    """Encodings downward, the best rank first, and what guessing reaches; tasks to the right. What
    has not run is blank.
    """
    models, tasks = board.order, [*board.entries]
    scores = [board.scores[model] for model in models]
    numbers = [[row[task].number if task in row else np.nan for task in tasks] for row in scores]
    guessed = [board.guesses.get(task, np.nan) for task in tasks]
    values = np.array([*numbers, guessed])
    figure = new_figure(DOUBLE, 1.2 + 0.19 * len(values))
    axis = figure.subplots()
    image = axis.imshow(values, cmap=SCALE, vmin=0, vmax=100, aspect="auto")
    for (row, column), number in np.ndenumerate(values):
        colour = "white" if number > 68 else "black"
        if np.isfinite(number):
            middle: Any = {"ha": "center", "va": "center", "fontsize": TYPE - 1}
            axis.text(column, row, f"{number:.0f}", color=colour, **middle)
    names = [display_name(board.marked(model)) for model in models]
    axis.set_yticks(range(len(values)), [*names, "guess from nearby"])
    axis.axhline(len(models) - 0.5, color="black", linewidth=0.8)
    words = [task.replace("_", " ") for task in tasks]
    axis.set_xticks(range(len(tasks)), words, rotation=40, ha="right", rotation_mode="anchor")
    axis.set_xticks(np.arange(len(tasks) + 1) - 0.5, minor=True)
    axis.set_yticks(np.arange(len(values) + 1) - 0.5, minor=True)
    axis.grid(which="minor", color="white", linewidth=1)
    axis.tick_params(which="both", length=0)
    for side in axis.spines.values():
        side.set_visible(False)
    figure.colorbar(image, ax=axis, label="right beyond training (%)", fraction=0.04, pad=0.01)
    return [save(figure, stem.with_name(f"{stem.name}.svg"))]


@in_print
def ranking(board: Board, stem: Path) -> list[Path]:
    """Mean ranks on an axis, the best on the left (Demšar, 2006).

    A bar joins models whose mean ranks differ by less than the critical difference. None is drawn
    where there is too little to test.
    """
    if (found := board.test()) is None:
        return []
    names, means = [*board.ranks], [*board.ranks.values()]
    p, difference = found
    joined = cliques(means, difference)
    half = -(-len(names) // 2)
    begin = 0.35 + 0.22 * len(joined)  # where the first name is, below the axis and the bars
    height = begin + 0.3 * half
    figure = new_figure(DOUBLE, 0.8 + 0.5 * height)
    axis = figure.subplots()
    worst = len(names)
    axis.set_xlim(1 - 0.36 * (worst - 1), worst + 0.36 * (worst - 1))
    axis.set_ylim(height, -1.05)
    axis.axis("off")
    black: Any = {"color": "black", "linewidth": 0.7}
    axis.plot([1, worst], [0, 0], **black)
    for place in range(1, worst + 1):
        axis.plot([place, place], [0, -0.1], **black)
        axis.text(place, -0.15, str(place), ha="center", va="bottom", fontsize=TYPE - 0.5)
    critical(axis, difference, worst)
    for number, (first, last) in enumerate(joined):
        level = 0.2 + 0.22 * number
        reach = 0.008 * (worst - 1)
        axis.plot(
            [means[first] - reach, means[last] + reach],
            [level] * 2,
            color=REFERENCE.colour,
            linewidth=3,
        )
    for number, (name, mean) in enumerate(zip(names, means, strict=True)):
        left = number < half
        level = begin + 0.3 * (number if left else len(names) - 1 - number)
        edge = 1 - 0.04 * (worst - 1) if left else worst + 0.04 * (worst - 1)
        axis.plot([mean, mean, edge], [0, level, level], **black)
        style, shown = style_of(name), display_name(name)
        axis.plot(mean, 0, color=style.colour, marker=style.marker, clip_on=False)
        text = f"{shown} {mean:.2f} " if left else f" {mean:.2f} {shown}"
        axis.text(edge, level, text, ha="right" if left else "left", va="center")
    told = f"p = {p:.2g}" + ("" if p < 0.05 else "; no difference is shown")
    axis.set_title(f"Mean rank over {board.numbers.shape[1]} tasks (Friedman, {told})")
    return [save(figure, stem.with_name(f"{stem.name}.svg"))]


def critical(axis: Any, difference: float, worst: int) -> None:
    """The critical difference as a length above the axis, or in words where it is longer."""
    if difference >= worst - 1:
        words = f"critical difference {difference:.2f}: longer than the axis"
        axis.text(1, -0.72, words, ha="left", va="center", fontsize=TYPE - 0.5)
        return
    axis.plot([1, 1 + difference], [-0.7, -0.7], color="black", linewidth=1)
    for end in (1, 1 + difference):
        axis.plot([end, end], [-0.78, -0.62], color="black", linewidth=1)
    words = f" critical difference {difference:.2f} (Nemenyi, 5 %)"
    axis.text(1 + difference, -0.7, words, ha="left", va="center", fontsize=TYPE - 0.5)
