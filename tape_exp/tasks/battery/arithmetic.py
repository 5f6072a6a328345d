"""Sums and products, binary and decimal; the least-significant digits first."""

import math
from collections.abc import Sequence

from tape_exp.tasks.sequences import Draws, SequenceTask

DIGITS = 3  # of an operand of an addition, at most


class BinaryAddition(SequenceTask):
    """``1001+0110=1111<eos>`` (9 + 6 = 15): two numbers and the result.

    Of Delétang et al. (2023): a length counts the symbols before the equals sign; where the
    operator stands is uniform; each number is uniform among those above 0 that its bits can write,
    and ends in zeros where it is smaller; the result has none and is followed by EOS.

    Deviations: the answer follows an equals sign; there are no rows of one or two symbols, for
    which theirs have no operator.
    """

    summary = "add two binary numbers"
    symbols = "+=01"
    tokens = (2, 1)  # the result has at most n - 1 bits
    digits = "01"
    shortest = 3

    def draws(self, n: int) -> int:
        return 1 + 2 * (math.ceil(n / 32) + 1)  # 32 bits more than a number has

    def sample(self, n: int, rng: Draws) -> tuple[Sequence[str], Sequence[str]]:
        bits = 1 + rng.below(n - 2)
        draws = rng.split(2)
        a, first = self.operand(bits, draws[0])
        b, second = self.operand(n - 1 - bits, draws[1])
        return f"{first}{self.symbols[0]}{second}=", f"{self.result(a, b):b}"[::-1]

    def operand(self, bits: int, rng: Draws) -> tuple[int, str]:
        """Draw a number above 0, and write it: 6 in four bits is ``0110``."""
        number = 1 + rng.large(2**bits - 1)
        return number, f"{number:0{bits}b}"[::-1]

    def result(self, a: int, b: int) -> int:
        """Compute what is asked for."""
        return a + b


class BinaryMultiplication(BinaryAddition):
    """``11*01=011<eos>`` (3 * 2 = 6), see :class:`BinaryAddition`."""

    summary = "multiply two binary numbers"
    symbols = "*=01"

    def result(self, a: int, b: int) -> int:
        return a * b


class MultiAddition(SequenceTask):
    """``21+5+99=611<eos>`` (12 + 5 + 99 = 116): a length counts operands.

    Numbers are written as in McLeish et al. (2024, "Transformers Can Do Arithmetic with the Right
    Embeddings") and our task ``arithmetic``, from their least-significant digit, without padding,
    and their length is drawn first (1 … 3 digits), then the number. To add more operands than were
    trained on is a task of Cho et al. (2025, "Arithmetic Transformers Can Length-Generalize in Both
    Operand Length and Count").

    Deviations from Cho et al.: no scratchpad; operands are short, and only their count grows.
    """

    summary = "add many numbers of up to three digits"
    unit = "operands"
    symbols = "+=0123456789"
    numbers = (2, 0)
    digits = "0123456789"
    shortest = 2

    def width(self, n: int) -> int:
        return n * (DIGITS + 1) + len(str(n * (10**DIGITS - 1))) + 1

    def sample(self, n: int, rng: Draws) -> tuple[Sequence[str], Sequence[str]]:
        numbers = []
        for _ in range(n):
            power = 10 ** rng.below(DIGITS)
            numbers.append(power + rng.below(9 * power))
        return "+".join(str(number)[::-1] for number in numbers) + "=", str(sum(numbers))[::-1]


class Multiplication(SequenceTask):
    """``21*5=06<eos>`` (12 * 5 = 60): a length counts the digits of the longer factor.

    As in McLeish et al. (2024): digits from the least-significant one, without padding, factors
    uniform among the numbers of their lengths.

    Deviation: the length of the longer factor is drawn first, then that of the other one from
    1 … the same, and which of them is first; theirs are independent. A cell of their grid of two
    lengths is scored under the larger one.
    """

    summary = "multiply two numbers"
    unit = "digits of the longer factor"
    symbols = "*=0123456789"
    tokens = (4, 3)
    digits = "0123456789"
    longest = 2000  # Python writes integers of up to 4,300 digits

    def draws(self, n: int) -> int:
        return 2 + 2 * (n // 9 + 2)  # two numbers, with 32 bits to spare

    def sample(self, n: int, rng: Draws) -> tuple[Sequence[str], Sequence[str]]:
        other_digits = 1 + rng.below(n)
        is_swapped = rng.below(2)
        of_longer, of_other = rng.split(2)
        factors = [number_of(n, of_longer), number_of(other_digits, of_other)]
        if is_swapped:
            factors.reverse()
        prompt = f"{str(factors[0])[::-1]}*{str(factors[1])[::-1]}="
        return prompt, str(factors[0] * factors[1])[::-1]


def number_of(digits: int, rng: Draws) -> int:
    """Draw a number of so many digits."""
    least = 10 ** (digits - 1)
    return int(least + rng.large(9 * least))
