"""Copy, reverse and sort a string."""

from collections.abc import Callable

import numpy as np

from tape_exp.data.problems.base import ENDS, EOS, Problem, Rows, draw, joined

BAR, FIRST = 2, 3


class Strings(Problem):
    """``011|011<eos>``: letters, uniform and independent, then the same ones in another order.

    Of Delétang et al. (2023, "Neural Networks and the Chomsky Hierarchy"): duplicate and reverse
    string over two letters, bucket sort over five. Copying, reversing and sorting are also tasks
    of Kazemnejad et al. (2023, "The Impact of Positional Encoding on Length Generalization").

    Deviations from Delétang et al.: a decoder writes the answer after a bar and is fed what it
    should have written, where theirs answers at blank places after the input; EOS is scored;
    ``copy`` is their duplicate string without the first copy, which is the input.

    Args:
        answer: the answers (B, T) of letters (B, T) and lengths (B, 1).
    """

    unit = "letters"

    def __init__(
        self,
        name: str,
        summary: str,
        letters: str,
        answer: Callable[[np.ndarray, np.ndarray], np.ndarray],
    ) -> None:
        self.name, self.summary, self.answer = name, summary, answer
        self.symbols = (*ENDS, "|", *letters)

    def count(self, length: int) -> int:
        """All strings."""
        return int((len(self.symbols) - FIRST) ** length)

    def width(self, length: int) -> int:
        """String, bar, answer and EOS."""
        return 2 * length + 2

    def draws(self, length: int) -> int:
        """One for each letter."""
        return length

    def write(self, lengths: np.ndarray, random: np.ndarray) -> Rows:
        """Strings and answers."""
        letters = FIRST + draw(len(self.symbols) - FIRST, random)
        answer = self.answer(letters, lengths[:, None])
        return joined(
            (letters, lengths, False), (BAR, 1, False), (answer, lengths, True), (EOS, 1, True)
        )


def reverse(letters: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """The letters from the last to the first."""
    place = (lengths - 1 - np.arange(letters.shape[1])).clip(0)
    return np.take_along_axis(letters, place, 1)


def ascending(letters: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """The letters in ascending order."""
    beyond = np.arange(letters.shape[1]) >= lengths
    return np.sort(np.where(beyond, letters.max() + 1, letters), 1)


STRINGS = (
    Strings("copy", "write a string again", "01", lambda letters, _: letters),
    Strings("reverse", "write a string from its end to its beginning", "01", reverse),
    Strings("sort", "write the letters of a string in ascending order", "01234", ascending),
)
