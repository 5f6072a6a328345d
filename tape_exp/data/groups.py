"""Small finite groups as tables of products, for tasks that track a state."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Group:
    """A group of permutations, its elements numbered in lexicographic order: 0 is the identity."""

    elements: np.ndarray  # (G, n), what each permutation maps 0 … n - 1 to
    letters: np.ndarray  # (K,), the elements that words are made of; they generate the group
    table: np.ndarray  # (G, G), the number of a · b at [a, b]: first b, then a

    def states(self, words: np.ndarray) -> np.ndarray:
        """Compute the products g_1 ⋯ g_i of all prefixes of words (rows, T): (rows, T), in their
        dtype.
        """
        states = np.empty_like(words)
        state = np.zeros(len(words), dtype=words.dtype)
        for i in range(words.shape[1]):
            state = states[:, i] = self.table[state, words[:, i]]
        return states

    def guess(self, length: int) -> np.ndarray:
        """Compute (length,): how often the likeliest state is right after 1 … length random
        letters.
        """
        chances = np.zeros(len(self.elements))
        best = np.empty(length)
        chances[0] = 1
        for i in range(length):
            after = np.zeros_like(chances)
            for letter in self.letters:
                after[self.table[:, letter]] += chances / len(self.letters)
            chances = after
            best[i] = after.max()
        return best


def make_group(points: int, moved: tuple[int, ...], even: bool = False) -> Group:
    """Make the group of all or the even permutations of points; letters move as many points as
    ``moved`` lists.
    """
    permutations = itertools.permutations(range(points))
    elements = np.array([p for p in permutations if not even or inversions(p) % 2 == 0])
    moves = (elements != np.arange(points)).sum(1)
    places = points ** np.arange(points)
    number = np.full(points**points, -1)
    number[elements @ places] = np.arange(len(elements))
    table = number[elements[:, elements] @ places]  # elements[a][elements[b]]
    return Group(elements, np.flatnonzero(np.isin(moves, moved)), table.astype(np.int64))


def inversions(permutation: Sequence[int]) -> int:
    """Count the pairs that a permutation puts into the other order.

    >>> inversions((2, 0, 1))
    2
    """
    return sum(a > b for a, b in itertools.combinations(permutation, 2))


GROUPS = {
    "parity": lambda: make_group(2, (0, 2)),
    "s3": lambda: make_group(3, (2,)),
    "a5": lambda: make_group(5, (3,), even=True),
    "s5": lambda: make_group(5, (2,)),
}
