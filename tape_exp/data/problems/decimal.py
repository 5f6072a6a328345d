"""Addition of many operands, and multiplication; the least-significant digits first."""

import numpy as np

from tape_exp.data.problems.base import ENDS, Problem, Rows, draw, draw_integer, typed

DIGITS = 3  # of an operand of an addition, at most
NUMBERS = [str(number)[::-1] for number in range(10**DIGITS)]


class MultiAddition(Problem):
    """``21+5+99=611<eos>`` (12 + 5 + 99 = 116): a length counts operands.

    Numbers are written as in McLeish et al. (2024, "Transformers Can Do Arithmetic with the Right
    Embeddings") and our task ``arithmetic``, from their least-significant digit, without padding,
    and their length is drawn first (1 … 3 digits), then the number. To add more operands than were
    trained on is a task of Cho et al. (2025, "Arithmetic Transformers Can Length-Generalize in Both
    Operand Length and Count").

    Deviations from Cho et al.: no scratchpad; operands are short, and only their count grows.
    """

    name = "multi_addition"
    summary = "add many numbers of up to three digits"
    unit = "operands"
    symbols = (*ENDS, "+", "=", *"0123456789")
    digits = tuple(range(4, 14))
    shortest = 2

    def count(self, length: int) -> int:
        """Each operand has any value from 1 to 999."""
        return int((10**DIGITS - 1) ** length)

    def width(self, length: int) -> int:
        """Operands, each followed by a sign, the sum and EOS."""
        return length * (DIGITS + 1) + len(str(length * (10**DIGITS - 1))) + 1

    def draws(self, length: int) -> int:
        """For each operand its length and its value."""
        return 2 * length

    def write(self, lengths: np.ndarray, random: np.ndarray) -> Rows:
        """Operands and sums."""
        power = 10 ** draw(DIGITS, random[:, ::2])
        operands = power + draw(9 * power, random[:, 1::2])
        prompts, answers = [], []
        for length, row in zip(lengths.tolist(), operands.tolist(), strict=True):
            prompts.append("+".join([NUMBERS[number] for number in row[:length]]) + "=")
            answers.append(str(sum(row[:length]))[::-1] + "\n")
        return typed(self.symbols, prompts, answers)


class Multiplication(Problem):
    """``21*5=06<eos>`` (12 * 5 = 60): a length counts the digits of the longer factor.

    As in McLeish et al. (2024): digits from the least-significant one, without padding, factors
    uniform among the numbers of their lengths.

    Deviation: the length of the longer factor is drawn first, then that of the other one from
    1 … the same, and which of them is first; theirs are independent. A cell of their grid of two
    lengths is scored under the larger one.
    """

    name = "multiplication"
    summary = "multiply two numbers"
    unit = "digits of the longer factor"
    symbols = (*ENDS, "*", "=", *"0123456789")
    digits = tuple(range(4, 14))
    longest = 2000  # Python writes integers of up to 4,300 digits

    def count(self, length: int) -> int:
        """Pairs of numbers, less those of which both are shorter."""
        return int((10**length - 1) ** 2 - (10 ** (length - 1) - 1) ** 2)

    def width(self, length: int) -> int:
        """Two factors and a product as long as both, two signs and EOS."""
        return 4 * length + 3

    def draws(self, length: int) -> int:
        """The shorter length, the order, and two numbers with 32 bits to spare."""
        return 2 + 2 * (length // 9 + 2)

    def write(self, lengths: np.ndarray, random: np.ndarray) -> Rows:
        """Factors and products."""
        prompts, answers, middle = [], [], random.shape[1] // 2 + 1
        shorter = 10 ** draw(lengths, random[:, 0]).astype(object)
        swapped = draw(2, random[:, 1])
        for length, power, swap, row in zip(
            lengths.tolist(), shorter, swapped.tolist(), random, strict=True
        ):
            a = 10 ** (length - 1) + draw_integer(9 * 10 ** (length - 1), row[2:middle])
            b = power + draw_integer(9 * power, row[middle:])
            first, second = (b, a) if swap else (a, b)
            prompts.append(f"{str(first)[::-1]}*{str(second)[::-1]}=")
            answers.append(str(a * b)[::-1] + "\n")
        return typed(self.symbols, prompts, answers)
