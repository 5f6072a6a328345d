"""A layer of the decoder: attention and SwiGLU, with the encoding's methods around them."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import skip_init

from tape_exp.models.attention import attend
from tape_exp.models.places import Places
from tape_exp.models.positions.base import Biases, LayerOutputs, PositionEncoding, for_heads
from tape_exp.models.scores import Bias, BiasError, Scores, Window, full_precision, precise
from tape_exp.settings.schema import Arch, AttentionConfig

if TYPE_CHECKING:
    from tape_exp.models.generation import Cache

# Called by every block before it attends, with its scores and the state that turned queries and
# keys.
Watch = Callable[["Block", Scores, Tensor | None], None]


@dataclass(frozen=True)
class ForwardContext:
    """What every block of a forward pass needs besides its input."""

    places: Places  # of the tokens that are computed
    cache: "Cache | None" = None  # keys and values of earlier tokens
    watch: Watch | None = None


class Block(nn.Module):
    """Attention and SwiGLU, each after an RMSNorm, with a residual and the encoding's part; layers
    of the same ``kind`` hand on a state.
    """

    def __init__(
        self,
        arch: Arch,
        position: PositionEncoding,
        backend: str,
        layer: int,
        attention: AttentionConfig,
        kind: int,
    ) -> None:
        super().__init__()
        C = arch.width
        queries = arch.heads * arch.head_dim
        keys = arch.key_heads * arch.head_dim
        norm = partial(nn.RMSNorm, eps=arch.norm_eps)
        self.layer = layer
        self.kind = kind
        self.backend = backend
        self.head_dim = arch.head_dim
        self.is_first_of_kind = False
        self.updates_state = type(position).update is not PositionEncoding.update
        window = attention.window
        self.window = None if window is None else Window(window, attention.sinks)
        # Called instead of `attend`, with the same arguments (LongLoRA's sparse attention).
        self.attend: Callable[..., tuple[Tensor, Tensor | None]] | None = None
        self.attention_norm = norm(C)
        self.q = matrix(C, queries, arch.qkv_bias)
        self.k = matrix(C, keys, arch.qkv_bias)
        self.v = matrix(C, keys, arch.qkv_bias)
        self.o = matrix(queries, C)
        self.mlp_norm = norm(C)
        self.gate = matrix(C, arch.ffn)
        self.up = matrix(C, arch.ffn)
        self.down = matrix(arch.ffn, C)
        self.q_norm = norm(arch.head_dim) if attention.qk_norm else None
        self.k_norm = norm(arch.head_dim) if attention.qk_norm else None
        # Its factor is 1 on average over the rows of training: ln n over n = 1 … length.
        length = max(arch.train_length, 2)
        s = torch.full((arch.heads,), length / math.lgamma(length + 1)) if attention.ssmax else None
        self.ssmax = None if s is None else nn.Parameter(s)
        self.temperature = nn.Parameter(torch.ones(arch.heads)) if attention.temperature else None
        self.position = position

    def forward(
        self, x_BTC: Tensor, state: Tensor | None, context: ForwardContext
    ) -> tuple[Tensor, Tensor | None]:
        """The block's output and the position state for the next one.

        Of the encoding's methods it calls ``embed``, in the first layer; ``rotate``, ``carry`` and
        ``bias``, in :meth:`_attention_inputs`; and ``update``, where a next layer reads the state.
        """
        if self.is_first_of_kind:
            # Here, not before the first block: where parameters are sharded, a block's own are
            # whole only in its own pass.
            x_BTC = self._embed(x_BTC, context.places)
        attention, averaged, seen_BTC = self._attention(x_BTC, state, context)
        x_BTC = x_BTC + attention
        if not self.updates_state:
            del attention, seen_BTC  # nobody reads them, and the MLP needs memory
            return x_BTC + self._mlp(x_BTC), state
        mlp = self._mlp(x_BTC)
        with full_precision(x_BTC):
            averaged = None if averaged is None else precise(averaged)
            outputs = LayerOutputs(seen_BTC, precise(attention), precise(mlp))
            state = self.position.update(state, averaged, outputs, context.places)
        return x_BTC + mlp, state

    def _embed(self, x_BTC: Tensor, places: Places) -> Tensor:
        with full_precision(x_BTC):
            return self.position.embed(precise(x_BTC), places).to(x_BTC.dtype)

    def _attention(
        self, x_BTC: Tensor, state: Tensor | None, context: ForwardContext
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        """What attention adds to the residual stream, what it averaged of what the encoding
        carries, and x as the encoding sees it.
        """
        normed_BTC = self.attention_norm(x_BTC)
        seen_BTC = precise(normed_BTC)
        if context.places.padding is not None:
            seen_BTC = seen_BTC * (context.places.tokens >= 0)[..., None]
        scores, v, carried = self._attention_inputs(normed_BTC, seen_BTC, state, context)
        if context.watch is not None:
            context.watch(self, scores, state)
        values, averaged = (self.attend or attend)(scores, v, carried, self.backend)
        return self.o(values.flatten(2)), averaged, seen_BTC

    def _attention_inputs(
        self, normed_BTC: Tensor, seen_BTC: Tensor, state: Tensor | None, context: ForwardContext
    ) -> tuple[Scores, Tensor, Tensor | None]:
        """What :func:`attend` takes: scores, values, and what is carried."""
        position = self.position
        places = context.places
        q, k, v = self._queries_keys_values(normed_BTC)
        with full_precision(normed_BTC):
            q, k = self._rotated(q, k, seen_BTC, state, places)
            carried = position.carry(state, places) if self.updates_state else None
        if context.cache is not None:
            k, v, carried = self._with_cached(context.cache, k, v, carried)
        with full_precision(normed_BTC):
            bias = position.bias(precise(q), precise(k), seen_BTC, state, places)
            scores = self._scores(q, k, bias, places)
        return scores, for_heads(v, k.shape[2]), carried

    def _rotated(
        self, q: Tensor, k: Tensor, seen_BTC: Tensor, state: Tensor | None, places: Places
    ) -> tuple[Tensor, Tensor]:
        """Queries and keys as ``rotate`` turns them, in the dtype that they have."""
        keys = k if self.position.grouped_keys else for_heads(k, self.position.arch.heads)
        turned_q, turned_k = self.position.rotate(
            precise(q), precise(keys), seen_BTC, state, places
        )
        return turned_q.to(q.dtype), turned_k.to(q.dtype)

    def _mlp(self, x_BTC: Tensor) -> Tensor:
        normed = cast_for_matmul(self.mlp_norm(x_BTC))
        return self.down(swiglu(self.gate(normed), self.up(normed)))

    def _queries_keys_values(self, normed_BTC: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(B, T, H, D), and twice (B, T, K, D)."""
        normed_BTC = cast_for_matmul(normed_BTC)
        heads = (-1, self.head_dim)
        q = self.q(normed_BTC).unflatten(-1, heads)
        k = self.k(normed_BTC).unflatten(-1, heads)
        v = self.v(normed_BTC).unflatten(-1, heads)
        if self.q_norm is not None and self.k_norm is not None:
            q = normed_heads(self.q_norm, q)
            k = normed_heads(self.k_norm, k)
        return q, k, v

    def _with_cached(
        self, cache: "Cache", k: Tensor, v: Tensor, carried: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Keys, values and what is carried, of all tokens so far."""
        new = {"k": k, "v": v}
        if carried is not None:
            new["carried"] = carried
        cached = cache.extend(self.layer, new)
        return cached["k"], cached["v"], cached.get("carried")

    def _scores(self, q_BTHD: Tensor, k_BSKD: Tensor, bias: Biases, places: Places) -> Scores:
        """The scores of these queries and keys and of what the encoding's ``bias`` gave."""
        biases: list[Bias] = []
        if isinstance(bias, list):
            biases = bias
        elif bias is not None:
            biases = [bias]
        for entry in biases:
            if not isinstance(entry, Bias):
                raise BiasError(
                    f"{type(self.position).__name__}.bias gave a {type(entry).__name__}; it gives "
                    "ByDistance, ByKey, ByPosition or Dense, a list of these, or None."
                )
        scores = Scores(
            q_BTHD.transpose(1, 2),
            k_BSKD.transpose(1, 2),
            tuple(biases),
            places.key_positions,
            places.consecutive,
            places.padding,
            self.window,
        )
        if self.temperature is not None:
            scores = scores.times(precise(self.temperature)[:, None])
        if self.ssmax is not None:
            scores = scores.times(self._ssmax_factor(scores, precise(self.ssmax)))
        return scores

    def _ssmax_factor(self, scores: Scores, s_H: Tensor) -> Tensor:
        """s · ln n for a query that sees n keys, (1 or B, H, T); of a single one any factor makes
        1.
        """
        S = scores.k.shape[2]
        up_to_itself = torch.arange(S, device=scores.q.device)[None, scores.offset :] + 1
        if scores.padding is not None:
            up_to_itself = (up_to_itself - scores.padding[:, None]).clamp(min=1)
        n = up_to_itself if self.window is None else self.window.count(up_to_itself)
        return s_H[:, None] * n[:, None].to(s_H.dtype).log()


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) · up; in place where no gradient will ask for them."""
    if torch.is_grad_enabled():
        return F.silu(gate) * up
    return F.silu(gate, inplace=True).mul_(up)


def cast_for_matmul(x: Tensor) -> Tensor:
    """x in the dtype in which autocast multiplies, so that the matrices that read it share one
    copy; x itself without autocast.
    """
    device = x.device.type
    if device == "meta" or x.dtype == torch.float64 or not torch.is_autocast_enabled(device):
        return x
    return x.to(torch.get_autocast_dtype(device))


def matrix(inputs: int, outputs: int, bias: bool = False) -> nn.Linear:
    """A linear map; the decoder's ``init_weights`` or a checkpoint gives its weights."""
    return skip_init(nn.Linear, inputs, outputs, bias=bias, device=torch.get_default_device())


def normed_heads(norm: nn.RMSNorm, x_BTHD: Tensor) -> Tensor:
    """The norm over the channels of each head, computed in at least fp32; returned in x's dtype."""
    wide = precise(x_BTHD)
    weight = norm.weight.to(wide.dtype)
    return F.rms_norm(wide, norm.normalized_shape, weight, norm.eps).to(x_BTHD.dtype)
