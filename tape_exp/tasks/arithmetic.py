"""Addition with reversed digits, tested at twice the trained length (section 4.1 of the paper)."""

import copy
import itertools
from collections.abc import Iterable
from functools import cached_property, partial
from typing import Annotated, Any

import numpy as np
from annotated_types import Interval
from torch import Tensor

from tape_exp.data.batch import Batch
from tape_exp.machine.seeding import random_rows, seed_for, uniform_ints
from tape_exp.models.decoder import Decoder
from tape_exp.results.evaluation import Evaluation
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.schema import Arch, Count, Optim
from tape_exp.tasks.base import Model, Progress, Task
from tape_exp.tasks.diagnostics.digit_attention import (
    address_metrics,
    address_names,
    digit_attention,
)
from tape_exp.tasks.diagnostics.interventions import INTERVENTIONS, MaskedBatches, interventions
from tape_exp.tasks.diagnostics.positional_state import (
    factor_metrics,
    factor_names,
    state_metrics,
    state_names,
    updates_positions,
)
from tape_exp.tasks.slices import RowScores, next_tokens, split_names
from tape_exp.tasks.sums import (
    FAULTS,
    PAD,
    VOCABULARY,
    ZERO,
    fault_metrics,
    row_length,
    sum_scores,
    sums_of,
    write_rows,
)

SUMS_PER_SAMPLE = 10  # of a cell whose test samples are held out of training, at least
DIAGNOSED = 32  # sums of one pair of lengths, whose state and attention are looked at


class Arithmetic(Task):
    """``A+B=C<eos>`` with the least-significant digits first; exact match of answer and EOS.

    Training draws operand lengths i, j uniformly from 1 … n, independently, and operands uniformly
    among the numbers of that length (the "bucket" method of McLeish et al., 2024). The test grid
    has fresh samples for each ordered pair of lengths up to ``test_digits`` and does not depend on
    the seed. The loss is the mean over answer digits and EOS.

    Metrics, in percent: ``test/exact_match`` (unweighted mean over the grid, the paper's number),
    ``id/exact_match`` (both operands within the trained lengths), ``ood/exact_match`` (the other
    cells), each with its standard error. Diagnostics tell why sums are wrong:

    - ``forced/…`` and ``failures/…``: :func:`~tape_exp.tasks.sums.fault_metrics`;
    - ``address/…``: where the digits of an answer look (``diagnostics.digit_attention``);
    - ``state/…``, of TAPE: its positional state (``diagnostics.positional_state``);
    - ``causal/<intervention>/…``, of TAPE: the exact match of up to :attr:`diagnosed_per_cell`
      samples a cell with parts of the state's update left out (``diagnostics.interventions``),
      among them ``causal/<intervention>/next/…``, of sums whose longer operand has one digit more
      than the trained ones.

    Args:
        train_digits, test_digits: the longest operand in training, n, and in the test.
        samples_per_cell: test samples for each pair of lengths.
        rows_per_batch: rows of an evaluation batch, at least one cell.
        hold_out: draw a training sum again that the test has (``b+a`` is another sum than ``a+b``),
            but for cells of few: with 100 samples, 1 × 1 and 1 × 2 digits. Without, as in the
            recorded runs, training at scale smoke shows 27 % of the test's of trained lengths.
    """

    measures = ("exact_match",)
    vocabulary = VOCABULARY
    diagnosed_per_cell = 10

    def __init__(
        self,
        arch: Arch,
        optim: Optim,
        seed: int,
        train_digits: Count,
        test_digits: Annotated[int, Interval(ge=1, le=10_000)],
        samples_per_cell: Count = 100,
        rows_per_batch: Count = 1000,
        hold_out: bool = False,
    ) -> None:
        if test_digits < train_digits:
            raise ConfigError(
                f"task.test_digits={test_digits} is below {train_digits}, the trained ones."
            )
        sizes = {"vocab": len(VOCABULARY), "digits": tuple(range(ZERO, ZERO + 10))}
        sizes |= {"max_length": row_length(test_digits) - 1}
        super().__init__(arch, optim, seed, train_length=row_length(train_digits) - 1, **sizes)
        lengths = range(1, test_digits + 1)
        self.axes = {f"digits of the {operand} operand": lengths for operand in ("first", "second")}
        self.trained_length = self.train_digits = train_digits
        self.test_digits = test_digits
        self.hold_out = hold_out
        self.samples_per_cell = samples_per_cell
        self.rows_per_batch = rows_per_batch

    def stream(self, key: int, first: int, count: int) -> Batch:
        """Draw samples by the bucket method, right-padded to the longest possible row."""
        batch = self._bucket_batch(key, first, count)
        rows = self._held_out_rows(batch)
        while rows:
            key = seed_for(key, "again")
            redrawn = self._bucket_batch(key, first, count)
            for name, tokens in batch.items():
                tokens[rows] = redrawn[name][rows]
            rows = self._held_out_rows(batch)
        return batch

    def _held_out_rows(self, batch: Batch) -> list[int]:
        """List the rows of a batch that only the test may have."""
        if not self.hold_out:
            return []
        return [row for row, numbers in enumerate(sums_of(batch)) if numbers in self.held_out]

    def _bucket_batch(self, key: int, first: int, count: int) -> Batch:
        """Draw samples first … first + count - 1 of a stream, whatever the test has."""
        n = self.train_digits
        random = random_rows(key, first, count, 2 * n + 2)
        lengths = uniform_ints(n, random[:, :2]).astype(np.int64) + 1
        return next_tokens(*write_rows(lengths[:, 0], lengths[:, 1], random[:, 2:]))

    @cached_property
    def held_out(self) -> frozenset[bytes]:
        """Collect the sums of the test that training does not show."""
        lengths = range(1, self.train_digits + 1)
        least = SUMS_PER_SAMPLE * self.samples_per_cell
        sums: set[bytes] = set()
        for a, b in itertools.product(lengths, lengths):
            if 81 * 10 ** (a + b - 2) >= least:
                sums.update(sums_of(self.grid_batch([(a, b)])))
        return frozenset(sums)

    def validation_batches(self) -> list[Batch]:
        """Draw 512 fresh samples of the trained lengths, the same for every seed."""
        return [self.stream(seed_for(0, "validation"), first, 256) for first in (0, 256)]

    def test_batches(self) -> list[tuple[Any, Any]]:
        """List the grid in batches of cells, the shortest rows first so that there is little
        padding.
        """
        lengths = range(1, self.test_digits + 1)
        cells = sorted(itertools.product(lengths, lengths), key=lambda cell: sum(cell) + max(cell))
        per_batch = max(self.rows_per_batch // self.samples_per_cell, 1)
        batches: list[tuple[Any, Any]] = []
        for start in range(0, len(cells), per_batch):
            batch = cells[start : start + per_batch]
            batches.append((batch, partial(self.grid_batch, batch)))
        return batches

    def evaluate(self, model: Model, progress: Progress, limit: int | None = None) -> Evaluation:
        """Score the grid, and of a decoder diagnose where it looks and what its state is for."""
        evaluation = super().evaluate(model, progress, limit)
        decoder = getattr(model, "decoder", None)
        if decoder is not None:
            evaluation.metrics |= self.address_metrics(model)
            if updates_positions(decoder):
                evaluation.metrics |= self.position_metrics(model, decoder, progress, limit)
        return evaluation

    def address_metrics(self, model: Model) -> dict[str, float]:
        """Measure where the digits of an answer look in the longest trained sums, and with one
        digit more, where the test has such.
        """
        by_length = {}
        for number, length in enumerate(self._lengths_of_address()):
            digits = self.train_digits + number
            tokens = self.grid_batch([(digits, digits)])["inputs"][:DIAGNOSED]
            by_length[length] = digit_attention(model, tokens, digits)
        return address_metrics(by_length)

    def _lengths_of_address(self) -> list[str]:
        """Name the lengths of :meth:`address_metrics`."""
        return ["id", "next"] if self.test_digits > self.train_digits else ["id"]

    def position_metrics(
        self, model: Model, decoder: Decoder, progress: Progress, limit: int | None
    ) -> dict[str, float]:
        """Measure the state by layer, and exact match with parts of it or of its update left
        out.
        """
        tokens = self.grid_batch([(self.train_digits, self.train_digits)])["inputs"][:DIAGNOSED]
        metrics = state_metrics(model, tokens, tokens != PAD)
        metrics |= factor_metrics(model, tokens, tokens != PAD)
        few = copy.copy(self)
        few.samples_per_cell = min(self.diagnosed_per_cell, self.samples_per_cell)
        rows = itertools.islice(few.trained_rows(), limit)
        for name, changed in interventions(model, decoder, rows).items():
            with changed():
                evaluation = Task.evaluate(few, model, progress, limit)
            for split, value in few.means_by_split(evaluation).items():
                metrics[f"causal/{name}/{split}/exact_match"] = value
        return metrics

    def trained_rows(self) -> MaskedBatches:
        """Yield the rows of trained lengths that the test has, in batches, and which of their
        tokens are no padding.
        """
        for cells, _ in self.test_batches():
            trained = [*filter(self.is_trained, cells)]
            if trained:
                tokens = self.grid_batch(trained)["inputs"]
                yield tokens, tokens != PAD

    def means_by_split(self, evaluation: Evaluation) -> dict[str, float]:
        """Return the exact match of trained and of longer sums, and of those of one digit more
        (``next``).
        """
        metrics = evaluation.metrics
        grid = evaluation.heatmap
        means = {split: metrics.get(f"{split}/exact_match") for split in ("id", "ood")}
        if grid is not None:
            lengths = np.arange(1, self.test_digits + 1)
            cells = grid.values[np.maximum.outer(lengths, lengths) == self.train_digits + 1]
            scored = cells[~np.isnan(cells)]
            means["next"] = float(scored.mean()) if len(scored) else None
        return {split: value for split, value in means.items() if value is not None}

    def metric_names(self) -> list[str]:
        """Name all metrics, among them diagnostics that only some encodings or answers have."""
        splits = self.splits()
        names = split_names(self.measures, ("test", *splits))
        names += [f"forced/{name}" for name in names]
        for split, fault in itertools.product(splits, FAULTS):
            names.append(f"failures/{split}/{fault}")
        lengths = self._lengths_of_address()
        causal = dict.fromkeys([*splits, *lengths])
        for intervention, split in itertools.product(INTERVENTIONS, causal):
            names.append(f"causal/{intervention}/{split}/exact_match")
        names += address_names(lengths, self.arch.layers)
        return [*names, *state_names(self.arch), *factor_names(self.arch)]

    def score_rows(self, logits: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Score exact match, and how each sum fails."""
        return super().score_rows(logits, labels) | sum_scores(logits, labels)

    def summarise(self, scores: dict[Any, RowScores]) -> Evaluation:
        """Average over the grid, and count how sums fail."""
        evaluation = super().summarise(scores)
        evaluation.metrics |= fault_metrics(scores, self.is_trained)
        return evaluation

    def grid_batch(self, cells: Iterable[tuple[int, int]]) -> Batch:
        """Make all test samples of the given cells; those of a cell depend only on its two
        lengths.
        """
        cells = list(cells)
        rows = self.samples_per_cell
        random = np.zeros((len(cells), rows, 2, max(map(max, cells))), dtype=np.uint32)
        for of_cell, (a, b) in zip(random, cells, strict=True):
            drawn = random_rows(seed_for(0, "test", a, b), 0, rows, a + b)
            of_cell[:, 0, :a] = drawn[:, :a]
            of_cell[:, 1, :b] = drawn[:, a:]
        lengths = np.repeat(np.array(cells, dtype=np.int64), rows, 0)
        tokens, answer = write_rows(lengths[:, 0], lengths[:, 1], random.reshape(len(lengths), -1))
        width = int(np.flatnonzero(answer.any(0))[-1]) + 1
        return next_tokens(tokens[:, :width], answer[:, :width])
