"""Induction heads: what followed a mark the first time."""

import numpy as np

from tape_exp.data.problems.base import ENDS, Problem, Rows, draw, joined

MARK, LETTER = 2, 3
LETTERS = 15


class Induction(Problem):
    """``da#cb#c``: after the second ``#`` comes what came after the first.

    Of Fu et al. (2023, "Hungry Hungry Hippos") and Gu and Dao (2023, "Mamba", section 4.1.2) after
    Olsson et al. (2022): 16 symbols, of which one is the mark; the letters and the mark's place are
    uniform. A length counts the symbols before the second mark.

    Deviation: training shows all lengths up to n, theirs one length (256).
    """

    name = "induction"
    summary = "recall the letter that followed the mark"
    unit = "symbols"
    symbols = (*ENDS, "#", *"abcdefghijklmno")
    shortest = 2

    def count(self, length: int) -> int:
        """The other letters, for each place of the mark."""
        return int((length - 1) * LETTERS ** (length - 1))

    def width(self, length: int) -> int:
        """The symbols, the second mark and the answer."""
        return length + 2

    def draws(self, length: int) -> int:
        """The mark's place and the letters."""
        return length + 1

    def write(self, lengths: np.ndarray, random: np.ndarray) -> Rows:
        """Letters with a mark, and the mark again."""
        rows, place = np.arange(len(lengths)), draw(lengths - 1, random[:, 0])
        letters = LETTER + draw(LETTERS, random[:, 1:])
        letters[rows, place] = MARK
        answer = letters[rows, place + 1]
        return joined((letters, lengths, False), (MARK, 1, False), (answer[:, None], 1, True))
