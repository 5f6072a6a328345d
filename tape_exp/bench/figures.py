"""The figures of a bench: scores as a heatmap, and mean ranks with what tells them apart."""

from pathlib import Path
from typing import Any

import numpy as np

from tape_exp.bench.board import Board, RankTest
from tape_exp.drawing.style import SCALE, SMALL, in_print, new_figure, save, styles_of
from tape_exp.settings.naming import display_name


def draw(board: Board, stem: Path) -> list[Path]:
    """Draw both as SVG, and return their paths; ranks only where there is enough to test."""
    paths = [heatmap(board, stem.with_name(f"{stem.name}.svg"))]
    test = board.rank_test()
    if test:
        paths.append(ranking(board, test, stem.with_name(f"{stem.name}-ranks.svg")))
    return paths


@in_print
def heatmap(board: Board, path: Path) -> Path:
    """Draw encodings downward, the best rank first, and what guessing reaches; tasks to the right.
    What has not run is blank.
    """
    models = board.order
    tasks = [*board.entries]
    values = heatmap_values(board)
    figure = new_figure(1.0 + 0.19 * len(values))
    axis = figure.subplots()
    image = axis.imshow(values, cmap=SCALE, vmin=0, vmax=100, aspect="auto")
    for (row, column), number in np.ndenumerate(values):
        colour: Any = {"color": "white" if number > 68 else "black", "fontsize": SMALL}
        text = f"{number:.0f}" if np.isfinite(number) else ""
        axis.text(column, row, text, ha="center", va="center", **colour)
    names = [display_name(board.labels[model]) for model in models]
    axis.set_yticks(range(len(values)), [*names, "guess from nearby"])
    axis.axhline(len(models) - 0.5, color="black", linewidth=0.8)
    words = [task.replace("_", " ") for task in tasks]
    axis.set_xticks(range(len(tasks)), words, rotation=40, ha="right", rotation_mode="anchor")
    axis.tick_params(length=0)
    figure.colorbar(image, ax=axis, label="right beyond training (%)", aspect=30, pad=0.02)
    return save(figure, path)


def heatmap_values(board: Board) -> np.ndarray:
    """Return the scores of (models and guessing, tasks); NaN where nothing is recorded."""
    values = np.full((len(board.order) + 1, len(board.entries)), np.nan)
    for column, task in enumerate(board.entries):
        for row, model in enumerate(board.order):
            if task in board.scores[model]:
                values[row, column] = board.scores[model][task].number
        values[-1, column] = board.guesses.get(task, np.nan)
    return values


@in_print
def ranking(board: Board, test: RankTest, path: Path) -> Path:
    """Draw mean ranks, the best above, each with half of the critical difference to both sides:
    models whose bars do not overlap are told apart (Nemenyi, 5 %).
    """
    figure = new_figure(0.6 + 0.17 * len(board.ranks))
    axis = figure.subplots()
    styles = styles_of(board.ranks)
    for row, (model, mean) in enumerate(board.ranks.items()):
        style = styles[model]
        bar: Any = {"elinewidth": 1, "capsize": 2, "color": style.colour, "marker": style.marker}
        axis.errorbar(mean, row, xerr=test.difference / 2, **bar)
    names = [f"{display_name(model)} {mean:.2f}" for model, mean in board.ranks.items()]
    axis.set_yticks(range(len(names)), names)
    axis.invert_yaxis()
    axis.grid(axis="x")
    axis.set(xticks=range(1, len(names) + 1), xlim=(0.8, len(names) + 0.2))
    axis.set_xlabel("mean rank ± half a critical difference")
    axis.set_title(f"{board.numbers.shape[1]} tasks, Friedman's test: p = {test.p:.2g}")
    return save(figure, path)
