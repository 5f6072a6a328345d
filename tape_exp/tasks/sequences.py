"""A task whose rows are a prompt and an answer: a class with its symbols and ``sample``."""

import itertools
import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from tape_exp.data.batch import Batch
from tape_exp.machine.seeding import random_rows, seed_for, uniform_ints
from tape_exp.results.evaluation import Evaluation
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.schema import Arch, Count, Lengths, Optim
from tape_exp.tasks.base import Task
from tape_exp.tasks.slices import Row, RowScores, padded

EOS = 1  # padding is 0
TRIES = 64  # times as many rows are drawn until enough of them differ


class Draws:
    """The random numbers of one row: they depend on the stream's key and the row's number only."""

    def __init__(self, words: np.ndarray, key: int, row: int, piece: int = 0) -> None:
        self._words = words
        self._key = key
        self._row = row
        self._piece = piece
        self._next = 0

    @cached_property
    def _more(self) -> np.random.Philox:
        """Return words of counters of Philox that random_rows never reaches."""
        return np.random.Philox(key=self._key, counter=[0, 1 + self._row, self._piece, 0])

    def words(self, count: int) -> np.ndarray:
        """Return the next random numbers: (count,) uint32, uniform."""
        begin = self._next
        self._next = self._next + count
        if self._next > len(self._words):
            blocks = math.ceil(2 * self._next / 8)
            self._words = np.append(self._words, self._more.random_raw(4 * blocks).view(np.uint32))
        return self._words[begin : self._next]

    def below(self, limit: int) -> int:
        """Draw a uniform integer in 0 … limit - 1."""
        return int(self.words(1)[0]) * limit >> 32

    def integers(self, limit: int, count: int) -> np.ndarray:
        """Draw uniform integers in 0 … limit - 1: (count,) int64."""
        return uniform_ints(limit, self.words(count)).astype(np.int64)

    def choice(self, options: Sequence[str], count: int) -> list[str]:
        """Draw as many of the options, with replacement."""
        return [options[i] for i in self.integers(len(options), count).tolist()]

    def large(self, limit: int) -> int:
        """Draw a uniform integer in 0 … limit - 1, of any size, from all numbers that are left."""
        words = self.words(len(self._words) - self._next).astype("<u4")
        return int.from_bytes(words.tobytes(), "little") * limit >> 32 * len(words)

    def split(self, count: int) -> list["Draws"]:
        """Divide what is left equally, for a row whose length must not move its later numbers."""
        pieces = np.split(self._words[self._next :], count)
        return [Draws(words, self._key, self._row, piece) for piece, words in enumerate(pieces)]


class SequenceTask(Task):
    """Rows ``<prompt><answer><eos>`` of lengths up to ``train_length``; the test has longer ones.

    A subclass has ``symbols`` and :meth:`sample`. The loss and the score are on the answer and EOS.
    Training draws the length of a row uniformly from those up to ``train_length``, and sample k is
    a function of (seed, k). The test rows of a length do not depend on the seed and are all
    different: they are the first different ones of a stream of their own. (Short ones also occur in
    training.)

    Metrics, in percent: ``exact_match`` (rows that are right at all scored tokens) and
    ``token_accuracy``, as ``test/…``, ``id/…`` and ``ood/…``, and as ``test/…@n`` at each length n.

    Args:
        train_length: n, the longest in training; what a length counts is up to the task.
        lengths: of the test; None: those of :meth:`usual` of which there are enough rows.
        samples_per_length: test rows of each length.
    """

    symbols: Sequence[str]  # a string, or words; <pad> and <eos> come before them
    unit = "symbols"  # what a length counts
    shortest = 1
    longest = 10_000
    ends = True  # whether EOS follows the answer
    tokens: tuple[int, int] | None = None  # a and b, where rows up to n have at most a n + b tokens
    numbers = (2, 5)  # a and b, where a row of length n takes about a n + b random numbers
    digits: Sequence[str] = ()  # the symbols of digits, if numbers begin with the least one

    def sample(self, n: int, rng: Draws) -> tuple[Sequence[str], Sequence[str]]:
        """Make a prompt and an answer of length ``n``, in symbols, of random numbers of ``rng``."""
        raise NotImplementedError(f"{type(self).__name__} has no sample(n, rng).")

    def scored(self, answer: Sequence[str]) -> Sequence[bool]:
        """Say which symbols of an answer are scored: those that the ones before them determine."""
        return [True] * len(answer)

    def width(self, n: int) -> int:
        """Count the tokens of the longest row of lengths up to n: :attr:`tokens`, else of 256 such
        rows.
        """
        if self.tokens:
            return self.tokens[0] * n + self.tokens[1]
        rows = self.rows(seed_for(0, "width", n), 0, 256, [n], self.draws(n))
        return max(len(tokens) for tokens, _ in rows)

    def draws(self, n: int) -> int:
        """Count the random numbers of a row that are made at once; a row may take more."""
        return self.numbers[0] * n + self.numbers[1]

    def has(self, n: int) -> bool:
        """Say whether there are rows of a length."""
        return self.shortest <= n <= self.longest

    def usual(self, n: int) -> Sequence[int]:
        """List lengths to test a model on that is trained on those up to n."""
        return n // 2, n, 3 * n // 2, 2 * n, 4 * n, 8 * n

    def __init__(
        self,
        arch: Arch,
        optim: Optim,
        seed: int,
        train_length: int,
        lengths: Lengths | None = None,
        samples_per_length: Count = 100,
    ) -> None:
        self.vocabulary = ["<pad>", "<eos>", *self.symbols]
        self.number_of = {symbol: token for token, symbol in enumerate(self.vocabulary)}
        self.samples = samples_per_length
        self._tested = dict[Any, list[Row]]()
        if lengths is None:
            lengths = tuple(filter(self.has_enough, self.usual(train_length))) or (train_length,)
        wrong = [n for n in lengths if not self.has(n)]
        if not self.shortest <= train_length <= self.longest:
            wrong.append(train_length)
        if wrong:
            raise ConfigError(
                f"task.train_length={train_length} and task.lengths={list(lengths)}: the task has "
                f"no rows of {wrong[0]} {self.unit}, only of {self.shortest} to {self.longest}."
            )
        if max(lengths) < train_length:
            raise ConfigError(
                f"task.train_length={train_length} is above task.lengths, up to {max(lengths)}."
            )
        tested = sorted(set(lengths))
        super().__init__(
            arch,
            optim,
            seed,
            vocab=len(self.vocabulary),
            digits=tuple(map(self.number_of.__getitem__, self.digits)),
            max_length=self.width(tested[-1]) - 1,
            train_length=self.width(train_length) - 1,
        )
        self.axes = {f"length ({self.unit})": tested}
        self.trained_length = train_length
        self.lengths = tested
        self.trained = list(filter(self.has, range(train_length + 1)))
        for n in tested:
            self.enough(n, n)

    def rows(
        self, key: int, first: int, count: int, lengths: Sequence[int], draws: int
    ) -> Iterator[Row]:
        """Yield rows ``first`` … of a stream, the length of each drawn uniformly from
        ``lengths``.
        """
        for row, words in enumerate(random_rows(key, first, count, 1 + draws), first):
            rng = Draws(words, key, row)
            prompt, answer = self.sample(lengths[rng.below(len(lengths))], rng)
            tokens = [self.number_of[symbol] for symbol in (*prompt, *answer)]
            scored = [False] * len(prompt) + [*self.scored(answer)]
            if self.ends:
                tokens.append(EOS)
                scored.append(True)
            yield tokens, scored

    def stream(self, key: int, first: int, count: int) -> Batch:
        """Make rows first … first + count - 1 of a stream, of all trained lengths."""
        rows = self.rows(key, first, count, self.trained, self.draws(self.trained[-1]))
        return padded(list(rows), self.arch.train_length + 1)

    def test_batches(self) -> list[tuple[Any, Batch]]:
        """Make a batch of each tested length."""
        return [(n, padded(self.test_rows(n), self.width(n))) for n in self.lengths]

    def test_rows(self, n: int, slice_: Any = None) -> list[Row]:
        """Draw the first different rows of length ``n`` of a slice's stream."""
        slice_ = n if slice_ is None else slice_
        if slice_ not in self._tested:
            key = seed_for(0, "test", slice_)
            draws = self.draws(n)
            samples = self.samples
            task = self.variant(slice_)
            different: dict[tuple[int, ...], Row] = {}
            for first in range(0, TRIES * samples, samples):
                for row in task.rows(key, first, samples, [n], draws):
                    different.setdefault(tuple(row[0]), row)
                if len(different) >= samples:
                    break
            self._tested[slice_] = list(itertools.islice(different.values(), samples))
        return self._tested[slice_]

    def variant(self, slice_: Any) -> "SequenceTask":
        """Return the task that draws the test rows of a slice, as a rule this one."""
        return self

    def has_enough(self, n: int) -> bool:
        """Say whether there are as many different rows of a length as the test has."""
        return self.has(n) and len(self.test_rows(n)) == self.samples

    def enough(self, n: int, slice_: Any) -> None:
        """Raise :class:`ConfigError` where there are fewer test rows than were asked for."""
        count = len(self.test_rows(n, slice_))
        if count < self.samples:
            raise ConfigError(
                f"the task makes only {count} different rows of length {n}; "
                f"task.samples_per_length={count} would do, or longer task.lengths."
            )

    def metric_names(self) -> list[str]:
        """Name the means of the splits and of each length."""
        names = super().metric_names()
        for n, measure in itertools.product(self.lengths, self.measures):
            names.append(f"test/{measure}@{n}")
        return names

    def summarise(self, scores: dict[Any, RowScores]) -> Evaluation:
        """Average over the splits, and over the rows of each length."""
        evaluation = super().summarise(scores)
        for n, rows in scores.items():
            for measure in self.measures:
                evaluation.metrics[f"test/{measure}@{n}"] = 100 * float(rows[measure].mean())
        return evaluation
