"""A layer of the decoder: attention and SwiGLU, with the encoding's hooks around them.

Shape suffixes as in :mod:`tape_exp.models.decoder`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import skip_init

from tape_exp.models.attention import OnDemand, attend
from tape_exp.models.attention.window import Window
from tape_exp.models.cache import Cache
from tape_exp.models.positions.base import Past, PositionEncoding, State, for_heads, overrides
from tape_exp.models.precision import precise
from tape_exp.settings.schema import Arch, AttentionConfig


class Block(nn.Module):
    """Attention and SwiGLU, each after an RMSNorm, with a residual and the encoding's part."""

    def __init__(
        self,
        arch: Arch,
        position: PositionEncoding,
        backend: str,
        layer: int,
        attention: AttentionConfig,
        chain: int,
    ) -> None:
        super().__init__()
        C, queries, keys = arch.width, arch.heads * arch.head_dim, arch.key_heads * arch.head_dim
        self.layer = layer
        self.head_dim = arch.head_dim
        self.backend = backend
        self.chain = chain  # the number of its kind, whose layers share a state
        self.begins = False  # whether it is the first of them
        self.updates_state = True
        size = attention.window
        self.window = None if size is None else Window(size, attention.sinks)
        # Called instead of `attend`, with the same arguments (LongLoRA's sparse attention).
        self.attend: Callable[..., tuple[Tensor, Tensor | None]] | None = None
        self.attention_norm = nn.RMSNorm(C, eps=arch.norm_eps)
        self.q = matrix(C, queries)
        self.k = matrix(C, keys)
        self.v = matrix(C, keys)
        self.o = matrix(queries, C)
        self.mlp_norm = nn.RMSNorm(C, eps=arch.norm_eps)
        self.gate = matrix(C, arch.ffn)
        self.up = matrix(C, arch.ffn)
        self.down = matrix(arch.ffn, C)
        self.q_norm = nn.RMSNorm(arch.head_dim, arch.norm_eps) if attention.qk_norm else None
        self.k_norm = nn.RMSNorm(arch.head_dim, arch.norm_eps) if attention.qk_norm else None
        # Its factor is 1 on average over the rows of training.
        s = torch.full((arch.heads,), 1 / mean_log(arch.train_length)) if attention.ssmax else None
        self.ssmax = None if s is None else nn.Parameter(s)
        self.position = position
        position.fused = backend != "reference"

    def forward(self, x_BTC: Tensor, state: State, where: "Where") -> tuple[Tensor, State]:
        """The block's output and the position state for the next one."""
        if self.begins:
            # Here, not before the first block: where parameters are sharded, a block's own are
            # whole only in its own pass.
            ids_BT = where.ids[self.chain]
            ids_BT = where.positions_BT if ids_BT is None else ids_BT
            if (embedded := self.position.embed(ids_BT)) is not None:
                x_BTC = (x_BTC + embedded).to(x_BTC.dtype)
        normed = self.attention_norm(x_BTC)
        read = for_products(normed)
        q, k, v = (f(read).unflatten(-1, (-1, self.head_dim)) for f in (self.q, self.k, self.v))
        if self.q_norm is not None and self.k_norm is not None:
            q, k = normed_heads(self.q_norm, q), normed_heads(self.k_norm, k)
        past: Past = {} if where.cache is None else where.cache.past[self.layer]
        made = state if isinstance(state, Tensor) else None
        features = self.position.features(where.without_padding(normed), made, past)
        keeps = self.updates_state or where.watch is not None
        q, k, made, carried = self.position.enter(q, k, state, features, keeps)
        carried = carried if self.updates_state else None
        v = for_heads(v, k.shape[2])
        key_bias = self.position.key_bias(features)
        if where.cache is not None:
            new = {"k": precise(k) if self.position.changes_keys else k, "v": v}
            more = {"carried": carried, "key_bias": key_bias}
            new |= {name: x for name, x in more.items() if x is not None}
            cached = where.cache.extend(self.layer, new)
            k, v, carried = cached["k"], cached["v"], cached.get("carried")
            key_bias = cached.get("key_bias")
        biases = self._biases(where, q, k, features)
        if key_bias is not None:
            biases["key_bias"] = key_bias
        if where.cache is not None:
            biases["padding"] = where.cache.padding_B
        if self.window is not None:
            biases["window"] = self.window
        if self.ssmax is not None:
            biases["scale"] = self._scale(where, k.shape[1])
        if where.watch is not None:
            where.watch(self, q, k, biases, made)
        values, attended = (self.attend or attend)(
            q, k.to(q.dtype), v, carried=carried, backend=self._backend(where), **biases
        )
        if where.cache is not None and self.position.changes_keys:
            k.copy_(self.position.later_keys(k, features))
        mixed = self.o(values.flatten(2))
        x_BTC = x_BTC + mixed
        normed = for_products(self.mlp_norm(x_BTC))
        mlp = self.down(F.silu(self.gate(normed)) * self.up(normed))
        if self.updates_state:
            context = mixed if self.position.context == "attention" else mlp
            if carried is None:
                attended = self.position.accumulated(features, past)
            state = self.position.update(made, attended, context)
        return x_BTC + mlp, state

    def _backend(self, where: "Where") -> str:
        """The backend that was asked for. fla's is for whole sequences: cached decoding, padded
        prompts and watched passes take the fastest other one, which is logged.
        """
        return "auto" if self.backend == "fla" and not where.whole else self.backend

    def _biases(
        self, where: "Where", q_BTHD: Tensor, k_BSKD: Tensor, features: dict[str, Tensor]
    ) -> dict[str, Any]:
        """Keyword arguments of ``attend``: the bias by distance if it can be, else by pair."""
        S, position = k_BSKD.shape[1], self.position
        if where.consecutive:
            by_distance = position.bias_by_distance(S, where.positions_BT.device)
            if by_distance is not None:
                return {"by_distance": by_distance, "slopes": position.slopes()}
        keys = where.positions_BT if where.cache is None else where.cache.positions_BS[:, :S]
        if where.whole and overrides(position, "piecewise"):
            return {"bias": on_demand(position, where.positions_BT)}
        if self._backend(where) == "fla" and (path := position.path(features)) is not None:
            pairs = partial(position.contextual_bias, q_BTHD, k_BSKD, features, None)
            return {"bias": OnDemand(pairs, lambda: None, path)}
        T = q_BTHD.shape[1]
        if where.watch is None and position.rows_at_once(T) < T:
            pairs = partial(position.contextual_bias, q_BTHD, k_BSKD, features, None)
            rows = position.contextual_rows(q_BTHD, k_BSKD, features)
            return {"bias": OnDemand(pairs, lambda: None, rows=rows)}
        bias = position.bias(where.positions_BT, keys)
        bias = position.contextual_bias(q_BTHD, k_BSKD, features, bias)
        return {"bias": bias}

    def _scale(self, where: "Where", S: int) -> Tensor:
        """s · ln n, (B or 1, T, H), for queries that see n of the S keys. A query that sees one
        key has nothing to choose from, so that ln 1 = 0 does no harm.
        """
        assert self.ssmax is not None
        before = torch.arange(S, device=self.ssmax.device)[None] + 1
        if where.cache is not None and where.cache.padding_B is not None:
            before = (before - where.cache.padding_B[:, None]).clamp(min=1)
        before = before[:, -where.positions_BT.shape[1] :]
        seen = before if self.window is None else self.window.count(before)
        s = precise(self.ssmax)
        return s * seen[..., None].to(s.dtype).log()


def for_products(x: Tensor) -> Tensor:
    """x in the dtype in which autocast multiplies, so that the matrices that read it share one
    copy; x itself without autocast.
    """
    device = x.device.type
    if device == "meta" or x.dtype == torch.float64 or not torch.is_autocast_enabled(device):
        return x
    return x.to(torch.get_autocast_dtype(device))


def matrix(inputs: int, outputs: int) -> nn.Linear:
    """A linear map without bias; the decoder's ``init_weights`` or a checkpoint gives its
    weights.
    """
    return skip_init(nn.Linear, inputs, outputs, bias=False, device=torch.get_default_device())


def normed_heads(norm: nn.RMSNorm, x_BTHD: Tensor) -> Tensor:
    """The norm over the channels of each head, computed in at least fp32; returned in x's dtype."""
    wide = precise(x_BTHD)
    weight = norm.weight.to(wide.dtype)
    return F.rms_norm(wide, norm.normalized_shape, weight, norm.eps).to(x_BTHD.dtype)


def mean_log(length: int) -> float:
    """The mean of ln n over n = 1 … length, at least 2; 5.9 for 1024."""
    length = max(length, 2)
    return math.lgamma(length + 1) / length


def on_demand(position: PositionEncoding, positions_BT: Tensor) -> OnDemand:
    """The bias of tokens at 0 … T - 1, of an encoding that has it in pieces too."""
    return OnDemand(
        partial(position.bias, positions_BT, positions_BT),
        partial(position.piecewise, positions_BT.shape[1], positions_BT.device),
    )


class Watch(Protocol):
    """Called by every block before it attends, with what its probabilities are made of."""

    def __call__(
        self,
        block: Block,
        q_BTHD: Tensor,
        k_BSKD: Tensor,
        biases: dict[str, Any],
        state: Tensor | None,
    ) -> None:
        """Take a block, its rotated queries and keys, its biases, and the state that they saw."""


@dataclass(frozen=True)
class Where:
    """The places of a forward pass's tokens: what every block needs besides its input."""

    positions_BT: Tensor  # noqa: N815
    consecutive: bool = False  # positions count tokens, so a bias by distance can be looked up
    cache: Cache | None = None
    watch: Watch | None = None
    # What `embed` reads in the first layer of each kind; None: positions.
    ids: tuple[Tensor | None, ...] = (None,)

    @property
    def whole(self) -> bool:
        """Whether these are all tokens so far, at 0 … T - 1, and nobody watches."""
        fresh = self.cache is None or (self.cache.length == 0 and self.cache.padding_B is None)
        return self.consecutive and fresh and self.watch is None

    def without_padding(self, x_BTC: Tensor) -> Tensor:
        """x of these tokens, zero where they are padding."""
        if self.cache is None or (real_BT := self.cache.real(x_BTC.shape[1])) is None:
            return x_BTC
        return x_BTC * real_BT[..., None]
