"""Binary addition and multiplication, the least-significant bits first."""

import operator
from collections.abc import Callable

import numpy as np

from tape_exp.data.problems.base import ENDS, Problem, Rows, draw, draw_integer, typed


class Binary(Problem):
    """``1001+0110=1111<eos>`` (9 + 6 = 15): two numbers and the result.

    Of Delétang et al. (2023): a length counts the symbols before the equals sign; where the
    operator stands is uniform; each number is uniform among those above 0 that its bits can write,
    and ends in zeros where it is smaller; the result has none and is followed by EOS.

    Deviations: the answer follows an equals sign; there are no rows of one or two symbols, for
    which theirs have no operator.
    """

    unit = "symbols"
    shortest = 3

    def __init__(
        self, name: str, summary: str, sign: str, result: Callable[[int, int], int]
    ) -> None:
        self.name, self.summary, self.sign, self.result = name, summary, sign, result
        self.symbols = (*ENDS, sign, "=", "0", "1")
        self.digits = (4, 5)

    def count(self, length: int) -> int:
        """Pairs of numbers, for each place of the operator."""
        return sum((2**a - 1) * (2 ** (length - 1 - a) - 1) for a in range(1, length - 1))

    def width(self, length: int) -> int:
        """The symbols, an equals sign, a result of at most length - 1 bits, and EOS."""
        return 2 * length + 1

    def draws(self, length: int) -> int:
        """The operator's place, and each number."""
        return 1 + 2 * words(length)

    def write(self, lengths: np.ndarray, random: np.ndarray) -> Rows:
        """Numbers and results."""
        prompts, answers, middle = [], [], random.shape[1] // 2 + 1
        for length, bits, row in zip(
            lengths.tolist(), (1 + draw(lengths - 2, random[:, 0])).tolist(), random, strict=True
        ):
            a = 1 + draw_integer(2**bits - 1, row[1:middle])
            b = 1 + draw_integer(2 ** (length - 1 - bits) - 1, row[middle:])
            first, second = f"{a:0{bits}b}", f"{b:0{length - 1 - bits}b}"
            prompts.append(f"{first[::-1]}{self.sign}{second[::-1]}=")
            answers.append(f"{self.result(a, b):b}"[::-1] + "\n")
        return typed(self.symbols, prompts, answers)


def words(bits: int) -> int:
    """Random uint32 for a number of so many bits, and 32 bits more."""
    return -(-bits // 32) + 1


BINARY = (
    Binary("binary_addition", "add two binary numbers", "+", operator.add),
    Binary("binary_multiplication", "multiply two binary numbers", "*", operator.mul),
)
