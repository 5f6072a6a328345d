"""Addition with reversed digits: train on short operands, test on twice their length (section 4.1
of the TAPE paper).
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tape_exp.data.batch import IGNORE, Batch
from tape_exp.machine.processes import share, sum_over_processes
from tape_exp.machine.seeding import RowSampler, below, lanes, seed_for
from tape_exp.runs.evaluation import Evaluation, Heatmap
from tape_exp.settings.errors import ConfigError, at_least_one
from tape_exp.settings.schema import Arch, Optim
from tape_exp.tasks.base import Task

PAD, EOS, PLUS, EQUALS, ZERO = range(5)  # and the other digits, up to ZERO + 9
VOCABULARY = ["<pad>", "<eos>", "+", "=", *"0123456789"]


class Arithmetic(Task):
    """``A+B=C<eos>``, every number least-significant digit first; exact match of the answer, EOS
    included.

    Training draws operand lengths i, j uniformly from 1 … n, independently, and operands uniformly
    among the numbers of that length (the "bucket" method of McLeish et al., 2024). The test grid
    has fresh samples for each ordered pair of lengths up to ``test_digits`` and does not depend on
    the seed. The loss is the mean over answer digits and EOS.

    Metrics, in percent: ``test/exact_match`` (unweighted mean over the grid, the paper's number),
        ``id/exact_match`` (both
    operands within the trained lengths), ``ood/exact_match`` (the other cells), each with its
    standard error.

    Args:
        train_digits: n, the longest operand in training.
        test_digits: the longest operand in the test; above n to measure generalisation.
        samples_per_cell: test samples for each pair of lengths.
        rows_per_batch: rows of an evaluation batch, at least one cell.
    """

    def __init__(
        self,
        arch: Arch,
        optim: Optim,
        seed: int,
        train_digits: int,
        test_digits: int,
        samples_per_cell: int = 100,
        rows_per_batch: int = 1000,
    ) -> None:
        at_least_one("task", train_digits=train_digits, samples_per_cell=samples_per_cell)
        if test_digits < train_digits:
            raise ConfigError(
                f"task.test_digits={test_digits} is below task.train_digits={train_digits}; "
                f"task.test_digits={2 * train_digits} is what the paper's settings do."
            )
        arch = dataclasses.replace(
            arch,
            vocab=len(VOCABULARY),
            max_length=row_length(test_digits) - 1,
            train_length=row_length(train_digits) - 1,
        )
        super().__init__(arch, optim, seed)
        self.train_digits, self.test_digits = train_digits, test_digits
        self.samples_per_cell, self.rows_per_batch = samples_per_cell, rows_per_batch

    def train_batch(self, first: int, count: int) -> Batch:
        """Samples of the bucket method, right-padded to the longest possible row."""
        return as_batch(
            *bucket_samples(seed_for(self.seed, "train"), first, count, self.train_digits)
        )

    def validation_batches(self) -> list[Batch]:
        """512 fresh samples of the trained lengths, the same for every seed."""
        return [
            as_batch(*bucket_samples(seed_for(0, "validation"), 256 * i, 256, self.train_digits))
            for i in range(2)
        ]

    def validation_metrics(self, logits: Tensor, batch: Batch) -> dict[str, Tensor]:
        """``exact_match``: rows whose whole answer is right, in percent."""
        scored = (batch["labels"] != IGNORE).any(-1)
        return {"exact_match": 100 * (exact_match(logits, batch["labels"]) & scored).sum()}

    def evaluate(
        self, model: Callable[..., Tensor], progress: Callable[..., Any], limit: int | None = None
    ) -> Evaluation:
        """Exact match on the (test_digits)² grid, one forward pass per sample.

        Greedy decoding writes the whole answer if and only if, given the right answer so far, the
        arg-max is right at every position of it: teacher forcing scores a sample at once.
        """
        n = self.test_digits
        correct_seen = torch.zeros(2, n, n, dtype=torch.int64)
        batches = share(list(enumerate(itertools.islice(self._cells(), limit))))
        for (index, cells), counts in progress(batches, "evaluating the grid"):
            batch = self.grid_batch(cells)
            logits = model(batch["inputs"], sampler=RowSampler(0, "evaluation", index))
            if not counts:
                continue
            matches = exact_match(logits, batch["labels"].to(logits.device)).view(len(cells), -1)
            rows, columns = torch.tensor(cells).T - 1
            correct_seen[0, rows, columns] = matches.sum(1).cpu()
            correct_seen[1, rows, columns] = self.samples_per_cell
        correct, seen = sum_over_processes(correct_seen).double().numpy()
        return self._summary(correct, seen)

    def grid_batch(self, cells: Iterable[tuple[int, int]]) -> Batch:
        """All test samples of the given cells; those of a cell depend on its two lengths alone."""
        cells = list(cells)
        longest, rows = max(map(max, cells)), self.samples_per_cell
        lane = np.zeros((len(cells), rows, 2, longest), dtype=np.uint32)
        for cell, (a, b) in zip(lane, cells, strict=True):
            drawn = lanes(seed_for(0, "test", a, b), 0, rows, a + b)
            cell[:, 0, :a], cell[:, 1, :b] = drawn[:, :a], drawn[:, a:]
        lengths = np.repeat(np.array(cells, dtype=np.int64), rows, 0)
        tokens, equals, end = write_rows(
            lengths[:, 0], lengths[:, 1], lane.reshape(len(lengths), -1)
        )
        return as_batch(tokens[:, : int(end.max())], equals, end)

    def _cells(self) -> Iterator[list[tuple[int, int]]]:
        """The grid in batches of cells, shortest rows first so that little of a batch is
        padding.
        """
        lengths = range(1, self.test_digits + 1)
        cells = sorted(itertools.product(lengths, lengths), key=lambda cell: sum(cell) + max(cell))
        per_batch = max(self.rows_per_batch // self.samples_per_cell, 1)
        for first in range(0, len(cells), per_batch):
            yield cells[first : first + per_batch]

    def _summary(self, correct: np.ndarray, seen: np.ndarray) -> Evaluation:
        """Means and standard errors over the cells that were scored."""
        trained = np.zeros_like(seen, dtype=bool)
        trained[: self.train_digits, : self.train_digits] = True
        accuracy = correct / np.maximum(seen, 1)
        # Cells are independent and fixed: the variance of their mean is the mean of their own
        # variances, over their number.
        variance = accuracy * (1 - accuracy) / np.maximum(seen - 1, 1)
        metrics = {}
        for split, inside in (
            ("test", seen > 0),
            ("id", trained & (seen > 0)),
            ("ood", ~trained & (seen > 0)),
        ):
            if inside.any():
                metrics[f"{split}/exact_match"] = 100 * float(accuracy[inside].mean())
                metrics[f"{split}/exact_match_stderr"] = 100 * float(
                    np.sqrt(variance[inside].sum()) / inside.sum()
                )
        heatmap = Heatmap(
            np.where(seen > 0, 100 * accuracy, np.nan),
            title="exact match (%)",
            row_label="digits of the first operand",
            column_label="digits of the second operand",
            trained=(self.train_digits, self.train_digits),
        )
        means = [
            {
                "cells": split,
                "exact_match": metrics[f"{split}/exact_match"],
                "stderr": metrics[f"{split}/exact_match_stderr"],
            }
            for split in ("test", "id", "ood")
            if f"{split}/exact_match" in metrics
        ]
        return Evaluation(metrics, heatmap, tables={"grid_means": means})


def row_length(digits: int) -> int:
    """Tokens of the longest row: two operands, a sum of one digit more, ``+``, ``=`` and EOS."""
    return 3 * digits + 4


def bucket_samples(
    key: int, first: int, count: int, digits: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows ``first`` … of the bucket method: both lengths uniform over 1 … digits. See
    :func:`write_rows`.
    """
    lane = lanes(key, first, count, 2 * digits + 2)
    lengths = below(digits, lane[:, :2]).astype(np.int64) + 1
    return write_rows(lengths[:, 0], lengths[:, 1], lane[:, 2:])


def write_rows(
    a: np.ndarray, b: np.ndarray, lane: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Additions of operands of lengths ``a`` and ``b``, their digits drawn from ``lane`` (rows, 2
    n).

    Returns:
        tokens (rows, 3 n + 4) uint8, right-padded; the index of ``=`` in each row; the length of
        each row.
    """
    rows, n = lane.shape[0], lane.shape[1] // 2
    operands = []
    for length, part in ((a, lane[:, :n]), (b, lane[:, n:])):
        digit = below(10, part).astype(np.uint8)
        digit[np.arange(n) >= length[:, None]] = 0
        last = np.arange(rows), length - 1  # the most significant digit is not 0
        digit[last] = below(9, part[last]) + 1
        operands.append(digit)
    total = np.zeros(
        (n + 1, rows), dtype=np.uint8
    )  # digit-major: the carry runs over contiguous rows
    total[:n] = operands[0].T
    total[:n] += operands[1].T
    for t in range(n):
        carry = total[t] >= 10
        total[t] -= 10 * carry.astype(np.uint8)
        total[t + 1] += carry
    longest = np.maximum(a, b)
    c = longest + (total[longest, np.arange(rows)] > 0)

    def column(value: int) -> np.ndarray:
        return np.full((rows, 1), value, dtype=np.uint8)

    one = np.ones_like(a)
    parts = [
        operands[0] + ZERO,
        column(PLUS),
        operands[1] + ZERO,
        column(EQUALS),
        total.T + ZERO,
        column(EOS),
    ]
    lengths = (a, one, b, one, c, one)
    used = [
        np.arange(part.shape[1]) < length[:, None]
        for part, length in zip(parts, lengths, strict=True)
    ]
    end = a + b + c + 3
    tokens = np.zeros((rows, row_length(n)), dtype=np.uint8)
    tokens[np.arange(row_length(n)) < end[:, None]] = np.concatenate(parts, 1)[
        np.concatenate(used, 1)
    ]
    return tokens, a + b + 1, end


def as_batch(tokens: np.ndarray, equals: np.ndarray, end: np.ndarray) -> Batch:
    """Inputs and next-token labels, IGNORE everywhere but on the answer and EOS."""
    position = np.arange(tokens.shape[1] - 1)
    answer = torch.from_numpy((position >= equals[:, None]) & (position < end[:, None] - 1))
    rows = torch.from_numpy(tokens).long()
    return {"inputs": rows[:, :-1], "labels": rows[:, 1:].masked_fill(~answer, IGNORE)}


def exact_match(logits: Tensor, labels: Tensor) -> Tensor:
    """(B,) booleans: the arg-max is right wherever there is a label."""
    return ((logits.argmax(-1) == labels) | (labels == IGNORE)).all(-1)


def text(tokens: Iterable[int]) -> str:
    """A row as people read it, without padding: ``12+9=03<eos>`` is 21 + 9 = 30."""
    return "".join(VOCABULARY[t] for t in tokens if t != PAD)
