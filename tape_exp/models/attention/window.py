"""Which keys a query sees where it does not see all before it: a sliding window, and sinks.

Shape suffixes: B batch, T query tokens, S key tokens.
"""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Window:
    """A query sees the last ``size`` tokens, itself included (sliding window attention, Beltagy et
    al., 2020), and besides the first ``sinks`` tokens of its row (attention sinks, Xiao et al.,
    2023).
    """

    size: int
    sinks: int = 0

    def shows(self, distance: Tensor, key: Tensor) -> Tensor:
        """Whether a query sees keys so far before it, which have these numbers in their row."""
        seen = (distance >= 0) & (distance < self.size)
        return seen | ((distance >= 0) & (key < self.sinks)) if self.sinks else seen

    def mask(self, queries_T: Tensor, keys_S: Tensor, padding_B: Tensor | None = None) -> Tensor:
        """Which queries see which keys: booleans that broadcast to (B, 1, T, S).

        Args:
            queries_T, keys_S: places of the tokens.
            padding_B: the place of each row's first token, from which on sinks count.
        """
        distance, numbers = queries_T[:, None] - keys_S, keys_S
        if padding_B is not None and self.sinks:
            numbers = (keys_S - padding_B[:, None])[:, None, None]
        return self.shows(distance, numbers)

    def keys(self, first: int, end: int, padding_B: Tensor | None) -> slice | list[int]:
        """The keys that the queries at the places ``first`` … ``end`` - 1 see, and a few more."""
        if self.sinks and padding_B is not None:
            return slice(end)
        oldest = max(first - self.size + 1, 0)
        if not self.sinks or oldest <= self.sinks:
            return slice(0 if self.sinks else oldest, end)
        return [*range(self.sinks), *range(oldest, end)]

    def count(self, before: Tensor) -> Tensor:
        """How many of the tokens up to itself, so many, a query sees."""
        return before.clamp(max=self.size) + (before - self.size).clamp(0, self.sinks)
