"""Indirect indexing: the letter at a place that is given relative to another letter."""

import string

import numpy as np

from tape_exp.data.problems.base import ENDS, Problem, Rows, draw, joined

BAR, PLUS, MINUS = 2, 3, 4
ONE = 5  # and the other digits, up to 9
LETTER = ONE + 9
REACH = 9  # places


class IndirectIndexing(Problem):
    """``QEzHO|z-2Q``: the letter two places to the left of ``z`` is ``Q``.

    Of Gopalakrishnan et al. (2025, "Decoupling the What and Where With Polar Coordinate Positional
    Embeddings"), section 4: a string of the 52 letters of both cases, a letter of it and a shift.
    The letter that is asked about is in the string once; the others are uniform and independent.
    Its place is uniform, and so is the place asked for among the other ones within nine.

    Deviations: shifts have one digit, so that longer strings bring no new symbols (theirs are not
    stated); commas are left out.
    """

    name = "indirect_indexing"
    summary = "find a letter in a string, and the letter at a given distance from it"
    unit = "letters"
    symbols = (*ENDS, "|", "+", "-", *"123456789", *string.ascii_letters)
    shortest = 2

    def count(self, length: int) -> int:
        """Strings for each place and shift."""
        shifts = sum(2 * max(length - shift, 0) for shift in range(1, REACH + 1))
        return int(52 * 51 ** (length - 1) * shifts)

    def width(self, length: int) -> int:
        """String, bar, letter, sign, digit and answer."""
        return length + 5

    def draws(self, length: int) -> int:
        """One for each letter, for the letter asked about, its place and the shift."""
        return length + 3

    def write(self, lengths: np.ndarray, random: np.ndarray) -> Rows:
        """Strings and questions."""
        rows = np.arange(len(lengths))
        asked, place = draw(52, random[:, 0]), draw(lengths, random[:, 1])
        left, right = np.minimum(place, REACH), np.minimum(lengths - 1 - place, REACH)
        shift = draw(left + right, random[:, 2]) - left
        shift += shift >= 0  # not the letter itself
        letters = draw(51, random[:, 3:])
        letters += letters >= asked[:, None]
        letters[rows, place] = asked
        letters += LETTER
        question = [letters[rows, place], np.where(shift > 0, PLUS, MINUS), ONE - 1 + abs(shift)]
        answer = letters[rows, place + shift]
        return joined(
            (letters, lengths, False),
            (BAR, 1, False),
            (np.stack(question, 1), 3, False),
            (answer[:, None], 1, True),
        )
