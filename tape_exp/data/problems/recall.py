"""Multi-query associative recall (MQAR): the values of keys."""

import math

import numpy as np

from tape_exp.data.problems.base import ENDS, Problem, Rows, draw, joined

WORDS = 256  # keys, and as many values
KEY = len(ENDS)
VALUE = KEY + WORDS
POWER = 0.01


class AssociativeRecall(Problem):
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

    name = "mqar"
    summary = "recall the values of keys, asked for in another order"
    unit = "pairs"
    symbols = (
        *ENDS,
        *(f"k{i}" for i in range(WORDS)),
        *(f"v{i}" for i in range(WORDS)),
    )
    longest = WORDS

    def count(self, length: int) -> int:
        """Keys and values in order, and the order of the queries."""
        return math.perm(WORDS, length) ** 2 * math.factorial(length)

    def width(self, length: int) -> int:
        """Two tokens for each pair and for each query."""
        return 4 * length

    def draws(self, length: int) -> int:
        """For each pair its key, its value and its query."""
        return 3 * length

    def write(self, lengths: np.ndarray, random: np.ndarray) -> Rows:
        """Pairs and queries."""
        key, value, query = np.split(random, 3, axis=1)
        pairs = np.stack([KEY + distinct(WORDS, key), VALUE + distinct(WORDS, value)], 2)
        asked = pairs[np.arange(len(pairs))[:, None], query_order(lengths, query)]
        scored = np.arange(2 * pairs.shape[1]) % 2 == 1
        flat = (len(pairs), -1)
        return joined(
            (pairs.reshape(flat), 2 * lengths, False), (asked.reshape(flat), 2 * lengths, scored)
        )


def distinct(limit: int, random: np.ndarray) -> np.ndarray:
    """(B, n) integers in 0 … limit - 1, different within a row: a shuffle's first n steps."""
    pool, rows = np.tile(np.arange(limit), (len(random), 1)), np.arange(len(random))
    for i in range(random.shape[1]):
        other = i + draw(limit - i, random[:, i])
        pool[rows, other], pool[:, i] = pool[:, i].copy(), pool[rows, other]
    return pool[:, : random.shape[1]]


def query_order(lengths: np.ndarray, random: np.ndarray) -> np.ndarray:
    """(B, n): which pair is asked for at each slot.

    Times of arrival are exponential with the slots' weights as rates; then their order is that of
    draws without replacement. Pair i is asked for at the i-th slot to arrive.
    """
    slots = np.arange(random.shape[1])
    arrival = -np.log((random + 0.5) / 2**32) * (slots + 1) ** (1 - POWER)
    arrival[slots >= lengths[:, None]] = np.inf
    return np.argsort(np.argsort(arrival, 1, kind="stable"), 1, kind="stable")
