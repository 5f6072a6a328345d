"""What attention's probabilities are made of: queries, keys, and what is added to their logits.

Shape suffixes: B batch, T queries, S keys (S >= T: earlier ones come from a cache), H heads, K
heads of keys (each serves H / K heads of queries), D head dimension.
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tape_exp.models.biases import Bias, Dense, Modifier, Pairs
from tape_exp.models.precision import full_precision, precise


@dataclass(frozen=True)
class Window:
    """A query sees the last ``size`` tokens, itself included (sliding windows, Beltagy et al.,
    2020), and the first ``sinks`` tokens of its row (attention sinks, Xiao et al., 2023).
    """

    size: int
    sinks: int = 0

    def count(self, before: Tensor) -> Tensor:
        """Return how many tokens a query sees, of so many up to itself."""
        return before.clamp(max=self.size) + (before - self.size).clamp(0, self.sinks)


@dataclass(frozen=True)
class Scores:
    """What the probabilities of one layer are made of; head-major, as kernels want it. The logit of
    query t and key s is q_t·k_s / √D + biases, for s <= t + S - T.
    """

    q: Tensor  # (B, H, T, D)
    k: Tensor  # (B, K, S, D)
    biases: tuple[Bias, ...] = ()
    positions: Tensor | None = None  # of the keys, (1 or B, S), for biases; None: 0 … S - 1
    consecutive: bool = False  # positions count the tokens of a row, as where they are None
    # (B,): so many of the first keys of a row no query sees; those in these places give anything.
    padding: Tensor | None = None
    window: Window | None = None  # the keys that a query sees; None: all up to its own

    def __post_init__(self) -> None:
        for bias in self.biases:
            bias.require_sizes(self.pairs)

    def probabilities(self) -> Tensor:
        """Return the probabilities, (B, H, T, S), at least fp32 whatever the dtype of q and k."""
        q = precise(self.q)
        k = precise(self.k)
        with full_precision(q.device):
            logits = product_by_group(q / math.sqrt(q.shape[-1]), k.mT)
            # Added: a fill would be undone in the backward pass, where softmax gives 0 anyway.
            addend = logits.new_zeros(()).masked_fill(~self.visible(), float("-inf"))
            if self.biases:
                addend = addend + self.added()
            return logits.add_(addend).softmax(-1)

    def added(self) -> Tensor:
        """Return the sum of the biases, of which there is one at least: (1 or B, 1 or H, T, S)."""
        total = self.biases[0].added(self.pairs)
        for bias in self.biases[1:]:
            total = total + bias.added(self.pairs)
        return total

    def modifiers(self, extra: int) -> list[Modifier]:
        """Return the biases for FlexAttention, with ``extra`` tokens after queries and keys."""
        with full_precision(self.q.device):
            return [bias.modifier(self.pairs, extra) for bias in self.biases]

    def visible(self) -> Tensor:
        """Return where a query may look at a key: booleans that broadcast to (B, H, T, S)."""
        number = torch.arange(self.k.shape[2], device=self.q.device)
        distance = number[self.offset :, None] - number
        padded = self.padding is not None
        if self.padding is not None:
            number = (number - self.padding[:, None])[:, None, None]
        return sees(distance, number, self.window, padded)

    def block(self, q: Tensor, k: Tensor, first: int) -> "Scores":
        """Return the scores of the queries q, from ``first`` on, and the keys k, up to the last
        one's own.
        """
        T = q.shape[2]
        S = k.shape[2]
        biases = tuple(bias.of_block(first, T, S) for bias in self.biases)
        positions = None if self.positions is None else self.positions[:, :S]
        return replace(self, q=q, k=k, biases=biases, positions=positions)

    @property
    def pairs(self) -> Pairs:
        """The pairs of queries and keys for which biases are asked."""
        return Pairs(
            self.q.shape[0],
            self.q.shape[1],
            self.q.shape[2],
            self.k.shape[2],
            self.positions,
            self.consecutive,
            torch.promote_types(self.q.dtype, torch.float32),
            self.q.device,
        )

    @property
    def offset(self) -> int:
        """The number of keys before those of the queries themselves."""
        return self.pairs.offset

    @property
    def slopes(self) -> Tensor | None:
        """(1 or H,) where ALiBi's slopes are all that is added to the logits of whole rows."""
        alone = len(self.biases) == 1 and self.pairs.by_place and self.padding is None
        return self.biases[0].slopes if alone else None

    def times(self, factor_BHT: Tensor) -> "Scores":
        """Multiply the logits of each query, biases included, by its factor."""
        factor_BHT1 = factor_BHT[..., None]
        q = (self.q * factor_BHT1).to(self.q.dtype)
        if not self.biases:
            return replace(self, q=q)
        return replace(self, q=q, biases=(Dense(self.added() * factor_BHT1),))


def product_by_group(x_BHTN: Tensor, y_BKNM: Tensor) -> Tensor:
    """Return x @ y, (B, H, T, M), where each head of y serves H / K of x: y is not repeated."""
    if x_BHTN.shape[1] == y_BKNM.shape[1]:
        return x_BHTN @ y_BKNM
    rows, heads, T = x_BHTN.shape[:3]
    groups = x_BHTN.reshape(rows, y_BKNM.shape[1], -1, x_BHTN.shape[-1])
    return (groups @ y_BKNM).view(rows, heads, T, -1)


def sees(distance: Tensor, number: Tensor, window: Window | None, padded: bool) -> Tensor:
    """Say whether a query sees the keys at these distances; their numbers count from the first of a
    row that is no padding.
    """
    seen = distance >= 0
    if window is not None:
        seen = seen & ((distance < window.size) | (number < window.sinks))
    # A query that is padding sees itself, so that it stays finite.
    return (seen & (number >= 0)) | (distance == 0) if padded else seen
