"""The word problem of a group: track a state; train on short words and test on long ones."""

import itertools
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tape_exp.data.batch import IGNORE, Batch
from tape_exp.data.groups import GROUPS
from tape_exp.machine.seeding import RowSampler, random_rows, seed_for, uniform_ints
from tape_exp.results.evaluation import Evaluation, Heatmap
from tape_exp.settings.errors import ConfigError, one_of
from tape_exp.settings.schema import Arch, Count, Lengths, Optim
from tape_exp.tasks.base import Task
from tape_exp.tasks.slices import RowScores, split_means, split_names, splits_of


class WordProblem(Task):
    """Given letters g_1 … g_T of a group, predict g_1 ⋯ g_i at each place i (theorem 1, on S5).

    Inputs are BOS and the letters, T + 1 tokens: a letter's token is its number among the |G|
    elements of the group, and BOS is |G|. The label at letter i is the number of the state g_1 ⋯
    g_i, so that a row of T letters holds a word of every length up to T. (The theorem's labels are
    coarser: whether the state is the identity.) Letters are uniform and independent generators:

    - ``s5``, ``s3``: all swaps of two points, 10 and 3 of them, as in the theorem;
    - ``a5``: the 20 cycles of three points, since swaps are odd;
    - ``parity``: the bits 0 and 1; the state is the parity of the ones.

    A5 and S5 are not solvable, and their word problem is complete for NC¹; S3 and parity are
    solvable.

    Test words have the longest of ``lengths`` and do not depend on the seed; they are read once,
    left to right, so that the first n states are what the model says of a word of n letters.
    Metrics, in percent: ``test/state@n``, right states among those after the length before n in
    ``lengths`` and up to n; ``test/word@n``, words whose first n states are all right; ``id/state``
    and ``ood/state``, right states up to ``train_letters`` and beyond, each with its standard error
    over words. Table ``places``: both shares after each letter, and the ``guess``, what the best
    constant answer at that place reaches.

    Args:
        train_letters: letters of a training row.
        lengths: ends of the buckets, in letters; the last is the length of the test words.
    """

    def __init__(
        self,
        arch: Arch,
        optim: Optim,
        seed: int,
        group: str,
        train_letters: Count,
        lengths: Lengths,
        words: Count = 256,
        rows_per_batch: Count = 64,
    ) -> None:
        one_of("task.group", group, GROUPS)
        if max(lengths) < train_letters:
            raise ConfigError(
                f"task.train_letters={train_letters} is above task.lengths, up to {max(lengths)}."
            )
        self.group = GROUPS[group]()
        size = len(self.group.elements)
        longest = max(lengths)
        sizes = {"vocab": size + 1, "max_length": longest + 1, "train_length": train_letters + 1}
        super().__init__(arch, optim, seed, **sizes)
        self.train_letters = train_letters
        self.lengths = sorted(set(lengths))
        self.words = words
        self.rows_per_batch = rows_per_batch

    def stream(self, key: int, first: int, count: int, letters: int | None = None) -> Batch:
        """Draw words, by default of ``train_letters``: BOS and letters, and the state after each
        one.
        """
        length = letters or self.train_letters
        drawn = uniform_ints(len(self.group.letters), random_rows(key, first, count, length))
        words = self.group.letters[drawn.astype(np.int64)]
        bos = np.full((count, 1), len(self.group.elements))
        none = np.full((count, 1), IGNORE)
        inputs = np.hstack([bos, words])
        labels = np.hstack([none, self.group.states(words)])
        return {"inputs": torch.from_numpy(inputs), "labels": torch.from_numpy(labels)}

    def test_batches(self) -> list[tuple[str, Batch]]:
        """Draw words of the longest length, all in one slice. The inputs are letters only, so that
        one pass scores every place although the states before it are not shown.
        """
        key = seed_for(0, "test")
        size = self.rows_per_batch
        places = ((first, min(size, self.words - first)) for first in range(0, self.words, size))
        return [("words", self.stream(key, *place, self.lengths[-1])) for place in places]

    def test_sampler(self, number: int) -> RowSampler:
        """Sample positions of a word by its number, whatever the batch."""
        return RowSampler(0, "evaluation", first=number * self.rows_per_batch)

    def score_rows(self, logits: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Say which states are right: ``right`` (B, letters)."""
        return {"right": (logits.argmax(-1) == labels)[:, 1:]}

    def validation_metrics(self, logits: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Sum the shares of right states of each word, in percent: ``state``."""
        right = self.score_rows(logits, batch["labels"])["right"]
        return {"state": (100 * right.sum(-1) / right.shape[1]).sum()}

    def validation_names(self) -> list[str]:
        """Name the share of right states."""
        return ["state"]

    def metric_names(self) -> list[str]:
        """Name right states and words of each length, and the means of trained and longer ones."""
        splits = splits_of((1, self.lengths[-1]), lambda place: place <= self.train_letters)
        names = []
        for n in self.lengths:
            names += [f"test/state@{n}", f"test/word@{n}"]
        return names + split_names(["state"], splits)

    def summarise(self, scores: dict[Any, RowScores]) -> Evaluation:
        """Average right states and right words by length, and after each letter."""
        right = scores["words"]["right"]
        right_so_far = np.logical_and.accumulate(right, 1)
        edges = [0, *self.lengths]
        states = [right[:, a:b].mean() for a, b in itertools.pairwise(edges)]
        words = [right_so_far[:, end - 1].mean() for end in self.lengths]
        metrics: dict[str, float] = {}
        for end, state, word in zip(self.lengths, states, words, strict=True):
            metrics |= {f"test/state@{end}": 100 * float(state)}
            metrics |= {f"test/word@{end}": 100 * float(word)}
        metrics |= self._split_metrics(right)
        heatmap = Heatmap(
            100 * np.array([states, words]),
            title="right (%)",
            row_label="",
            column_label="length (letters)",
            trained=(2, sum(n <= self.train_letters for n in self.lengths)),
            rows=["states", "words"],
            columns=list(map(str, self.lengths)),
            trained_length=self.train_letters,
        )
        shares = (right.mean(0), right_so_far.mean(0), self.group.guess(self.lengths[-1]))
        places = []
        for n, row in enumerate(np.round(100 * np.stack(shares, 1), 2).tolist(), 1):
            state, word, guess = row
            places.append({"letters": n, "state": state, "word": word, "guess": guess})
        return Evaluation(metrics, heatmap, tables={"places": places})

    def _split_metrics(self, right: np.ndarray) -> dict[str, float]:
        """Compute ``id/state`` and ``ood/state`` with their errors, from ``right`` (words,
        letters).
        """
        trained = right[:, : self.train_letters]
        longer = right[:, self.train_letters :]
        means = {True: {"state": trained.mean(1)}}
        if longer.size:
            means[False] = {"state": longer.mean(1)}
        metrics = split_means(means, ["state"], bool)
        return {name: mean for name, mean in metrics.items() if not name.startswith("test/")}
