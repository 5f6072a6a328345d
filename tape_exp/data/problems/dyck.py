"""Dyck-2: which bracket closes."""

import math

import numpy as np

from tape_exp.data.problems.base import ENDS, Problem, Rows, draw, joined

ROUND, SQUARE = 2, 3  # open
CLOSE = 2  # more than the open one


class Dyck(Problem):
    """``([])[]``: a balanced word of two kinds of brackets; at each closing one, which it is.

    The Dyck-2 language and the question, given that a bracket closes, which one it is, are those of
    Hewitt et al. (2020, "RNNs can generate bounded hierarchical languages with optimal memory"). A
    length counts pairs of brackets.

    Deviations: words are uniform among all of n pairs, whose depth grows with the square root of n,
    where theirs come from a grammar with a bound on the depth; the loss is on closing brackets
    only, and so says nothing of whether the next bracket opens or closes.
    """

    name = "dyck_2"
    summary = "close the bracket that was opened last"
    unit = "pairs of brackets"
    symbols = (*ENDS, *"([)]")

    def count(self, length: int) -> int:
        """A Catalan number of shapes, and the kind of each pair."""
        return int(math.comb(2 * length, length) // (length + 1) * 2**length)

    def width(self, length: int) -> int:
        """The brackets."""
        return 2 * length

    def draws(self, length: int) -> int:
        """For each bracket whether it opens, and its kind if so."""
        return 4 * length

    def write(self, lengths: np.ndarray, random: np.ndarray) -> Rows:
        """Words from left to right.

        With r brackets to come at depth h, of which k = (r - h) / 2 open, the next one opens in a
        share (h + 2) k / ((h + 1) r) of the words (Arnold and Sleep, 1980).
        """
        shape = (len(lengths), random.shape[1] // 2)
        kinds = ROUND + draw(2, random[:, shape[1] :])
        rows, depth = np.arange(len(lengths)), np.zeros_like(lengths)
        stack = np.zeros((shape[0], shape[1] // 2 + 1), dtype=np.int64)
        tokens = np.zeros(shape, dtype=np.int64)
        for step in range(shape[1]):
            left = (2 * lengths - step).clip(1)
            share = (depth + 2) * ((left - depth) // 2)
            opens = draw((depth + 1) * left, random[:, step]) < share
            top = stack[rows, depth - 1] + CLOSE
            tokens[:, step] = np.where(opens, kinds[:, step], top)
            stack[rows, depth] = tokens[:, step]
            depth += np.where(opens, 1, -1) * (step < 2 * lengths)
        return joined((tokens, 2 * lengths, tokens >= ROUND + CLOSE))
