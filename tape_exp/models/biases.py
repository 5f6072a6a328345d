"""What encodings add to logits, as ``bias`` of an encoding gives it: one of four kinds, or several.

==================== ==================== =======================================================
kind                 it holds             is made
==================== ==================== =======================================================
:class:`ByDistance`  b(distance)          in a table of all distances, where positions count tokens
:class:`ByPosition`  b(query's, key's)    for some queries at a time, where they are computed
:class:`ByKey`       a number for a key   for each pair by a subtraction
:class:`Dense`       a number for a pair  by the encoding
==================== ==================== =======================================================

A backend asks each for the tensor of all pairs (``added``), or of some (``of_block``), or for a
function of one pair (``modifier``).

Shape suffixes: B batch, T queries, S keys (S >= T: earlier ones come from a cache), H heads, N
distances.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from tape_exp.models.precision import full_precision
from tape_exp.settings.errors import ConfigError

SHARED = ("B", "H")  # dimensions of which a bias may have 1, for all rows or heads
Modifier = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]  # what is added at (b, h, t, s)


@dataclass(frozen=True)
class Pairs:
    """The queries and keys that are paired, without what is in them: how many there are, and where.

    The T queries are the last of the S keys; earlier ones come from a cache.
    """

    B: int
    H: int
    T: int
    S: int
    positions: Tensor | None  # of the keys, (1 or B, S); None: 0 … S - 1
    consecutive: bool  # positions count the tokens of a row, as where they are None
    dtype: torch.dtype  # of logits: fp32, or fp64 where queries are
    device: torch.device

    @property
    def offset(self) -> int:
        """The number of keys before those of the queries themselves."""
        return self.S - self.T

    @property
    def by_place(self) -> bool:
        """Whether the distance of two tokens is by how many places they are apart."""
        return self.consecutive or self.positions is None

    @property
    def key_positions(self) -> Tensor:
        """Those of the keys, (1 or B, S)."""
        if self.positions is not None:
            return self.positions
        return torch.arange(self.S, device=self.device, dtype=torch.float32)[None]

    def require(self, bias: "Bias", values: Tensor) -> None:
        """Raise :class:`BiasError` where a bias has not a number for each pair."""
        require_shape(bias, values, B=self.B, H=self.H, T=self.T, S=self.S)


class Bias:
    """What an encoding adds to logits. A subclass says how :meth:`of_pairs` computes it; the other
    methods have defaults.
    """

    # Of tokens, so that 16 bits would round what its gradient goes to.
    from_tokens = False
    # (1 or H,) where the bias is -slope · distance, which flash-attn computes itself.
    slopes: Tensor | None = None

    def require_sizes(self, pairs: Pairs) -> None:
        """Raise :class:`BiasError` where it holds a tensor that does not fit these pairs."""

    def added(self, pairs: Pairs) -> Tensor:
        """Return what is added to the logits, (1 or B, 1 or H, T, S), computed without autocast."""
        with full_precision(pairs.device):
            values = self.of_pairs(pairs)
        pairs.require(self, values)
        return values.to(pairs.dtype)

    def of_pairs(self, pairs: Pairs) -> Tensor:
        """Return what is added to each pair of query and key: (1 or B, 1 or H, T, S), at least
        fp32. What it is at keys after the query does not matter.
        """
        raise TypeError(f"{type(self).__name__} must say what it adds to each pair: of_pairs.")

    def of_block(self, first: int, T: int, S: int) -> "Bias":
        """Return the same bias of the T queries from ``first`` on and of the first S keys."""
        return self

    def modifier(self, pairs: Pairs, extra: int) -> Modifier:
        """Return the same for FlexAttention, whose queries and keys have ``extra`` tokens at the
        end. It is called without autocast.
        """
        added = self.added(pairs).expand(-1, pairs.H, pairs.T, pairs.S)
        added = F.pad(added, (0, extra, 0, extra))
        if len(added) == 1:  # one for all rows, whose gradients meet in atomic additions
            shared = added[0]
            return lambda b, h, t, s: shared[h, t, s]
        return lambda b, h, t, s: added[b, h, t, s]


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

    def require_sizes(self, pairs: Pairs) -> None:
        if self.slopes is not None:
            require_shape(self, self.slopes, H=pairs.H)

    def of_pairs(self, pairs: Pairs) -> Tensor:
        """Look distances up in a table of all, where positions count tokens."""
        if pairs.by_place:
            return by_distance(self.table(pairs), pairs.T)[None]
        keys = pairs.key_positions
        distance = (keys[:, pairs.offset :, None] - keys[:, None]).clamp(min=0)
        values = self.of(distance.flatten(), pairs)
        return values.unflatten(1, distance.shape).transpose(0, 1)

    def of(self, distances_N: Tensor, pairs: Pairs) -> Tensor:
        """Return the bias at these distances, (1 or H, N)."""
        values = self.at(distances_N)
        require_shape(self, values, H=pairs.H, N=distances_N.shape[0])
        return values

    def table(self, pairs: Pairs) -> Tensor:
        """Return the bias at the distances 0 … S - 1: (1 or H, S)."""
        distances = torch.arange(pairs.S, device=pairs.device, dtype=torch.float32)
        return self.of(distances, pairs)

    def modifier(self, pairs: Pairs, extra: int) -> Modifier:
        if not pairs.by_place:
            return super().modifier(pairs, extra)
        offset = pairs.offset
        table = self.table(pairs).expand(pairs.H, -1)
        table = F.pad(table.to(pairs.dtype), (0, extra))
        return lambda b, h, t, s: table[h, (t + offset - s).clamp(min=0)]


@dataclass(frozen=True)
class ByKey(Bias):
    """A bias of a key, (1 or B, S, 1 or H), in fp64 where only differences within a row are small.
    What the query adds cancels in the softmax: a sum from key to query, c_i - c_j, is -c_j.
    """

    values: Tensor

    from_tokens = True

    def require_sizes(self, pairs: Pairs) -> None:
        require_shape(self, self.values, B=pairs.B, S=pairs.S, H=pairs.H)

    def of_pairs(self, pairs: Pairs) -> Tensor:
        # Softmax does not see what is subtracted, the bias of the query's own key: what is left
        # is small where probabilities are not, and has kept all its bits.
        values = self.values.transpose(1, 2)
        of_query = values[:, :, pairs.offset :, None].detach()
        return values[:, :, None] - of_query

    def of_block(self, first: int, T: int, S: int) -> "ByKey":
        return ByKey(self.values[:, :S])

    def modifier(self, pairs: Pairs, extra: int) -> Modifier:
        # Two fp32 numbers hold one of fp64. The gradient of a buffer that a score_mod indexes
        # twice is wrong: a query's own number is a buffer of its own.
        values = self.values.transpose(1, 2).expand(pairs.B, pairs.H, -1)
        keys = F.pad(values, (0, extra))
        high = keys.float()
        low = (keys - high.to(keys.dtype)).float()
        of_query = high[:, :, pairs.offset :].detach().clone()
        return lambda b, h, t, s: (high[b, h, s] - of_query[b, h, t]) + low[b, h, s]


@dataclass(frozen=True)
class ByPosition(Bias):
    """A bias of the positions of query and key, made for some queries at a time: (1 or B, 1 or H,
    T, S) at positions (1 or B, T) and (1 or B, S) fp32. Keys after the query are masked.
    """

    at: Callable[[Tensor, Tensor], Tensor]

    def of_pairs(self, pairs: Pairs) -> Tensor:
        keys = pairs.key_positions
        return self.at(keys[:, pairs.offset :], keys)


@dataclass(frozen=True)
class Dense(Bias):
    """A bias of pairs in memory: (1 or B, 1 or H, T, S), in at least fp32."""

    values: Tensor

    from_tokens = True

    def require_sizes(self, pairs: Pairs) -> None:
        pairs.require(self, self.values)

    def of_pairs(self, pairs: Pairs) -> Tensor:
        return self.values

    def of_block(self, first: int, T: int, S: int) -> "Dense":
        return Dense(self.values[:, :, first : first + T, :S])


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
