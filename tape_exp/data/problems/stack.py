"""Stack manipulation: what is on a stack in the end."""

import numpy as np

from tape_exp.data.problems.base import ENDS, EOS, Problem, Rows, draw, joined
from tape_exp.data.problems.strings import reverse

BAR, ZERO, ONE, POP, PUSH_0, PUSH_1 = range(2, 8)


class StackManipulation(Problem):
    """``011 push1 pop pop|10<eos>``: a stack from its bottom, actions, the stack from its top.

    Of Delétang et al. (2023): the stack has 1 … n - 1 bits, uniformly, the rest of the n symbols
    are actions, bits and actions are uniform, and to pop an empty stack does nothing.

    Deviation: a decoder writes the answer after a bar; theirs pads it and leaves that out of the
    accuracy, as here.
    """

    name = "stack"
    summary = "pop and push, and write down what is on the stack"
    unit = "symbols"
    symbols = (*ENDS, "|", "0", "1", "pop", "push0", "push1")

    def count(self, length: int) -> int:
        """Stacks and actions, for each number of bits."""
        most = max(length - 1, 1)
        return sum(2**bits * 3 ** (length - bits) for bits in range(1, most + 1))

    def width(self, length: int) -> int:
        """The symbols, a bar, at most as many bits, and EOS."""
        return 2 * length + 2

    def draws(self, length: int) -> int:
        """The number of bits, and each symbol."""
        return length + 1

    def write(self, lengths: np.ndarray, random: np.ndarray) -> Rows:
        """Stacks, actions and what they lead to."""
        place = np.arange(random.shape[1] - 1)
        bits = 1 + draw((lengths - 1).clip(1), random[:, 0])[:, None]
        chosen = random[:, 1:]
        symbols = np.where(place < bits, ZERO + draw(2, chosen), POP + draw(3, chosen))
        rows, depth = np.arange(len(lengths)), np.zeros_like(lengths)
        stack = np.zeros((len(lengths), len(place) + 1), dtype=np.int64)
        for step in place:
            symbol, goes_on = symbols[:, step], step < lengths
            stack[rows, depth] = np.where(symbol > POP, symbol - PUSH_0 + ZERO, symbol)
            depth = np.where(goes_on, np.where(symbol == POP, depth - 1, depth + 1).clip(0), depth)
        return joined(
            (symbols, lengths, False),
            (BAR, 1, False),
            (reverse(stack[:, :-1], depth[:, None]), depth, True),
            (EOS, 1, True),
        )
