"""Strings: copy, reverse and sort them, and find a bit that is missing."""

from collections.abc import Sequence

from tape_exp.tasks.sequences import Draws, SequenceTask


class Copy(SequenceTask):
    """``011|011<eos>``: symbols, uniform and independent, then the same ones in another order.

    Of Delétang et al. (2023, "Neural Networks and the Chomsky Hierarchy"): duplicate and reverse
    string over two symbols, bucket sort over five. Copying, reversing and sorting are also tasks
    of Kazemnejad et al. (2023, "The Impact of Positional Encoding on Length Generalization").

    Deviations from Delétang et al.: a decoder writes the answer after a bar and is fed what it
    should have written, where theirs answers at blank places after the input; EOS is scored;
    ``copy`` is their duplicate string without the first copy, which is the input.
    """

    summary = "repeat a string"
    symbols = "|01"
    tokens = (2, 2)
    numbers = (1, 0)

    def sample(self, n: int, rng: Draws) -> tuple[Sequence[str], Sequence[str]]:
        string = rng.choice(self.symbols[1:], n)
        return [*string, "|"], self.answer(string)

    def answer(self, string: list[str]) -> list[str]:
        """Return what is written after the bar."""
        return string


class Reverse(Copy):
    """``011|110<eos>``, see :class:`Copy`."""

    summary = "write a string from its end to its beginning"

    def answer(self, string: list[str]) -> list[str]:
        return string[::-1]


class Sort(Copy):
    """``4120|0124<eos>``, see :class:`Copy`."""

    summary = "write the symbols of a string in ascending order"
    symbols = "|01234"

    def answer(self, string: list[str]) -> list[str]:
        return sorted(string)


class MissingDuplicate(SequenceTask):
    """``0110_1=1``: a string of bits, here 011, twice, with one of them hidden.

    "Missing duplicate string" of Delétang et al. (2023): bits and the hidden place are uniform; a
    length counts the symbols before the equals sign, and an odd one ends in an empty symbol.

    Deviations: the answer follows an equals sign; there are no rows of one symbol, for which theirs
    have a constant.

    Every bit is there twice, so that the hidden one is also the parity of the visible ones, in the
    source as here: a model that tracks parity solves this without finding the place.
    """

    summary = "find the hidden bit of a string that is there twice"
    symbols = "=_.01"
    tokens = (1, 2)
    shortest = 2
    ends = False

    def draws(self, n: int) -> int:
        return 1 + n // 2

    def sample(self, n: int, rng: Draws) -> tuple[Sequence[str], Sequence[str]]:
        hidden = rng.below(n // 2 * 2)
        string = rng.choice("01", n // 2) * 2
        answer = string[hidden]
        string[hidden] = "_"
        return [*string, *"." * (n % 2), "="], answer
