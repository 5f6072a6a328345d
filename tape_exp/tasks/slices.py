"""Scores of a test set by slices: rows of one length, or of one pair of lengths, together."""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tape_exp.data.batch import IGNORE, Batch
from tape_exp.machine.processes import gather
from tape_exp.results.evaluation import Heatmap
from tape_exp.settings.errors import ConfigError

RowScores = dict[str, np.ndarray]
"""Measure -> one value a row, from 0 to 1."""
SliceScores = tuple[Any, dict[str, Tensor]]
"""A slice, and the scores of some of its rows on their device."""
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
    """Write the first row of so many slices of a batch, from its shortest to its longest: question,
    right answer, the model's answer, and whether it is right.
    """
    rows = len(logits) // len(slices)
    count = min(most, len(slices))
    samples: list[dict[str, str | bool]] = []
    for number in range(count):
        k = number * (len(slices) - 1) // max(count - 1, 1)
        inputs = batch["inputs"][k * rows]
        labels = batch["labels"][k * rows]
        answered = labels != IGNORE
        begin = int(answered.int().argmax()) + 1 if answered.any() else len(answered)
        right = labels[answered]
        written = logits[k * rows].argmax(-1).cpu()[answered]
        lengths = slices[k] if isinstance(slices[k], tuple) else (slices[k],)
        samples.append(
            {
                "length": " × ".join(map(str, lengths)),
                "asked": decode(inputs[:begin].tolist()),
                "right": decode(right.tolist()),
                "written": decode(written.tolist()),
                "correct": bool((right == written).all()),
            }
        )
    return samples


def require_labels(slices: Sequence[Any], batch: Batch) -> None:
    """Raise :class:`ConfigError` where a test batch has no rows, or one of them has no label: it
    would be scored, and as right.
    """
    unlabelled = (batch["labels"] == IGNORE).flatten(1).all(1)
    if len(unlabelled) == 0:
        raise ConfigError(f"the test batch of {list(slices)} has no rows.")
    if unlabelled.any():
        row = int(unlabelled.int().argmax())
        raise ConfigError(
            f"row {row} of the test batch of {list(slices)} has no label, and would count as "
            "right; test_batches must leave it out, or label its answer."
        )


def split_scores(slices: Sequence[Any], scores: Mapping[str, Tensor]) -> list[SliceScores]:
    """Divide the scores of a batch's rows equally among its slices, in their order.

    >>> split_scores([3, 5], {"exact_match": torch.tensor([1, 0, 1, 1])})
    [(3, {'exact_match': tensor([1, 0])}), (5, {'exact_match': tensor([1, 1])})]

    Raises:
        ConfigError: a slice would have more rows than another.
    """
    chunks = {}
    for measure, values in scores.items():
        rows, over = divmod(len(values), len(slices))
        if over:
            raise ConfigError(
                f"a test batch has {len(values)} rows of {measure} for its {len(slices)} slices, "
                f"{list(slices)}; test_batches must give each slice of a list as many rows as the "
                "others."
            )
        chunks[measure] = values.split(rows)
    pairs = []
    for number, name in enumerate(slices):
        pairs.append((name, {measure: chunk[number] for measure, chunk in chunks.items()}))
    return pairs


def gather_scores(pairs: Iterable[SliceScores]) -> dict[Any, RowScores]:
    """Gather what the processes scored, by slice.

    Only here do scores leave a GPU, so that it is not waited for between its batches.
    """
    local = []
    for name, scores in pairs:
        local.append((name, {measure: values.cpu().numpy() for measure, values in scores.items()}))
    by_slice: dict[Any, list[RowScores]] = {}
    for name, chunk in itertools.chain.from_iterable(gather(local)):
        by_slice.setdefault(name, []).append(chunk)
    return {name: _concatenated(chunks) for name, chunks in by_slice.items()}


def _concatenated(chunks: Sequence[RowScores]) -> RowScores:
    """Join the scores of the rows of a slice that several batches have."""
    scores = {}
    for measure in chunks[0]:
        scores[measure] = np.concatenate([chunk[measure] for chunk in chunks])
    return scores


def next_tokens(rows: np.ndarray, answer: np.ndarray) -> Batch:
    """Make inputs (B, T) and labels of rows of tokens (B, T + 1), scored where ``answer`` is true.

    >>> batch = next_tokens(np.array([[5, 6, 7]]), np.array([[False, False, True]]))
    >>> batch["inputs"].tolist(), batch["labels"].tolist()
    ([[5, 6]], [[-100, 7]])
    """
    tokens = torch.from_numpy(rows).long()
    scored = torch.from_numpy(answer[:, 1:])
    return {"inputs": tokens[:, :-1], "labels": tokens[:, 1:].masked_fill(~scored, IGNORE)}


def padded(rows: Sequence[Row], width: int) -> Batch:
    """Make the batch of rows, padded with 0 on the right to ``width`` tokens."""
    tokens = np.zeros((len(rows), width), dtype=np.int64)
    scored = np.zeros((len(rows), width), dtype=bool)
    for i, (row, marks) in enumerate(rows):
        if len(row) > width:
            raise ValueError(f"a row has {len(row)} tokens, and others at most {width}: see width.")
        tokens[i, : len(row)] = row
        scored[i, : len(row)] = marks
    return next_tokens(tokens, scored)


def row_scores(logits: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Score how right the arg-max of ``logits`` (B, T, V) is at the labelled positions of each row.

    Greedy decoding writes the whole answer if and only if, given the right answer so far, the
    arg-max is right at every position of it: one forward pass scores a row at once.

    Returns:
        ``exact_match`` (B,), whether it is right at all of them, and ``token_accuracy`` (B,), the
        share of them at which it is. A row without labels has True and 0.
    """
    labelled = labels != IGNORE
    right = (logits.argmax(-1) == labels) & labelled
    share = right.sum(-1) / labelled.sum(-1).clamp(min=1)
    return {"exact_match": (right == labelled).all(-1), "token_accuracy": share}


def splits_of(slices: Iterable[Any], is_trained: Callable[[Any], bool]) -> list[str]:
    """List which of ``id`` and ``ood`` have slices.

    >>> splits_of([4, 8, 16], lambda length: length <= 8)
    ['id', 'ood']
    """
    trained = set(map(is_trained, slices))
    splits = []
    if True in trained:
        splits.append("id")
    if False in trained:
        splits.append("ood")
    return splits


def split_names(measures: Sequence[str], splits: Sequence[str]) -> list[str]:
    """Name the numbers of :func:`split_means`, of the splits that have slices."""
    names = []
    for split, measure in itertools.product(splits, measures):
        names += [f"{split}/{measure}", f"{split}/{measure}_stderr"]
    return names


def split_means(
    scores: Mapping[Any, RowScores], measures: Sequence[str], is_trained: Callable[[Any], bool]
) -> dict[str, float]:
    """Average over the slices, in percent, every slice weighing the same, with standard errors.

    ``test/<measure>`` is over all slices, ``id/<measure>`` over those that training shows,
    ``ood/<measure>`` over the others, each with ``…_stderr``. A split without slices is left out.

    >>> scores = {2: {"right": np.array([1, 1])}, 4: {"right": np.array([1, 0])}}
    >>> means = split_means(scores, ["right"], lambda length: length <= 2)
    >>> means["test/right"], means["id/right"], means["ood/right"]
    (75.0, 100.0, 50.0)
    """
    slices = sorted(scores)
    trained = np.array(list(map(is_trained, slices)))
    metrics = {}
    for split, inside in (("test", trained | True), ("id", trained), ("ood", ~trained)):
        if not inside.any():
            continue
        for measure in measures:
            means, variances = _means_and_variances([scores[name][measure] for name in slices])
            # Slices are independent and fixed: the variance of their mean is the mean of their own
            # variances, over their number.
            error = np.sqrt(variances[inside].sum().clip(0)) / inside.sum()
            metrics[f"{split}/{measure}"] = 100 * float(means[inside].mean())
            metrics[f"{split}/{measure}_stderr"] = 100 * float(error)
    return metrics


def _means_and_variances(slices: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return of each slice the mean of its rows, and the variance of that mean.

    The population variance mean(x²) - mean(x)² is written so that it is p (1 - p) of a measure that
    is 0 or 1, without rounding.
    """
    means = np.zeros(len(slices))
    variances = np.zeros(len(slices))
    for number, scores in enumerate(slices):
        rows = scores.astype(float)
        mean = rows.mean()
        spread = mean * (1 - mean) - (rows * (1 - rows)).mean()
        means[number] = mean
        variances[number] = spread / max(len(rows) - 1, 1)
    return means, variances


def slice_heatmap(
    scores: Mapping[Any, RowScores],
    measures: Sequence[str],
    axes: Mapping[str, Sequence[int]],
    is_trained: Callable[[Any], bool],
) -> Heatmap | None:
    """Draw each slice's mean in percent (NaN: not scored): measures by length, or a grid of
    pairs.
    """
    if not axes:
        return None
    if len(axes) == 2:
        return _grid_of_pairs(scores, measures[0], axes, is_trained)
    (label, lengths), *_ = axes.items()
    values = np.zeros((len(measures), len(lengths)))
    for row, measure in enumerate(measures):
        values[row] = [_percent(scores, length, measure) for length in lengths]
    return Heatmap(
        values,
        title="right (%)",
        row_label="",
        column_label=label,
        trained=(len(measures), sum(map(is_trained, lengths))),
        rows=[measure.replace("_", " ") for measure in measures],
        columns=_names(lengths),
    )


def _grid_of_pairs(
    scores: Mapping[Any, RowScores],
    measure: str,
    axes: Mapping[str, Sequence[int]],
    is_trained: Callable[[Any], bool],
) -> Heatmap:
    """Draw one measure of pairs of lengths."""
    (row_label, first), (column_label, second) = axes.items()
    values = np.zeros((len(first), len(second)))
    for row, a in enumerate(first):
        values[row] = [_percent(scores, (a, b), measure) for b in second]
    return Heatmap(
        values,
        title=f"{measure.replace('_', ' ')} (%)",
        row_label=row_label,
        column_label=column_label,
        trained=(
            sum(is_trained((a, second[0])) for a in first),
            sum(is_trained((first[0], b)) for b in second),
        ),
        rows=_names(first),
        columns=_names(second),
    )


def _percent(scores: Mapping[Any, RowScores], cell: Any, measure: str) -> float:
    """Return the mean of a slice's rows, or NaN where the slice is not scored."""
    return 100 * float(scores[cell][measure].mean()) if cell in scores else np.nan


def _names(lengths: Sequence[int]) -> list[str]:
    """Name the lengths of an axis, but for 1, 2, …, which is how a heatmap counts by itself."""
    plain = list(lengths) == list(range(1, len(lengths) + 1))
    return [] if plain else list(map(str, lengths))
