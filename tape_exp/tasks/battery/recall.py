"""Recall: letters and values that were seen before, asked for in several ways."""

import copy
import string
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from tape_exp.data.batch import Batch
from tape_exp.results.evaluation import Evaluation
from tape_exp.tasks.sequences import Draws, SequenceTask
from tape_exp.tasks.slices import RowScores, padded, split_means, split_names

WORDS = 256  # keys, and as many values
POWER = 0.01
REACH = 9  # places


class IndirectIndexing(SequenceTask):
    """``QEzHO|z-2Q``: the letter two places to the left of ``z`` is ``Q``.

    Of Gopalakrishnan et al. (2025, "Decoupling the What and Where With Polar Coordinate Positional
    Embeddings"), section 4: a string of the 52 letters of both cases, a letter of it and a shift.
    The letter that is asked about is in the string once; the others are uniform and independent.
    Its place is uniform, and so is the place asked for among the other ones within nine.

    Deviations: shifts have one digit, so that longer strings bring no new symbols (theirs are not
    stated); commas are left out.
    """

    summary = "find a letter in a string, and the letter at a given distance from it"
    unit = "letters"
    symbols = "|+-123456789" + string.ascii_letters
    tokens = (1, 5)
    numbers = (1, 3)
    shortest = 2
    ends = False

    def sample(self, n: int, rng: Draws) -> tuple[Sequence[str], Sequence[str]]:
        letters = string.ascii_letters
        query = rng.below(52)
        place = rng.below(n)
        left = min(place, REACH)
        right = min(n - 1 - place, REACH)
        shift = rng.below(left + right) - left
        shift += shift >= 0  # not the letter itself
        row = rng.choice(letters.replace(letters[query], ""), n)
        row[place] = letters[query]
        return [*row, "|", letters[query], *f"{shift:+}"], row[place + shift]


class AssociativeRecall(SequenceTask):
    """``k3 v7 k1 v4 k1 v4 k3 v7``: pairs of a key and a value, then each key and its value again.

    MQAR of Arora et al. (2023, "Zoology: Measuring and Improving Recall in Efficient Language
    Models"), as in the repository zoology: keys and values are drawn without replacement; a pair
    is asked for at a slot k = 1, 2, … drawn with weight k^(a - 1), a = 0.01, in the order of the
    pairs, each slot once, so that early pairs tend to be asked for early.

    Deviations: rows are the shortest that zoology allows, four tokens a pair, and so have no filler
    between queries; values follow their queries, as next tokens do, where zoology has a random
    token; 256 keys and 256 values instead of a vocabulary of 8,192, which sets the longest
    row; a length is a number of pairs, and one row has any number up to it in training.
    """

    summary = "recall the values of keys, asked for in another order"
    unit = "pairs"
    symbols = tuple(f"{kind}{i}" for kind in "kv" for i in range(WORDS))
    tokens = (4, 0)
    numbers = (3, 0)
    longest = WORDS
    ends = False

    def sample(self, n: int, rng: Draws) -> tuple[Sequence[str], Sequence[str]]:
        of_keys, of_values, of_queries = rng.split(3)
        keys = distinct(WORDS, n, of_keys)
        values = distinct(WORDS, n, of_values)
        shown: list[str] = []
        for key, value in zip(keys, values, strict=True):
            shown += [f"k{key}", f"v{value}"]
        asked: list[str] = []
        for pair in query_order(n, of_queries):
            asked += [f"k{keys[pair]}", f"v{values[pair]}"]
        return shown, asked

    def scored(self, answer: Sequence[str]) -> Sequence[bool]:
        return [symbol[0] == "v" for symbol in answer]


def distinct(limit: int, count: int, rng: Draws) -> list[int]:
    """Draw different integers in 0 … limit - 1, by a shuffle's first steps."""
    pool = list(range(limit))
    chosen = []
    for i in range(count):
        other = i + rng.below(limit - i)
        chosen.append(pool[other])
        pool[other] = pool[i]  # which is not drawn any more at its own place
    return chosen


def query_order(count: int, rng: Draws) -> list[int]:
    """Draw which pair is asked for at each slot.

    Times of arrival are exponential with the slots' weights as rates; then their order is that of
    draws without replacement. Pair i is asked for at the i-th slot to arrive.
    """
    weights = (np.arange(count) + 1) ** (1 - POWER)
    arrival = -np.log((rng.words(count) + 0.5) / 2**32) * weights
    order = np.argsort(np.argsort(arrival, kind="stable"), kind="stable")
    return order.tolist()


class Induction(SequenceTask):
    """``da#cb#c``: after the second ``#`` comes what came after the first.

    Of Fu et al. (2023, "Hungry Hungry Hippos") and Gu and Dao (2023, "Mamba", section 4.1.2) after
    Olsson et al. (2022): 16 symbols, of which one is the mark; the letters and the mark's place are
    uniform. A length counts the symbols before the second mark.

    Deviation: training shows all lengths up to n, theirs one length (256).
    """

    summary = "recall the letter that followed the mark"
    symbols = "#abcdefghijklmno"
    tokens = (1, 2)
    numbers = (1, 1)
    shortest = 2
    ends = False

    def sample(self, n: int, rng: Draws) -> tuple[Sequence[str], Sequence[str]]:
        place = rng.below(n - 1)
        row = rng.choice(self.symbols[1:], n)
        row[place] = "#"
        return [*row, "#"], row[place + 1]


class FlipFlop(SequenceTask):
    """``w1i0r1w0r0``: instructions with a bit each; the bit of ``r`` is that of the last ``w``.

    FFL(p) of Liu et al. (2023, "Exposing Attention Glitches with Flip-Flop Language Modeling"): the
    first instruction writes and the last reads; each of the others ignores its bit with probability
    p, and writes or reads with (1 - p) / 2 each; bits of ``w`` and ``i`` are uniform. As there,
    training has p = 0.8, and at the trained length a model is also tested on p = 0.98
    (``sparse/…``) and 0.1 (``dense/…``).

    Deviations: the loss is on the bits of ``r`` only, as their "clean" evaluation is, and not on
    what nobody can predict; rows have any number of instructions up to n, theirs 256.
    """

    summary = "read the bit that was written last, among bits to ignore"
    unit = "instructions"
    symbols = "wir01"
    tokens = (2, 0)
    numbers = (2, 0)
    shortest = 2
    ends = False
    ignore = 0.8
    # Slice -> its ``ignore``
    tested_ignore: ClassVar[dict[str, float]] = {"sparse": 0.98, "dense": 0.1}

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        for name in self.tested_ignore:
            self.enough(self.trained_length, name)

    def sample(self, n: int, rng: Draws) -> tuple[Sequence[str], Sequence[str]]:
        random = rng.words(2 * n).tolist()
        row: list[str] = []
        written = ""
        for i in range(n):
            kind = self.kind(i, n, random[2 * i] / 2**32)
            bit = "01"[random[2 * i + 1] >> 31]
            if kind == "w":
                written = bit
            row += [kind, written if kind == "r" else bit]
        return "", row

    def kind(self, i: int, n: int, share: float) -> str:
        """Choose instruction i of n, from a uniform number in 0 … 1."""
        if i == n - 1:
            return "r"
        if i == 0:
            return "w"
        if share < self.ignore:
            return "i"
        return "w" if share < (1 + self.ignore) / 2 else "r"

    def scored(self, answer: Sequence[str]) -> Sequence[bool]:
        return [i > 0 and answer[i - 1] == "r" for i in range(len(answer))]

    def variant(self, slice_: Any) -> SequenceTask:
        """Return the task with the share of ignored bits that the slice has."""
        task = copy.copy(self)
        task.ignore = self.tested_ignore.get(slice_, self.ignore)
        return task

    def test_batches(self) -> list[tuple[Any, Batch]]:
        """Make those of each length, and of the trained length those of other distributions."""
        n = self.trained_length
        batches = super().test_batches()
        for name in self.tested_ignore:
            batches.append((name, padded(self.test_rows(n, name), self.width(n))))
        return batches

    def metric_names(self) -> list[str]:
        """Name the metrics of all lengths, and those of the other distributions."""
        return [*super().metric_names(), *split_names(self.measures, [*self.tested_ignore])]

    def summarise(self, scores: dict[Any, RowScores]) -> Evaluation:
        """Average over the lengths of p = 0.8, and over the other distributions apart."""
        apart = {name: scores.pop(name) for name in self.tested_ignore if name in scores}
        evaluation = super().summarise(scores)
        for name, rows in apart.items():
            for metric, value in split_means({name: rows}, self.measures, bool).items():
                if metric.startswith("test/"):
                    evaluation.metrics[metric.replace("test", name)] = value
        return evaluation
