"""The battery: small problems of the field, trained on short rows and tested on long ones."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tape_exp.data.batch import Batch
from tape_exp.data.problems import PROBLEMS
from tape_exp.data.problems.base import Problem, Rows
from tape_exp.machine.seeding import seed_for
from tape_exp.runs.evaluation import Evaluation
from tape_exp.settings.errors import ConfigError, at_least_one, one_of
from tape_exp.settings.schema import Arch, Optim
from tape_exp.tasks.base import Task
from tape_exp.tasks.slices import Scores, check_lengths, next_tokens, split_means

MORE = (1, 4, 16, 64)  # times as many rows are drawn until enough of them differ


class Battery(Task):
    """One problem of :data:`~tape_exp.data.problems.PROBLEMS`, which docs/battery.md lists.

    A training row has a length drawn uniformly from those up to ``train_length``, and sample k is a
    function of (seed, k). The loss is on what the tokens before it determine, and so is the score.
    The test rows of a length do not depend on the seed and are all different: they are the first
    different ones of a stream of their own. (Short ones also occur in training.)

    Metrics, in percent: ``exact_match`` (rows that are right at all scored tokens) and
    ``token_accuracy``, as ``test/…``, ``id/…`` and ``ood/…``, as ``test/…@n`` at each length n, and
    at the trained length as ``sparse/…`` and ``dense/…`` of ``flip_flop``, its other distributions.

    Args:
        problem: its name.
        train_length: n, the longest in training; what a length counts is up to the problem.
        lengths: of the test; None: n/2, n, 3/2 n, 2 n, 4 n and 8 n (of ``scan`` all above n), as
            far as there are enough rows.
        samples_per_length: test rows of each length.
    """

    def __init__(
        self,
        arch: Arch,
        optim: Optim,
        seed: int,
        problem: str,
        train_length: int,
        lengths: Sequence[int] | None = None,
        samples_per_length: int = 100,
    ) -> None:
        one_of("task.problem", problem, PROBLEMS)
        at_least_one("task", samples_per_length=samples_per_length)
        self.problem, self.samples = PROBLEMS[problem], samples_per_length
        if lengths is None:
            usual = filter(self.problem.has, self.problem.usual(train_length))
            enough = [n for n in usual if self.problem.count(n) >= samples_per_length]
            lengths = enough or [train_length]
        check_lengths_of(self.problem, train_length, lengths)
        lengths = sorted(set(lengths))
        super().__init__(
            arch,
            optim,
            seed,
            vocab=len(self.problem.symbols),
            max_length=self.problem.width(lengths[-1]) - 1,
            train_length=self.problem.width(train_length) - 1,
            digits=self.problem.digits,
        )
        self.axes, self.trained_length = {f"length ({self.problem.unit})": lengths}, train_length
        self.trained = self.problem.lengths(train_length)
        self.tested: dict[int | str, tuple[Problem, int]] = {n: (self.problem, n) for n in lengths}
        for name, other in self.problem.others.items():
            self.tested[name] = other, self.trained[-1]
        for slice_, (each, length) in self.tested.items():
            if each.count(length) < MORE[-1] * samples_per_length:
                self.test_rows(slice_)  # if there are too few rows, this says so now

    @staticmethod
    def problems() -> dict[str, str]:
        """What each problem asks, by its name."""
        return {name: problem.summary for name, problem in PROBLEMS.items()}

    def train_batch(self, first: int, count: int) -> Batch:
        """Rows of all lengths up to the trained one, padded to the longest possible row."""
        key = seed_for(self.seed, "train")
        return next_tokens(*self.problem.rows(key, first, count, self.trained))

    def validation_batches(self) -> list[Batch]:
        """256 rows of the trained lengths, the same for every seed."""
        key = seed_for(0, "validation")
        return [next_tokens(*self.problem.rows(key, i, 128, self.trained)) for i in (0, 128)]

    def test_batches(self) -> list[tuple[Any, Batch]]:
        """A batch for each length, and one for each of the problem's other distributions."""
        return [(slice_, next_tokens(*self.test_rows(slice_))) for slice_ in self.tested]

    def test_rows(self, slice_: int | str) -> Rows:
        """The first different rows of the stream of a slice."""
        key, (problem, length) = seed_for(0, "test", slice_), self.tested[slice_]
        for times in MORE:
            tokens, scored = problem.rows(key, 0, times * self.samples, [length])
            found = np.unique(tokens, axis=0, return_index=True)[1]
            if len(found) >= self.samples:
                kept = np.sort(found)[: self.samples]
                return tokens[kept], scored[kept]
        raise ConfigError(
            f"task.problem={self.problem.name} makes only {len(found)} different rows of length "
            f"{length}; task.samples_per_length={len(found)} would do, or longer task.lengths."
        )

    def summarise(self, scores: dict[Any, Scores]) -> Evaluation:
        """Means over lengths and at each length; other distributions apart."""
        own = {n: rows for n, rows in scores.items() if n not in self.problem.others}
        evaluation = super().summarise(own)
        for n, rows in own.items():
            for measure in self.measures:
                evaluation.metrics[f"test/{measure}@{n}"] = 100 * float(rows[measure].mean())
        for name in self.problem.others:
            if name in scores:
                apart = split_means({0: scores[name]}, self.measures, bool)  # no length is trained
                for metric in [metric for metric in apart if metric.startswith("ood/")]:
                    evaluation.metrics[metric.replace("ood", name)] = apart[metric]
        return evaluation


def check_lengths_of(problem: Problem, trained: int, tested: Any) -> None:
    """Refuse lengths that the problem does not have, and a test that ends below the trained one."""
    if not problem.shortest <= trained <= problem.longest:
        raise ConfigError(
            f"task.train_length={trained} must be from {problem.shortest} to {problem.longest}, "
            f"the lengths in {problem.unit} of task.problem={problem.name}."
        )
    check_lengths(tested, problem.unit, f"[{trained},{2 * trained}]")
    for length in tested:
        if not problem.has(length):
            near = min(problem.lengths(problem.longest), key=lambda n: abs(n - length))
            raise ConfigError(
                f"task.lengths={list(tested)} has {length}, but task.problem={problem.name} has "
                f"no rows of {length} {problem.unit}; {near} would do."
            )
    if max(tested) < trained:
        raise ConfigError(
            f"task.lengths={list(tested)} ends below task.train_length={trained}; "
            f"task.train_length={max(tested)} or less would do."
        )
