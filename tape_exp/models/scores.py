"""What attention's probabilities are made of: queries, keys and what encodings add to their logits.

Shape suffixes: B batch, T queries, S keys (S >= T: earlier ones come from a cache), H heads, D head
dimension, N distances.
"""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

import torch
from torch import Tensor


def full_precision(x: Tensor) -> AbstractContextManager:
    """No autocast on x's device: what is computed inside stays in its own dtype."""
    kind = x.device.type
    return nullcontext() if kind == "meta" else torch.autocast(kind, enabled=False)


def precise(x: Tensor) -> Tensor:
    """x in fp32, or in fp64 if it is: for what a 16-bit model must not round to its dtype."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


@dataclass(frozen=True)
class ByDistance:
    """A bias of the distance of query and key: (H, N) at distances (N,) fp32. ``slopes``, (H,): the
    bias is -slope · distance, which flash-attn computes itself.
    """

    at: Callable[[Tensor], Tensor]
    slopes: Tensor | None = None


@dataclass(frozen=True)
class ByKey:
    """A bias of a key, (B, S, H), in fp64 where only differences within a row are small. What the
    query adds cancels in the softmax: a sum from key to query, c_i - c_j, is -c_j.
    """

    values: Tensor


@dataclass(frozen=True)
class ByPosition:
    """A bias of the positions of query and key, made for some queries at a time: (1 or B, H, T, S)
    at positions (1 or B, T) and (1 or B, S) fp32. Keys after the query are masked.
    """

    at: Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Dense:
    """A bias of pairs in memory: (1 or B, H, T, S), in at least fp32."""

    pairs: Tensor


Bias = ByDistance | ByKey | ByPosition | Dense


@dataclass(frozen=True)
class Window:
    """A query sees the last ``size`` tokens, itself included (sliding windows, Beltagy et al.,
    2020), and the first ``sinks`` tokens of its row (attention sinks, Xiao et al., 2023).
    """

    size: int
    sinks: int = 0

    def count(self, before: Tensor) -> Tensor:
        """How many tokens a query sees, of so many up to itself."""
        return before.clamp(max=self.size) + (before - self.size).clamp(0, self.sinks)


@dataclass(frozen=True)
class Scores:
    """What the probabilities of one layer are made of; head-major, as kernels want it. The logit of
    query t and key s is q_t·k_s / √D + biases, for s <= t + S - T.
    """

    q: Tensor  # (B, H, T, D)
    k: Tensor  # (B, H, S, D)
    biases: tuple[Bias, ...] = ()
    positions: Tensor | None = None  # of the keys, (1 or B, S), for biases; None: 0 … S - 1
    # (B,): so many of the first keys of a row no query sees; those in these places give anything.
    padding: Tensor | None = None
    window: Window | None = None  # the keys that a query sees; None: all up to its own

    def probabilities(self) -> Tensor:
        """(B, H, T, S), at least fp32 whatever the dtype of q and k."""
        q, k = precise(self.q), precise(self.k)
        with full_precision(q):
            logits = (q / math.sqrt(q.shape[-1])) @ k.mT
            # Added: a fill would be undone in the backward pass, where softmax gives 0 anyway.
            hidden = logits.new_zeros(()).masked_fill(~self.visible(), float("-inf"))
            return logits.add_(sum(map(self.addend, self.biases), hidden)).softmax(-1)

    def addend(self, bias: Bias) -> Tensor:
        """What a bias adds: it broadcasts to (B, H, T, S)."""
        if isinstance(bias, Dense):
            return bias.pairs
        if isinstance(bias, ByKey):
            # Softmax does not see what is subtracted, the bias of the query's own key: what is left
            # is small where probabilities are not, and has kept all its bits.
            values = bias.values.transpose(1, 2)
            own = values[:, :, self.offset :, None].detach()
            return (values[:, :, None] - own).to(precise(self.q[..., :0]).dtype)
        T, S = self.q.shape[2], self.k.shape[2]
        if self.positions is None and isinstance(bias, ByDistance):
            return by_distance(bias.at(torch.arange(S, device=self.q.device).float()), T)[None]
        keys = self.positions
        keys = torch.arange(S, device=self.q.device).float()[None] if keys is None else keys
        queries = keys[:, self.offset :]
        if isinstance(bias, ByPosition):
            return bias.at(queries, keys)
        distance = (queries[:, :, None] - keys[:, None]).clamp(min=0)
        return bias.at(distance.flatten()).unflatten(1, distance.shape).transpose(0, 1)

    def visible(self) -> Tensor:
        """Where a query may look at a key: booleans that broadcast to (B, H, T, S)."""
        number = torch.arange(self.k.shape[2], device=self.q.device)
        distance, padded = number[self.offset :, None] - number, self.padding is not None
        if self.padding is not None:
            number = (number - self.padding[:, None])[:, None, None]
        return sees(distance, number, self.window, padded)

    def block(self, q: Tensor, k: Tensor, first: int) -> "Scores":
        """Of the queries q, from ``first`` on, and the keys k, up to the last one's own."""
        S, biases = k.shape[2], []
        for bias in self.biases:
            if isinstance(bias, Dense):
                bias = Dense(bias.pairs[:, :, first : first + q.shape[2], :S])
            elif isinstance(bias, ByKey):
                bias = ByKey(bias.values[:, :S])
            biases.append(bias)
        positions = None if self.positions is None else self.positions[:, :S]
        return replace(self, q=q, k=k, biases=tuple(biases), positions=positions)

    @property
    def offset(self) -> int:
        """The number of keys before those of the queries themselves."""
        return self.k.shape[2] - self.q.shape[2]

    @property
    def slopes(self) -> Tensor | None:
        """(H,) where ALiBi's slopes are all that is added to the logits of whole rows."""
        alone = len(self.biases) == 1 and self.positions is None and self.padding is None
        return getattr(self.biases[0], "slopes", None) if alone else None

    def times(self, factor_BHT: Tensor) -> "Scores":
        """The same with the logits of each query, biases included, multiplied by its factor."""
        scale = factor_BHT[..., None]
        pairs = [self.addend(bias) for bias in self.biases]
        biases = (Dense(sum(pairs[1:], pairs[0]) * scale),) if pairs else ()
        return replace(self, q=(self.q * scale).to(self.q.dtype), biases=biases)


def sees(distance: Tensor, number: Tensor, window: Window | None, padded: bool) -> Tensor:
    """Whether a query sees the keys at these distances; their numbers count from the first of a row
    that is no padding.
    """
    seen = distance >= 0
    if window is not None:
        seen = seen & ((distance < window.size) | (number < window.sinks))
    # A query that is padding sees itself, so that it stays finite.
    return (seen & (number >= 0)) | (distance == 0) if padded else seen


def by_distance(table_HS: Tensor, T: int) -> Tensor:
    """The entries of the last T of S tokens as queries and all as keys, (H, T, S); at later keys
    that of distance 0.

    Every row has the same S + T - 1 numbers and begins one later: a view of them written one after
    the other costs no look-up and no scattered gradient.
    """
    H, S = table_HS.shape
    if T == 1:
        return table_HS.flip(-1)[:, None]
    end, N = table_HS.flip(-1), S + T - 1
    row = torch.cat([end[:, T - 1 :], end[:, -1:].expand(-1, T - 1), end[:, : T - 1]], 1)
    return row[:, None].expand(-1, T, -1).reshape(H, -1)[:, : T * (N - 1)].view(H, T, -1)[..., :S]
