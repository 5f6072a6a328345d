"""Formal languages: brackets, the value of an expression, and what is on a stack."""

from collections.abc import Sequence

from tape_exp.tasks.sequences import Draws, SequenceTask

MODULUS = 5


class Dyck(SequenceTask):
    """``([])[]``: a balanced word of two kinds of brackets; at each closing one, which it is.

    The Dyck-2 language and the question, given that a bracket closes, which one it is, are those of
    Hewitt et al. (2020, "RNNs can generate bounded hierarchical languages with optimal memory"). A
    length counts pairs of brackets.

    Deviations: words are uniform among all of n pairs, whose depth grows with the square root of n,
    where theirs come from a grammar with a bound on the depth; the loss is on closing brackets
    only, and so says nothing of whether the next bracket opens or closes.
    """

    summary = "close the bracket that was opened last"
    unit = "pairs of brackets"
    symbols = "([)]"
    tokens = (2, 0)
    numbers = (4, 0)
    ends = False

    def sample(self, n: int, rng: Draws) -> tuple[Sequence[str], Sequence[str]]:
        """Draw a word from left to right.

        With r brackets to come at depth h, of which k = (r - h) / 2 open, the next one opens in a
        share (h + 2) k / ((h + 1) r) of the words (Arnold and Sleep, 1980).
        """
        places, kinds = rng.split(2)
        row = ""
        stack = ""
        for left in range(2 * n, 0, -1):
            depth = len(stack)
            kind = kinds.below(2)
            if places.below((depth + 1) * left) < (depth + 2) * ((left - depth) // 2):
                row = row + "(["[kind]
                stack = stack + ")]"[kind]
            else:
                row = row + stack[-1]
                stack = stack[:-1]
        return "", row

    def scored(self, answer: Sequence[str]) -> Sequence[bool]:
        return [symbol in ")]" for symbol in answer]


class ModularArithmetic(SequenceTask):
    """``((1+2)*-3)=1``: an expression modulo 5.

    Of Delétang et al. (2023): digits 0 … 4, the operators + - *, and a minus before a digit. An
    expression of one to four symbols is d, -d, (d) or (-d); a longer one is (left o right), where
    the length of ``left`` is uniform among those possible. A length counts the symbols before =.

    Deviation: the answer follows an equals sign.
    """

    summary = "the value of an expression with brackets, modulo 5"
    symbols = "01234+-*()="
    tokens = (1, 2)
    numbers = (1, 0)
    longest = 2000  # as deep as Python recurses
    ends = False

    def sample(self, n: int, rng: Draws) -> tuple[Sequence[str], Sequence[str]]:
        text, value = expression(n, rng)
        return text + "=", str(value)


def expression(n: int, rng: Draws) -> tuple[str, int]:
    """Draw an expression of so many symbols, and compute its value.

    Of four symbols it is as ``(-2)``, whose value is 3; of seven as ``(4*(3))``, whose value is 2.
    """
    if n < 5:
        digit = rng.below(MODULUS)
        text = (f"{digit}", f"-{digit}", f"({digit})", f"(-{digit})")[n - 1]
        value = -digit % MODULUS if "-" in text else digit
        return text, value
    split = 1 + rng.below(n - 4)
    operator = "+-*"[rng.below(3)]
    left, a = expression(split, rng)
    right, b = expression(n - 3 - split, rng)
    values = {"+": a + b, "-": a - b, "*": a * b}
    return f"({left}{operator}{right})", values[operator] % MODULUS


class StackManipulation(SequenceTask):
    """``0 1 1 push1 pop pop | 1 0 <eos>``: a stack from its bottom, actions, the stack from its
    top.

    Of Delétang et al. (2023): the stack has 1 … n - 1 bits, uniformly, the rest of the n symbols
    are actions, bits and actions are uniform, and to pop an empty stack does nothing.

    Deviation: a decoder writes the answer after a bar; theirs pads it and leaves that out of the
    accuracy, as here.
    """

    summary = "pop and push, and write down what is on the stack"
    symbols = ("|", "0", "1", "pop", "push0", "push1")
    tokens = (2, 2)
    numbers = (1, 1)

    def sample(self, n: int, rng: Draws) -> tuple[Sequence[str], Sequence[str]]:
        bits = 1 + rng.below(max(n - 1, 1))
        stack = rng.choice("01", bits)
        prompt = [*stack, *rng.choice(("pop", "push0", "push1"), n - bits), "|"]
        for action in prompt[bits:-1]:
            stack = stack[:-1] if action == "pop" else [*stack, action[-1]]
        return prompt, stack[::-1]
