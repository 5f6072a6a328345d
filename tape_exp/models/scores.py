"""What attention's probabilities are made of: queries, keys and what encodings add to their logits.

Shape suffixes: B batch, T queries, S keys (S >= T: earlier ones come from a cache), H heads, K
heads of keys (each serves H / K heads of queries), D head dimension, N distances.
"""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from tape_exp.settings.errors import ConfigError

SHARED = ("B", "H")  # dimensions of which a bias may have 1, for all rows or heads
Modifier = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]  # what is added at (b, h, t, s)


def full_precision(x: Tensor) -> AbstractContextManager:
    """Turn autocast off on x's device: what is computed inside stays in its own dtype."""
    kind = x.device.type
    if kind == "meta" or not torch.is_autocast_enabled(kind):
        return nullcontext()
    return torch.autocast(kind, enabled=False)


def precise(x: Tensor) -> Tensor:
    """Return x in fp32, or fp64 if it is: for what a 16-bit model must not round to its dtype."""
    if x.dtype == torch.float32:  # as nearly always: asking is cheaper than a conversion to itself
        return x
    return x.to(torch.promote_types(x.dtype, torch.float32))


class Bias:
    """What an encoding adds to logits. A subclass says how :meth:`pairs` computes it; the other
    methods have defaults. :class:`Scores` calls them with autocast off.
    """

    # Of tokens, so that 16 bits would round what its gradient goes to.
    from_tokens = False
    # (1 or H,) where the bias is -slope · distance, which flash-attn computes itself.
    slopes: Tensor | None = None

    def require_sizes(self, scores: "Scores") -> None:
        """Raise :class:`BiasError` where it holds a tensor that does not fit these scores."""

    def pairs(self, scores: "Scores") -> Tensor:
        """Return what is added to each pair of query and key: (1 or B, 1 or H, T, S), at least
        fp32. What it is at keys after the query does not matter.
        """
        raise TypeError(f"{type(self).__name__} must say what it adds to each pair: pairs(scores).")

    def of_block(self, first: int, T: int, S: int) -> "Bias":
        """Return the same bias of the T queries from ``first`` on and of the first S keys."""
        return self

    def modifier(self, scores: "Scores", extra: int) -> Modifier:
        """Return the same for FlexAttention, whose queries and keys have ``extra`` tokens at the
        end.
        """
        H = scores.q.shape[1]
        T = scores.q.shape[2]
        S = scores.k.shape[2]
        pairs = F.pad(scores.addend(self).expand(-1, H, T, S), (0, extra, 0, extra))
        if len(pairs) == 1:  # one for all rows, whose gradients meet in atomic additions
            shared = pairs[0]
            return lambda b, h, t, s: shared[h, t, s]
        return lambda b, h, t, s: pairs[b, h, t, s]


class BiasError(ConfigError):
    """What an encoding gave is no bias, in one sentence."""


def require_shape(bias: Bias, values: Tensor, **sizes: int) -> None:
    """Refuse what would silently be broadcast along other dimensions than its own, or read beyond
    its end by a kernel. ``sizes`` are those of the dimensions, by their names: B and H may be 1,
    which is one for all rows or heads.
    """
    shape = tuple(values.shape)
    fits = len(shape) == len(sizes)
    for found, (name, size) in zip(shape, sizes.items(), strict=False):
        fits = fits and (found == size or (found == 1 and name in SHARED))
    if not fits:
        names = ", ".join(f"1 or {name}" if name in SHARED else name for name in sizes)
        wanted = ", ".join(f"{name} = {size}" for name, size in sizes.items())
        raise BiasError(
            f"{type(bias).__name__} takes a bias of the shape ({names}), not {shape}; "
            f"here {wanted}."
        )


@dataclass(frozen=True)
class ByDistance(Bias):
    """A bias of the distance of query and key: (1 or H, N) at distances (N,) fp32. ``slopes``, (1
    or H,): the bias is -slope · distance, which flash-attn computes itself.
    """

    at: Callable[[Tensor], Tensor]
    slopes: Tensor | None = None

    def require_sizes(self, scores: "Scores") -> None:
        if self.slopes is not None:
            require_shape(self, self.slopes, H=scores.q.shape[1])

    def pairs(self, scores: "Scores") -> Tensor:
        """Look distances up in a table of all, where positions count tokens."""
        if scores.by_place:
            return by_distance(self.table(scores), scores.q.shape[2])[None]
        keys = scores.key_positions
        distance = (keys[:, scores.offset :, None] - keys[:, None]).clamp(min=0)
        values = self.of(distance.flatten(), scores)
        return values.unflatten(1, distance.shape).transpose(0, 1)

    def of(self, distances_N: Tensor, scores: "Scores") -> Tensor:
        """Return the bias at these distances, (1 or H, N)."""
        values = self.at(distances_N)
        require_shape(self, values, H=scores.q.shape[1], N=distances_N.shape[0])
        return values

    def table(self, scores: "Scores") -> Tensor:
        """Return the bias at the distances 0 … S - 1: (1 or H, S)."""
        S = scores.k.shape[2]
        distances = torch.arange(S, device=scores.q.device, dtype=torch.float32)
        return self.of(distances, scores)

    def modifier(self, scores: "Scores", extra: int) -> Modifier:
        if not scores.by_place:
            return super().modifier(scores, extra)
        offset = scores.offset
        table = self.table(scores).expand(scores.q.shape[1], -1)
        table = F.pad(table.to(scores.dtype), (0, extra))
        return lambda b, h, t, s: table[h, (t + offset - s).clamp(min=0)]


@dataclass(frozen=True)
class ByKey(Bias):
    """A bias of a key, (1 or B, S, 1 or H), in fp64 where only differences within a row are small.
    What the query adds cancels in the softmax: a sum from key to query, c_i - c_j, is -c_j.
    """

    values: Tensor

    from_tokens = True

    def require_sizes(self, scores: "Scores") -> None:
        B, H = scores.q.shape[:2]
        require_shape(self, self.values, B=B, S=scores.k.shape[2], H=H)

    def pairs(self, scores: "Scores") -> Tensor:
        # Softmax does not see what is subtracted, the bias of the query's own key: what is left
        # is small where probabilities are not, and has kept all its bits.
        values = self.values.transpose(1, 2)
        of_query = values[:, :, scores.offset :, None].detach()
        return values[:, :, None] - of_query

    def of_block(self, first: int, T: int, S: int) -> "ByKey":
        return ByKey(self.values[:, :S])

    def modifier(self, scores: "Scores", extra: int) -> Modifier:
        # Two fp32 numbers hold one of fp64. The gradient of a buffer that a score_mod indexes
        # twice is wrong: a query's own number is a buffer of its own.
        values = self.values.transpose(1, 2).expand(*scores.q.shape[:2], -1)
        keys = F.pad(values, (0, extra))
        high = keys.float()
        low = (keys - high.to(keys.dtype)).float()
        of_query = high[:, :, scores.offset :].detach().clone()
        return lambda b, h, t, s: (high[b, h, s] - of_query[b, h, t]) + low[b, h, s]


@dataclass(frozen=True)
class ByPosition(Bias):
    """A bias of the positions of query and key, made for some queries at a time: (1 or B, 1 or H,
    T, S) at positions (1 or B, T) and (1 or B, S) fp32. Keys after the query are masked.
    """

    at: Callable[[Tensor, Tensor], Tensor]

    def pairs(self, scores: "Scores") -> Tensor:
        keys = scores.key_positions
        return self.at(keys[:, scores.offset :], keys)


@dataclass(frozen=True)
class Dense(Bias):
    """A bias of pairs in memory: (1 or B, 1 or H, T, S), in at least fp32."""

    values: Tensor

    from_tokens = True

    def require_sizes(self, scores: "Scores") -> None:
        scores.require_pairs(self, self.values)

    def pairs(self, scores: "Scores") -> Tensor:
        return self.values

    def of_block(self, first: int, T: int, S: int) -> "Dense":
        return Dense(self.values[:, :, first : first + T, :S])


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
            bias.require_sizes(self)

    def probabilities(self) -> Tensor:
        """Return the probabilities, (B, H, T, S), at least fp32 whatever the dtype of q and k."""
        q = precise(self.q)
        k = precise(self.k)
        with full_precision(q):
            logits = product_by_group(q / math.sqrt(q.shape[-1]), k.mT)
            # Added: a fill would be undone in the backward pass, where softmax gives 0 anyway.
            addend = logits.new_zeros(()).masked_fill(~self.visible(), float("-inf"))
            for bias in self.biases:
                addend = addend + self.addend(bias)
            return logits.add_(addend).softmax(-1)

    def addend(self, bias: Bias) -> Tensor:
        """Return what a bias adds, (1 or B, 1 or H, T, S), computed without autocast."""
        with full_precision(self.q):
            pairs = bias.pairs(self)
        self.require_pairs(bias, pairs)
        return pairs.to(self.dtype)

    def require_pairs(self, bias: Bias, pairs: Tensor) -> None:
        """Raise :class:`BiasError` where there is not a number for each pair."""
        B, H, T = self.q.shape[:3]
        require_shape(bias, pairs, B=B, H=H, T=T, S=self.k.shape[2])

    def modifiers(self, extra: int) -> list[Modifier]:
        """Return the biases for FlexAttention, with ``extra`` tokens after queries and keys."""
        with full_precision(self.q):
            return [bias.modifier(self, extra) for bias in self.biases]

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
    def dtype(self) -> torch.dtype:
        """Of logits: fp32, or fp64 where queries are."""
        return precise(self.q[..., :0]).dtype

    @property
    def offset(self) -> int:
        """The number of keys before those of the queries themselves."""
        return self.k.shape[2] - self.q.shape[2]

    @property
    def by_place(self) -> bool:
        """Whether the distance of two tokens is by how many places they are apart."""
        return self.consecutive or self.positions is None

    @property
    def key_positions(self) -> Tensor:
        """Those of the keys, (1 or B, S)."""
        if self.positions is not None:
            return self.positions
        return torch.arange(self.k.shape[2], device=self.q.device, dtype=torch.float32)[None]

    @property
    def slopes(self) -> Tensor | None:
        """(1 or H,) where ALiBi's slopes are all that is added to the logits of whole rows."""
        alone = len(self.biases) == 1 and self.by_place and self.padding is None
        return self.biases[0].slopes if alone else None

    def times(self, factor_BHT: Tensor) -> "Scores":
        """Multiply the logits of each query, biases included, by its factor."""
        factor_BHT1 = factor_BHT[..., None]
        q = (self.q * factor_BHT1).to(self.q.dtype)
        if not self.biases:
            return replace(self, q=q)
        total = self.addend(self.biases[0])
        for bias in self.biases[1:]:
            total = total + self.addend(bias)
        return replace(self, q=q, biases=(Dense(total * factor_BHT1),))


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


def by_distance(table_HS: Tensor, T: int) -> Tensor:
    """Return the entries of the last T of S tokens as queries and all as keys, (H, T, S); at later
    keys that of distance 0. Of T = S = 3 and the table [0, 1, 2]::

        0 0 0        each row is part of   2 1 0 0 0
        1 0 0        and begins one        . . # # #     the first query
        2 1 0        earlier               . # # # .     the second
                                           # # # . .     the third

    Every row has the same N = S + T - 1 numbers. In N numbers written T times over, rows of N - 1
    begin one number earlier each: that view costs no look-up and no scattered gradient.
    """
    H, S = table_HS.shape
    if T == 1:
        return table_HS.flip(-1)[:, None]
    end = table_HS.flip(-1)
    N = S + T - 1
    row = torch.cat([end[:, T - 1 :], end[:, -1:].expand(-1, T - 1), end[:, : T - 1]], 1)
    return row[:, None].expand(-1, T, -1).reshape(H, -1)[:, : T * (N - 1)].view(H, T, -1)[..., :S]
