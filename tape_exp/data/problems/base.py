"""What a problem of the battery is: its symbols, its lengths and its rows."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import numpy as np

from tape_exp.machine.seeding import lanes, seed_for

PAD, EOS = 0, 1
ENDS = ("<pad>", "<eos>")  # the first two symbols of every problem

Rows = tuple[np.ndarray, np.ndarray]
"""Tokens (B, T) int16, padded on the right, and which of them are scored (B, T) bool."""


class Problem(ABC):
    """One problem: how long its rows can be, and how a row is written from random numbers.

    A scored token is a function of the tokens before it. Subclasses say in their docstring where
    the problem is defined, and every deviation.
    """

    name: str  # the value of task.problem
    summary: str  # one line
    unit: str  # what a length counts
    symbols: tuple[str, ...]  # by token; begins with ENDS
    shortest = 1
    longest = 10_000
    digits: tuple[int, ...] = ()  # tokens of the digits, if numbers begin with the least one
    others: Mapping[str, "Problem"] = {}  # further distributions of its rows, for the test alone

    def has(self, length: int) -> bool:
        """Whether there are rows of this length."""
        return self.shortest <= length <= self.longest

    def lengths(self, longest: int) -> list[int]:
        """All lengths up to this one that there are."""
        last = min(longest, self.longest)
        return [length for length in range(self.shortest, last + 1) if self.has(length)]

    def usual(self, n: int) -> tuple[int, ...]:
        """Lengths to test a model on that is trained on those up to n, as far as there are such."""
        return n // 2, n, 3 * n // 2, 2 * n, 4 * n, 8 * n

    @abstractmethod
    def count(self, length: int) -> int:
        """How many different rows of this length there are; exact below a million."""

    @abstractmethod
    def width(self, length: int) -> int:
        """Tokens of the longest row of lengths up to this one."""

    @abstractmethod
    def draws(self, length: int) -> int:
        """Random numbers that a row of a length up to this one takes."""

    @abstractmethod
    def write(self, lengths: np.ndarray, random: np.ndarray) -> Rows:
        """A row for each of ``lengths`` (B,), from ``random`` (B, draws) uint32."""

    def rows(self, key: int, first: int, count: int, lengths: Sequence[int]) -> Rows:
        """Rows ``first`` … of a stream, the length of each drawn uniformly from ``lengths``.

        Row k depends on ``key``, k and ``lengths`` only. All are as wide as the longest can be.
        """
        longest = max(lengths)
        random = lanes(key, first, count, 1 + self.draws(longest))
        drawn = np.asarray(lengths)[draw(len(lengths), random[:, 0])]
        tokens, scored = self.write(drawn, random[:, 1:])
        wide = np.zeros((2, count, self.width(longest)), dtype=np.int16)
        kept = min(tokens.shape[1], wide.shape[2])  # what is cut off is padding
        wide[0, :, :kept], wide[1, :, :kept] = tokens[:, :kept], scored[:, :kept]
        return wide[0], wide[1].astype(bool)

    def guessed(self, length: int, count: int = 1000) -> float:
        """The share of a row's scored tokens, in percent, that the best of some guesses gets right
        which look nearby only: the scored token that follows the last 0, 1, 2 or 3 tokens most
        often in other rows, or the scored token before it in its row. As scores are, it is a mean
        over rows.
        """
        seen, asked = (
            self.rows(seed_for(0, "guess", part), 0, count, [length]) for part in ("seen", "asked")
        )
        tokens, scored = asked
        right = tokens[scored]
        usual = int(np.bincount(seen[0][seen[1]]).argmax())
        guesses = [_following(near, seen, asked, len(self.symbols), usual) for near in range(4)]
        rows = scored.nonzero()[0]
        again = np.where(np.r_[-1, rows[:-1]] == rows, np.r_[usual, right[:-1]], usual)
        tokens_of = np.bincount(rows)
        shares = [np.bincount(rows, guess == right) / tokens_of for guess in [*guesses, again]]
        return 100 * max(float(share.mean()) for share in shares)

    def text(self, tokens: Sequence[int]) -> list[str]:
        """The symbols of a row without padding."""
        return [self.symbols[token] for token in tokens if token != PAD]


def _following(near: int, seen: Rows, asked: Rows, symbols: int, usual: int) -> np.ndarray:
    """For each scored token of ``asked``, that which most often follows the ``near`` tokens before
    it in ``seen``, and ``usual`` where they are not there.
    """
    before = []
    for tokens, scored in (seen, asked):
        code = np.zeros(tokens.shape, dtype=np.int64)
        for back in range(1, near + 1):
            code[:, back:] = code[:, back:] * symbols + tokens[:, :-back]
        before.append(code[scored])
    pairs, times = np.unique(before[0] * symbols + seen[0][seen[1]], return_counts=True)
    best = np.lexsort((times, pairs // symbols))
    contexts, ends = np.unique(pairs[best][::-1] // symbols, return_index=True)
    following = pairs[best][::-1][ends] % symbols
    place = np.searchsorted(contexts, before[1]).clip(max=len(contexts) - 1)
    return np.where(contexts[place] == before[1], following[place], usual)


def draw(limit: int | np.ndarray, random: np.ndarray) -> np.ndarray:
    """Uniform integers in 0 … limit - 1 from uint32; as int64, and with a limit for each."""
    return ((random.astype(np.uint64) * np.asarray(limit, np.uint64)) >> np.uint64(32)).astype(
        np.int64
    )


def draw_integer(limit: int, random: np.ndarray) -> int:
    """One in 0 … limit - 1, of any size, from uint32 that have 32 bits more than it."""
    bits = int.from_bytes(random.astype("<u4").tobytes(), "little")
    return (bits * limit) >> (32 * len(random))


def joined(*parts: tuple[np.ndarray | int, np.ndarray | int, np.ndarray | bool]) -> Rows:
    """Rows of parts, one after another: (tokens (B, w) or one token, how many are used, scored).

    The first part is an array. The rows are as wide as all parts together.
    """
    rows = len(np.asarray(parts[0][0]))
    values, used, scored = [], [], []
    for value, length, marked in parts:
        columns = value if isinstance(value, np.ndarray) else np.full((rows, 1), value)
        inside = np.arange(columns.shape[1]) < np.broadcast_to(length, rows)[:, None]
        values.append(columns)
        used.append(inside)
        scored.append(np.broadcast_to(marked, columns.shape))
    chosen = np.concatenate(used, 1)
    inside = np.arange(chosen.shape[1]) < chosen.sum(1)[:, None]
    tokens, marks = np.zeros(chosen.shape, dtype=np.int16), np.zeros(chosen.shape, dtype=bool)
    tokens[inside] = np.concatenate(values, 1)[chosen]
    marks[inside] = np.concatenate(scored, 1)[chosen]
    return tokens, marks


def typed(symbols: Sequence[str], prompts: Sequence[str], answers: Sequence[str]) -> Rows:
    """Rows of text, one character a symbol and ``\\n`` for EOS; answers are scored."""
    texts = [prompt + answer for prompt, answer in zip(prompts, answers, strict=True)]
    width = max(map(len, texts))
    token = np.zeros(128, dtype=np.int16)
    token[[ord("\n"), *map(ord, symbols[len(ENDS) :])]] = range(EOS, len(symbols))
    letters = "".join(text.ljust(width) for text in texts).encode()
    place = np.arange(width)
    begin, end = (np.array(list(map(len, part)))[:, None] for part in (prompts, texts))
    tokens = token[np.frombuffer(letters, dtype=np.uint8)].reshape(len(texts), width)
    return tokens, (begin <= place) & (place < end)
