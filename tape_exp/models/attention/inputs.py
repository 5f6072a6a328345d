"""What a backend of attention is given: tensors, biases, padding, and which keys a query sees.

Shape suffixes as in :mod:`tape_exp.models.attention`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from tape_exp.models.attention.window import Window
from tape_exp.models.kernels import causal
from tape_exp.models.precision import full_precision, precise
from tape_exp.models.rows import RowBias

HIDDEN = -1e9  # what is added to the logits of padding: finite, so that rows of it stay finite
Path = tuple[Tensor, Tensor]  # w and β of PaTH


@dataclass(frozen=True)
class OnDemand:
    """A bias of T = S tokens that is computed in the form that the backend reads."""

    by_pair: Callable[[], Tensor | None]  # broadcasts to (B, H, T, S)
    piecewise: Callable[[], causal.Piecewise | None]  # for our kernel
    path: Path | None = None  # for fla's, of which the bias is made
    rows: RowBias | None = None  # for the explicit softmax in blocks of rows


@dataclass(frozen=True)
class Inputs:
    """What a backend is asked to do; head-major, as kernels want it."""

    q: Tensor  # (B, H, T, D)
    k: Tensor  # (B, K, S, D)
    v: Tensor  # (B, K, S, D)
    carried: Tensor | None  # (B or 1, H or 1, S, C)
    bias: Tensor | None  # broadcasts to (B, H, T, S)
    by_distance: Tensor | None  # (H, N >= S)
    slopes: Tensor | None  # (H,)
    padding: Tensor | None = None  # (B,), the keys of a row that are hidden, from its first on
    on_demand: OnDemand | None = None  # instead of a bias
    key_bias: Tensor | None = None  # (B, H, S)
    window: Window | None = None  # None: a query sees all keys before it

    @property
    def groups(self) -> int:
        """Query heads to a key head."""
        return self.q.shape[1] // self.k.shape[1]

    @property
    def biased(self) -> bool:
        """Whether anything is added to the logits."""
        parts = (self.bias, self.by_distance, self.on_demand, self.key_bias)
        return any(x is not None for x in parts)

    @property
    def in_rows(self) -> RowBias | None:
        """The bias a block of rows at a time, where it is to be had."""
        return None if self.on_demand is None else self.on_demand.rows

    def with_pairs(self) -> "Inputs":
        """The same with a bias by pair, where one is computed on demand."""
        if self.on_demand is None:
            return self
        return replace(self, bias=self.on_demand.by_pair(), on_demand=None)

    def scaled(self, scale: Tensor) -> "Inputs":
        """The same with logits, biases included, times (B or 1, H, T): a bias by pair, if any."""
        bias = replace(self.with_pairs(), padding=None).dense_bias()
        return replace(
            self,
            q=(self.q * scale[..., None]).to(self.q.dtype),
            bias=None if bias is None else bias * scale[..., None],
            by_distance=None,
            slopes=None,
            on_demand=None,
            key_bias=None,
        )

    def mask(self) -> Tensor:
        """Booleans that broadcast to (B, H, T, S): where query t may look at key s, if s is not
        padding.
        """
        T, S, device = self.q.shape[2], self.k.shape[2], self.q.device
        if self.window is None:
            return causal_mask(T, S, device)
        places = torch.arange(S, device=device)
        return self.window.mask(places[S - T :], places, self.padding)

    def narrow(self, rows: int) -> bool:
        """Whether a window hides at least half of the keys from so many queries in a row."""
        if self.window is None:
            return False
        seen = self.window.size + self.window.sinks + min(rows, self.q.shape[2])
        return 2 * seen <= self.k.shape[2]

    def dense_bias(self) -> Tensor | None:
        """Biases and padding as one tensor that broadcasts to (B, H, T, S)."""
        T, S = self.q.shape[2], self.k.shape[2]
        parts = [] if self.bias is None else [self.bias]
        if self.by_distance is not None:
            keys = torch.arange(S, device=self.q.device)
            distance = torch.arange(S - T, S, device=self.q.device)[:, None] - keys
            parts.insert(0, self.by_distance[:, distance.clamp(min=0)][None])
        if self.key_bias is not None:
            parts.append(self.at_keys(0, T))
        if self.padding is not None:
            parts.append(self.hidden() * HIDDEN)
        return sum(parts[1:], parts[0]) if parts else None

    def at_keys(self, first: int, last: int) -> Tensor:
        """What the key bias adds for queries ``first`` … ``last`` - 1 at each key up to that of the
        last of them, less what it adds at a query's own key: (B, H, last - first, S - T + last), at
        least fp32.

        The softmax does not see what is subtracted, and what is left is small where probabilities
        are not: of sums of thousands it has lost no bits. Rounded to 16 bits, x is wrong by 2^-9 x,
        which changes a probability by x e^-x 2^-9 of that of a key without bias: by less than the
        rounding of the probability itself.
        """
        assert self.key_bias is not None
        T, S = self.q.shape[2], self.k.shape[2]
        own = self.key_bias[:, :, S - T + first : S - T + last, None].detach()
        wide = torch.promote_types(self.q.dtype, torch.float32)
        return (self.key_bias[:, :, None, : S - T + last] - own).to(wide)

    def hidden(self) -> Tensor:
        """(B, 1, 1, S) fp32: 1 where a key is padding."""
        assert self.padding is not None
        keys = torch.arange(self.k.shape[2], device=self.q.device)
        return (keys < self.padding[:, None])[:, None, None].float()

    def rows(self) -> "list[tuple[int, Inputs]]":
        """For each row its padding, and the row without it: no keys are hidden any more."""
        assert self.padding is not None
        parts = []
        for b, skip in enumerate(on_host(self.padding)):

            def cut(x: Tensor | None, *dims: int, b: int = b, skip: int = skip) -> Tensor | None:
                if x is None:
                    return None
                row = x[b : b + 1] if x.shape[0] > 1 else x
                for dim in dims:
                    row = row.narrow(dim, skip, x.shape[dim] - skip) if x.shape[dim] > 1 else row
                return row

            q, k, v = (x[b : b + 1, :, skip:] for x in (self.q, self.k, self.v))
            carried, bias, keys = cut(self.carried, 2), cut(self.bias, 2, 3), cut(self.key_bias, 2)
            rest = self.by_distance, self.slopes
            row = Inputs(q, k, v, carried, bias, *rest, key_bias=keys, window=self.window)
            parts.append((skip, row))
        return parts

    def per_query_head(self) -> tuple[Tensor, Tensor]:
        """The keys (B, H, S, D), and the values joined with what is carried, (B, H, S, D + C)."""
        k, v = self.k, self.v
        if self.groups > 1:
            k, v = k.repeat_interleave(self.groups, 1), v.repeat_interleave(self.groups, 1)
        if self.carried is not None:
            carried = self.carried.to(v.dtype).expand(*v.shape[:3], -1)
            v = torch.cat([v, carried], -1)
        return k, v

    def split(self, both: Tensor) -> tuple[Tensor, Tensor | None]:
        """Undo what :meth:`per_query_head` joined."""
        D = self.v.shape[-1]
        return both[..., :D], both[..., D:] if self.carried is not None else None


def products(q_BHTD: Tensor, k_BHSD: Tensor) -> Tensor:
    """q·k in at least fp32, whatever their dtype and under every autocast: (B, H, T, S)."""
    with full_precision(q_BHTD):
        return precise(q_BHTD) @ precise(k_BHSD).transpose(-1, -2)


_hosted = WeakTensorKeyDictionary()  # paddings that were read, for as long as they exist


def on_host(padding_B: Tensor) -> list[int]:
    """The padding of each row, read once for all layers: a GPU is waited for."""
    if padding_B not in _hosted:
        _hosted[padding_B] = padding_B.tolist()
    return _hosted[padding_B]


def causal_mask(T: int, S: int, device: torch.device) -> Tensor:
    """(T, S) booleans, true where query t may look at key s: s <= t + S - T."""
    return torch.ones(T, S, dtype=torch.bool, device=device).tril(S - T)
