"""Addition with reversed digits, tested at twice the trained length (section 4.1 of the paper)."""

import copy
import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from tape_exp.data.batch import Batch
from tape_exp.machine.seeding import lanes, seed_for, uniform_ints
from tape_exp.models.decoder import Decoder
from tape_exp.runs.evaluation import Evaluation
from tape_exp.settings.errors import ConfigError, at_least_one, between
from tape_exp.settings.schema import Arch, Optim
from tape_exp.tasks.base import Task
from tape_exp.tasks.index_hints import Rows, letter, with_hints
from tape_exp.tasks.position_use import RESETS, state_metrics, updates_positions, without
from tape_exp.tasks.slices import LazyBatches, Scores, next_tokens
from tape_exp.tasks.sum_faults import fault_metrics, fault_tables, longest_carry_chain, sum_scores
from tape_exp.tasks.sum_maps import maps_of_row, solved_and_failed

PAD, EOS, PLUS, EQUALS, ZERO = range(5)  # and the other digits, up to ZERO + 9
VOCABULARY = ["<pad>", "<eos>", "+", "=", *"0123456789"]


class Arithmetic(Task):
    """``A+B=C<eos>`` with the least-significant digits first; exact match of answer and EOS.

    Training draws operand lengths i, j uniformly from 1 … n, independently, and operands uniformly
    among the numbers of that length (the "bucket" method of McLeish et al., 2024). The test grid
    has fresh samples for each ordered pair of lengths up to ``test_digits`` and does not depend on
    the seed. The loss is the mean over answer digits and EOS.

    Metrics, in percent: ``test/exact_match`` (unweighted mean over the grid, the paper's number),
    ``id/exact_match`` (both operands within the trained lengths), ``ood/exact_match`` (the other
    cells), each with its standard error. Diagnostics, which tell why sums are wrong:
    ``forced/…`` and ``failures/…`` (:mod:`~tape_exp.tasks.sum_faults`), of TAPE also ``state/…``
    and ``causal/<what is reset>/…``, the exact match of up to :attr:`diagnosed_per_cell` samples a
    cell with updates of the state left out (:mod:`~tape_exp.tasks.position_use`).

    With index hints (Zhou et al., "What Algorithms can Transformers Learn?", 2023) a letter is
    before each digit of the operands and of the answer, the same for digits of equal place:
    ``a1b2+a9=a0b3<eos>``. This tells which digits belong together, whatever the encoding: a result
    with hints is a ceiling for those without. The model writes the letters of its answer, so the
    loss counts them, and a sum is right if greedy decoding writes all of it; places and faults are
    counted by digits as ever. Test rows begin with ``a``; in training a row begins with any letter
    from which the longest trained sum stays within those of the longest test, so that all are
    trained. The sums are those without hints.

    Args:
        train_digits: n, the longest operand in training.
        test_digits: the longest operand in the test; above n to measure generalisation.
        samples_per_cell: test samples for each pair of lengths.
        rows_per_batch: rows of an evaluation batch, at least one cell.
        index_hints: whether letters are before digits.
    """

    measures = ("exact_match",)

    @property
    def eos(self) -> int:
        """``<eos>``."""
        return EOS

    def encode(self, text: str) -> list[int]:
        """The tokens of a row as people read it, least-significant digits first: ``21+9=`` asks for
        12 + 9. With index hints a letter is before each digit.
        """
        letters = [letter(n) for n in range(self.arch.vocab - len(VOCABULARY))]
        number_of = {word: number for number, word in enumerate([*VOCABULARY, *letters])}
        words = re.findall(r"<\w+>|[a-z]+|.", text, re.DOTALL)
        if unknown := [word for word in words if word not in number_of]:
            raise ConfigError(f"{unknown[0]!r} is no token of addition; a row begins like 21+9=.")
        return [number_of[word] for word in words]

    def decode(self, ids: Sequence[int]) -> str:
        """:func:`text`."""
        return text(ids)

    diagnosed_per_cell = 10

    def __init__(
        self,
        arch: Arch,
        optim: Optim,
        seed: int,
        train_digits: int,
        test_digits: int,
        samples_per_cell: int = 100,
        rows_per_batch: int = 1000,
        index_hints: bool = False,
    ) -> None:
        at_least_one("task", train_digits=train_digits, samples_per_cell=samples_per_cell)
        at_least_one("task", rows_per_batch=rows_per_batch)
        between("task", 1, 10_000, test_digits=test_digits)
        if test_digits < train_digits:
            raise ConfigError(
                f"task.test_digits={test_digits} is below task.train_digits={train_digits}; "
                f"task.test_digits={2 * train_digits} is what the paper's settings do."
            )
        super().__init__(
            arch,
            optim,
            seed,
            vocab=len(VOCABULARY) + (test_digits + 1 if index_hints else 0),
            max_length=row_length(test_digits, index_hints) - 1,
            train_length=row_length(train_digits, index_hints) - 1,
            digits=() if index_hints else tuple(range(ZERO, ZERO + 10)),  # numbers are no runs then
        )
        self.index_hints = index_hints
        lengths = range(1, test_digits + 1)
        self.axes = {
            "digits of the first operand": lengths,
            "digits of the second operand": lengths,
        }
        self.trained_length = train_digits
        self.train_digits, self.test_digits = train_digits, test_digits
        self.samples_per_cell, self.rows_per_batch = samples_per_cell, rows_per_batch

    def train_batch(self, first: int, count: int) -> Batch:
        """Samples of the bucket method, right-padded to the longest possible row."""
        return self.bucket_batch(self.seed, "train", first, count)

    def validation_batches(self) -> list[Batch]:
        """512 fresh samples of the trained lengths, the same for every seed."""
        return [self.bucket_batch(0, "validation", first, 256) for first in (0, 256)]

    def bucket_batch(self, seed: int, purpose: str, first: int, count: int) -> Batch:
        """Samples of trained lengths, with hints that begin anywhere if there are any."""
        rows = bucket_samples(seed_for(seed, purpose), first, count, self.train_digits)
        if self.index_hints:
            lane = lanes(seed_for(seed, purpose, "index hints"), first, count, 1)[:, 0]
            offset = uniform_ints(self.test_digits - self.train_digits + 1, lane).astype(np.int64)
            rows = with_hints(rows, ZERO, len(VOCABULARY), offset)
        return as_batch(*rows)

    def test_batches(self) -> LazyBatches:
        """The grid in batches of cells, the shortest rows first so that there is little padding."""
        lengths = range(1, self.test_digits + 1)
        cells = sorted(itertools.product(lengths, lengths), key=lambda cell: sum(cell) + max(cell))
        per_batch = max(self.rows_per_batch // self.samples_per_cell, 1)
        starts = range(0, len(cells), per_batch)
        return LazyBatches([cells[start : start + per_batch] for start in starts], self.grid_batch)

    def evaluate(
        self, model: Callable[..., Tensor], progress: Callable[..., Any], limit: int | None = None
    ) -> Evaluation:
        """The grid, and of a decoder its attention, and what the updates of its state are for."""
        evaluation = super().evaluate(model, progress, limit)
        decoder = getattr(model, "decoder", None)
        if decoder is None:
            return evaluation
        self.add_maps(model, evaluation)
        if updates_positions(decoder):
            evaluation.metrics |= self.position_metrics(model, decoder, progress, limit)
        return evaluation

    def add_maps(self, model: Any, evaluation: Evaluation) -> None:
        """The attention on a solved and a failed sum whose first operand is one digit longer than
        trained, and whose second one is as long as may be; of the first of them also E·Eᵀ.
        """
        ring = self.train_digits + 1
        if ring > self.test_digits:
            return
        batch = self.few().grid_batch([(ring, b) for b in range(ring, 0, -1)])
        evaluation.record_matrices = False  # they are large
        evaluation.tables["mapped_sums"] = []
        for name, row in solved_and_failed(model, batch).items():
            end = int((batch["labels"][row] == EOS).nonzero()) + 1
            for key, matrix in maps_of_row(model, batch, row, end).items():
                if key.startswith("attention") or not evaluation.tables["mapped_sums"]:
                    evaluation.matrices[f"{key} {name}"] = matrix
            written = text([*batch["inputs"][row, :end].tolist(), EOS])
            evaluation.tables["mapped_sums"].append({"sum": name, "text": written})

    def position_metrics(
        self,
        model: Callable[..., Tensor],
        decoder: Decoder,
        progress: Callable[..., Any],
        limit: int | None,
    ) -> dict[str, float]:
        """Sizes and turns of the state by layer, and exact match with parts of its update reset."""
        tokens = self.grid_batch([(self.train_digits, self.train_digits)])["inputs"][:32]
        metrics = state_metrics(model, tokens, tokens != PAD)
        for name, parts in RESETS.items():
            with without(decoder, parts):
                found = Task.evaluate(self.few(), model, progress, limit).metrics
            metrics |= {
                f"causal/{name}/{split}/exact_match": found[f"{split}/exact_match"]
                for split in ("id", "ood")
                if f"{split}/exact_match" in found
            }
        return metrics

    def few(self) -> "Arithmetic":
        """This task with the first few samples of each cell."""
        few = copy.copy(self)
        few.samples_per_cell = min(self.diagnosed_per_cell, self.samples_per_cell)
        return few

    def score_rows(self, logits: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Exact match, and what :func:`~tape_exp.tasks.sum_faults.sum_scores` tells of mistakes."""
        step = 2 if self.index_hints else 1
        own = sum_scores(logits, labels, EOS, places=self.test_digits + 1, step=step)
        return super().score_rows(logits, labels) | own

    def summarise(self, scores: dict[Any, Scores]) -> Evaluation:
        """The means and the grid, the means as a table, and the diagnostics of wrong sums."""
        evaluation = super().summarise(scores)
        metrics = evaluation.metrics
        chains = {cell: self.carry_chains(cell) for cell in scores}
        evaluation.tables |= fault_tables(scores, chains, self.is_trained)
        evaluation.tables["grid_means"] = [
            {
                "cells": split,
                "exact_match": metrics[f"{split}/exact_match"],
                "stderr": metrics[f"{split}/exact_match_stderr"],
            }
            for split in ("test", "id", "ood")
            if f"{split}/exact_match" in metrics
        ]
        metrics |= fault_metrics(scores, self.is_trained)
        return evaluation

    def carry_chains(self, cell: tuple[int, int]) -> np.ndarray:
        """The longest carry chain of each test sample of a cell."""
        (a, b), (tokens, _, _) = cell, self.grid_rows([cell])
        tokens = tokens.astype(np.int64)
        return longest_carry_chain(tokens[:, :a] - ZERO, tokens[:, a + 1 : a + 1 + b] - ZERO)

    def grid_batch(self, cells: Iterable[tuple[int, int]]) -> Batch:
        """All test samples of the given cells; those of a cell depend only on its two lengths."""
        rows = self.grid_rows(list(cells))
        if self.index_hints:
            rows = with_hints(rows, ZERO, len(VOCABULARY), np.zeros(len(rows[0]), dtype=np.int64))
        tokens, equals, end = rows
        return as_batch(tokens[:, : int(end.max())], equals, end)

    def grid_rows(self, cells: list[tuple[int, int]]) -> Rows:
        """The same without hints, as :func:`write_rows` returns them."""
        longest, rows = max(map(max, cells)), self.samples_per_cell
        lane = np.zeros((len(cells), rows, 2, longest), dtype=np.uint32)
        for cell, (a, b) in zip(lane, cells, strict=True):
            drawn = lanes(seed_for(0, "test", a, b), 0, rows, a + b)
            cell[:, 0, :a], cell[:, 1, :b] = drawn[:, :a], drawn[:, a:]
        lengths = np.repeat(np.array(cells, dtype=np.int64), rows, 0)
        return write_rows(lengths[:, 0], lengths[:, 1], lane.reshape(len(lengths), -1))


def row_length(digits: int, index_hints: bool = False) -> int:
    """Tokens of the longest row: two operands, a sum of one digit more, ``+``, ``=`` and EOS; with
    hints two for each digit.
    """
    return (3 * digits + 1) * (1 + index_hints) + 3


def bucket_samples(key: int, first: int, count: int, digits: int) -> Rows:
    """Rows ``first`` … of the bucket method, with lengths from 1 … digits: :func:`write_rows`."""
    lane = lanes(key, first, count, 2 * digits + 2)
    lengths = uniform_ints(digits, lane[:, :2]).astype(np.int64) + 1
    return write_rows(lengths[:, 0], lengths[:, 1], lane[:, 2:])


def write_rows(a: np.ndarray, b: np.ndarray, lane: np.ndarray) -> Rows:
    """Additions of operands of lengths ``a`` and ``b``; ``lane`` (rows, 2 n) gives their digits.

    Returns:
        tokens (rows, 3 n + 4) uint8, right-padded; the index of ``=`` in each row; the length of
        each row.
    """
    rows, n = lane.shape[0], lane.shape[1] // 2
    operands = []
    for length, part in ((a, lane[:, :n]), (b, lane[:, n:])):
        digit = uniform_ints(10, part).astype(np.uint8)
        digit[np.arange(n) >= length[:, None]] = 0
        last = np.arange(rows), length - 1  # the most significant digit is not 0
        digit[last] = uniform_ints(9, part[last]) + 1
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
    """The batch of rows as :func:`write_rows` returns them; the loss is on the answer and EOS."""
    position = np.arange(tokens.shape[1])
    return next_tokens(tokens, (position > equals[:, None]) & (position < end[:, None]))


def text(tokens: Iterable[int]) -> str:
    """A row as people read it, without padding: ``12+9=03<eos>`` is 21 + 9 = 30."""
    after = len(VOCABULARY)  # letters of index hints
    words = (VOCABULARY[t] if t < after else letter(t - after) for t in tokens if t != PAD)
    return "".join(words)
