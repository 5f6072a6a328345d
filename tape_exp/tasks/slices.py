"""Scores of a test set by slices: rows of one length, or of one pair of lengths, together."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tape_exp.data.batch import IGNORE, Batch
from tape_exp.runs.evaluation import Heatmap

RowScores = dict[str, np.ndarray]
"""Measure -> one value a row, from 0 to 1."""
Row = tuple[list[int], list[bool]]
"""The tokens of a row, without padding, and which of them are scored."""
SHOWN = 8  # rows of a test set that a run keeps as text, at most


def samples_of(
    slices: Sequence[Any],
    batch: Batch,
    logits: Tensor,
    most: int,
    decode: Callable[[Sequence[int]], str],
) -> list[dict[str, str | bool]]:
    """The first row of so many slices of a batch, from its shortest to its longest: question, right
    answer, the model's answer, and whether it is right.
    """
    rows = len(logits) // len(slices)
    count = min(most, len(slices))
    told: list[dict[str, str | bool]] = []
    for k in (k * (len(slices) - 1) // max(count - 1, 1) for k in range(count)):
        inputs, labels = (batch[key][k * rows] for key in ("inputs", "labels"))
        answered = labels != IGNORE
        begin = int(answered.int().argmax()) + 1 if answered.any() else len(answered)
        right = labels[answered]
        written = logits[k * rows].argmax(-1).cpu()[answered]
        lengths = slices[k] if isinstance(slices[k], tuple) else (slices[k],)
        told.append(
            {
                "length": " × ".join(map(str, lengths)),
                "asked": decode(inputs[:begin].tolist()),
                "right": decode(right.tolist()),
                "written": decode(written.tolist()),
                "correct": bool((right == written).all()),
            }
        )
    return told


def next_tokens(rows: np.ndarray, answer: np.ndarray) -> Batch:
    """Inputs (B, T) and labels of rows of tokens (B, T + 1), scored where ``answer`` is true."""
    tokens = torch.from_numpy(rows).long()
    kept = torch.from_numpy(answer[:, 1:])
    return {"inputs": tokens[:, :-1], "labels": tokens[:, 1:].masked_fill(~kept, IGNORE)}


def padded(rows: Sequence[Row], width: int) -> Batch:
    """The batch of rows, padded on the right to ``width`` tokens."""
    tokens, scored = np.zeros((2, len(rows), width), dtype=np.int64)
    for i, (row, marks) in enumerate(rows):
        if len(row) > width:
            raise ValueError(f"a row has {len(row)} tokens, and others at most {width}: see width.")
        tokens[i, : len(row)] = row
        scored[i, : len(row)] = marks
    return next_tokens(tokens, scored.astype(bool))


def row_scores(logits: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """How right the arg-max of ``logits`` (B, T, V) is at the labelled positions of each row.

    Greedy decoding writes the whole answer if and only if, given the right answer so far, the
    arg-max is right at every position of it: one forward pass scores a row at once.

    Returns ``exact_match`` (B,), whether it is right at all of them, and ``token_accuracy`` (B,),
    the share of them at which it is.
    """
    labelled = labels != IGNORE
    right = (logits.argmax(-1) == labels) & labelled
    share = right.sum(-1) / labelled.sum(-1).clamp(min=1)
    return {"exact_match": (right == labelled).all(-1), "token_accuracy": share}


def splits_of(slices: Iterable[Any], is_trained: Callable[[Any], bool]) -> list[str]:
    """Which of ``id`` and ``ood`` have slices."""
    trained = set(map(is_trained, slices))
    return [name for name, inside in (("id", True), ("ood", False)) if inside in trained]


def split_names(measures: Sequence[str], splits: Sequence[str]) -> list[str]:
    """What :func:`split_means` calls its numbers, of the splits that have slices."""
    names = [f"{split}/{measure}" for split in splits for measure in measures]
    return [f"{name}{end}" for name in names for end in ("", "_stderr")]


def split_means(
    scores: Mapping[Any, RowScores], measures: Sequence[str], is_trained: Callable[[Any], bool]
) -> dict[str, float]:
    """Means over the slices in percent, every slice weighing the same, and their standard errors.

    ``test/<measure>`` is over all slices, ``id/<measure>`` over those that training shows,
    ``ood/<measure>`` over the others, each with ``…_stderr``. A split without slices is left out.
    """
    slices = sorted(scores)
    trained = np.array([is_trained(name) for name in slices])
    metrics = {}
    for split, inside in (("test", trained | True), ("id", trained), ("ood", ~trained)):
        for measure in measures if inside.any() else ():
            rows = [scores[name][measure].astype(float) for name in slices]
            mean = np.array([values.mean() for values in rows])
            # The population variance mean(x²) - mean(x)², written so that it is p (1 - p) of a
            # measure that is 0 or 1, without rounding.
            spread = mean * (1 - mean) - [(values * (1 - values)).mean() for values in rows]
            # Slices are independent and fixed: the variance of their mean is the mean of their own
            # variances, over their number.
            variance = spread / [max(len(values) - 1, 1) for values in rows]
            error = np.sqrt(variance[inside].sum().clip(0)) / inside.sum()
            metrics[f"{split}/{measure}"] = 100 * float(mean[inside].mean())
            metrics[f"{split}/{measure}_stderr"] = 100 * float(error)
    return metrics


def slice_heatmap(
    scores: Mapping[Any, RowScores],
    measures: Sequence[str],
    axes: Mapping[str, Sequence[int]],
    is_trained: Callable[[Any], bool],
) -> Heatmap | None:
    """Each slice's mean in percent (NaN: not scored): measures by length, or a grid of pairs."""
    if not axes:
        return None
    labels = list(axes)
    lengths = list(axes.values())
    if len(axes) == 2:
        cells: list[list[Any]] = [[(a, b) for b in lengths[1]] for a in lengths[0]]
        values = [[_percent(scores, cell, measures[0]) for cell in row] for row in cells]
        title = f"{measures[0].replace('_', ' ')} (%)"
        names = _names(lengths[0])
        trained = sum(is_trained(row[0]) for row in cells)
    else:
        labels = ["", *labels]
        cells = [list(lengths[0])]
        title = "right (%)"
        values = [[_percent(scores, cell, measure) for cell in cells[0]] for measure in measures]
        names = [measure.replace("_", " ") for measure in measures]
        trained = len(measures)
    return Heatmap(
        np.array(values),
        title=title,
        row_label=labels[0],
        column_label=labels[1],
        trained=(trained, sum(map(is_trained, cells[0]))),
        rows=names,
        columns=_names(lengths[-1]),
    )


def _percent(scores: Mapping[Any, RowScores], cell: Any, measure: str) -> float:
    return 100 * float(scores[cell][measure].mean()) if cell in scores else np.nan


def _names(lengths: Sequence[int]) -> list[str]:
    """None are needed of 1, 2, …, which is how a heatmap counts."""
    plain = list(lengths) == list(range(1, len(lengths) + 1))
    return [] if plain else list(map(str, lengths))
