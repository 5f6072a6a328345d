"""Modular arithmetic with brackets: the value of an expression."""

from collections.abc import Iterator

import numpy as np

from tape_exp.data.problems.base import ENDS, Problem, Rows, typed

MODULUS = 5


class ModularArithmetic(Problem):
    """``((1+2)*-3)=1``: an expression modulo 5.

    Of Delétang et al. (2023): digits 0 … 4, the operators + - *, and a minus before a digit. An
    expression of one to four symbols is d, -d, (d) or (-d); a longer one is (left o right), where
    the length of ``left`` is uniform among those possible. A length counts the symbols before =.

    Deviation: the answer follows an equals sign.
    """

    name = "modular_arithmetic"
    summary = "the value of an expression with brackets, modulo 5"
    unit = "symbols"
    symbols = (*ENDS, *"01234+-*()=")
    longest = 2000  # as deep as Python recurses

    def count(self, length: int) -> int:
        """Expressions; of long ones, as many as of forty symbols."""
        counts = [0, *[MODULUS] * 4]
        for n in range(5, min(length, 40) + 1):
            counts.append(3 * sum(counts[i] * counts[n - 3 - i] for i in range(1, n - 3)))
        return counts[min(length, 40)]

    def width(self, length: int) -> int:
        """The expression, an equals sign and the value."""
        return length + 2

    def draws(self, length: int) -> int:
        """At most two for each operator, which takes three symbols, and one for each digit."""
        return length

    def write(self, lengths: np.ndarray, random: np.ndarray) -> Rows:
        """Expressions and values."""
        pairs = [
            expression(int(length), iter(row))
            for length, row in zip(lengths, random.tolist(), strict=True)
        ]
        prompts, values = [text + "=" for text, _ in pairs], [str(value) for _, value in pairs]
        return typed(self.symbols, prompts, values)


def expression(length: int, random: Iterator[int]) -> tuple[str, int]:
    """An expression of so many symbols, and its value."""
    if length < 5:
        digit = next(random) * MODULUS >> 32
        text = (f"{digit}", f"-{digit}", f"({digit})", f"(-{digit})")[length - 1]
        return text, -digit % MODULUS if length in (2, 4) else digit
    split = 1 + (next(random) * (length - 4) >> 32)
    operator = next(random) * 3 >> 32
    left, a = expression(split, random)
    right, b = expression(length - 3 - split, random)
    return f"({left}{'+-*'[operator]}{right})", (a + b, a - b, a * b)[operator] % MODULUS
