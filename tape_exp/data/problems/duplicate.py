"""Missing duplicate: the letter that is hidden in a string that is there twice."""

import numpy as np

from tape_exp.data.problems.base import ENDS, Problem, Rows, draw, joined

EQUALS, HIDDEN, EMPTY, ZERO = range(2, 6)


class MissingDuplicate(Problem):
    """``0110_1=1``: a string of bits, here 011, twice, with one of them hidden.

    "Missing duplicate string" of Delétang et al. (2023): bits and the hidden place are uniform; a
    length counts the symbols before the equals sign, and an odd one ends in an empty symbol.

    Deviations: the answer follows an equals sign; there are no rows of one symbol, for which theirs
    have a constant.

    Every bit is there twice, so that the hidden one is also the parity of the visible ones, in the
    source as here: a model that tracks parity solves this without finding the place.
    """

    name = "missing_duplicate"
    summary = "find the hidden bit of a string that is there twice"
    unit = "symbols"
    symbols = (*ENDS, "=", "_", ".", "0", "1")
    shortest = 2

    def count(self, length: int) -> int:
        """Strings for each hidden place."""
        half = length // 2
        return int(2 * half * 2**half)

    def width(self, length: int) -> int:
        """The symbols, an equals sign and the answer."""
        return length + 2

    def draws(self, length: int) -> int:
        """The place, and each bit of the string."""
        return 1 + length // 2

    def write(self, lengths: np.ndarray, random: np.ndarray) -> Rows:
        """Doubled strings and their hidden bit."""
        rows, half = np.arange(len(lengths)), (lengths // 2)[:, None]
        place = np.arange(2 * random.shape[1] - 1)
        bits = ZERO + draw(2, random[:, 1:])
        symbols = np.take_along_axis(bits, place % half, 1)
        hidden = draw(2 * half[:, 0], random[:, 0])
        answer = symbols[rows, hidden]
        symbols[rows, hidden] = HIDDEN
        symbols[(place == 2 * half) & (lengths % 2 == 1)[:, None]] = EMPTY
        return joined((symbols, lengths, False), (EQUALS, 1, False), (answer[:, None], 1, True))
