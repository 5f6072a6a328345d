"""A layer of the decoder: attention and SwiGLU, with the encoding's methods around them.

Shape suffixes: B batch, T tokens, S keys, H heads, K heads of keys and values, D head dimension, C
width, E width of what is carried.
"""

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
from tape_exp.models.biases import Bias, BiasError
from tape_exp.models.places import Places
from tape_exp.models.positions.base import LayerOutputs, PositionEncoding, for_heads
from tape_exp.models.precision import cast_for_matmul, full_precision, precise
from tape_exp.models.scores import Scores, Window
from tape_exp.settings.schema import Arch, AttentionConfig

if TYPE_CHECKING:
    from tape_exp.models.generation import Cache

# Called by every block before it attends, with its scores and the state that turned queries and
# keys.
Watch = Callable[["Block", Scores, Tensor | None], None]


@dataclass(frozen=True)
class ForwardContext:
    """What every block of a forward pass is given besides its input."""

    places: Places  # of the tokens that are computed
    cache: "Cache | None" = None  # keys and values of earlier tokens
    watch: Watch | None = None


@dataclass(frozen=True)
class Attended:
    """What attention gives, in one block."""

    added: Tensor  # to the residual stream, (B, T, C)
    averaged: Tensor | None  # of what the encoding carries, (B, T, H, E)
    seen: Tensor  # x as the encoding sees it, (B, T, C): normed, in at least fp32, 0 for padding


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
        """Return the block's output and the position state for the next one.

        The methods of the encoding are called in this order: ``embed``, in the first layer;
        ``rotate``, ``carry`` and ``bias``, in :meth:`_attention`; and ``update``, where a next
        layer reads the state.
        """
        if self.is_first_of_kind:
            # Here, not before the first block: where parameters are sharded, a block's own are
            # whole only in its own pass.
            x_BTC = self._embed(x_BTC, context.places)
        attended = self._attention(x_BTC, state, context)
        x_BTC = x_BTC + attended.added
        if not self.updates_state:
            del attended  # nobody reads it, and the MLP needs memory
            return x_BTC + self._mlp(x_BTC), state
        mlp_BTC = self._mlp(x_BTC)
        state = self._update(state, attended, mlp_BTC, context.places)
        return x_BTC + mlp_BTC, state

    def _attention(self, x_BTC: Tensor, state: Tensor | None, context: ForwardContext) -> Attended:
        """Compute attention, with what the encoding does to queries, keys and logits."""
        places = context.places
        normed_BTC = self.attention_norm(x_BTC)
        seen_BTC = self._seen(normed_BTC, places)
        q, k, v = self._queries_keys_values(normed_BTC)
        q, k = self._rotate(q, k, seen_BTC, state, places)
        carried = self._carry(state, places)
        if context.cache is not None:
            k, v, carried = self._with_cached(context.cache, k, v, carried)
        biases = self._bias(q, k, seen_BTC, state, places)
        scores = self._scores(q, k, biases, places)
        if context.watch is not None:
            context.watch(self, scores, state)
        compute = self.attend or attend
        values, averaged = compute(scores, for_heads(v, k.shape[2]), carried, self.backend)
        return Attended(self.o(values.flatten(2)), averaged, seen_BTC)

    # The methods of the encoding, each called in full precision.

    def _embed(self, x_BTC: Tensor, places: Places) -> Tensor:
        with full_precision(x_BTC.device):
            return self.position.embed(precise(x_BTC), places).to(x_BTC.dtype)

    def _rotate(
        self, q: Tensor, k: Tensor, seen_BTC: Tensor, state: Tensor | None, places: Places
    ) -> tuple[Tensor, Tensor]:
        """Return queries and keys as ``rotate`` turns them, in the dtype that they have."""
        keys = k if self.position.grouped_keys else for_heads(k, self.position.arch.heads)
        with full_precision(q.device):
            turned_q, turned_k = self.position.rotate(
                precise(q), precise(keys), seen_BTC, state, places
            )
        return turned_q.to(q.dtype), turned_k.to(q.dtype)

    def _carry(self, state: Tensor | None, places: Places) -> Tensor | None:
        if not self.updates_state:
            return None
        with full_precision(places.key_positions.device):
            return self.position.carry(state, places)

    def _bias(
        self, q: Tensor, k: Tensor, seen_BTC: Tensor, state: Tensor | None, places: Places
    ) -> tuple[Bias, ...]:
        """Return what ``bias`` gives as a tuple; raises :class:`BiasError` where it is no bias."""
        with full_precision(q.device):
            bias = self.position.bias(precise(q), precise(k), seen_BTC, state, places)
        if bias is None:
            return ()
        biases = tuple(bias) if isinstance(bias, list) else (bias,)
        for entry in biases:
            if not isinstance(entry, Bias):
                raise BiasError(
                    f"{type(self.position).__name__}.bias gave a {type(entry).__name__}; it gives "
                    "ByDistance, ByKey, ByPosition or Dense, a list of these, or None."
                )
        return biases

    def _update(
        self, state: Tensor | None, attended: Attended, mlp_BTC: Tensor, places: Places
    ) -> Tensor | None:
        """Return the next layer's state."""
        with full_precision(mlp_BTC.device):
            averaged = None if attended.averaged is None else precise(attended.averaged)
            outputs = LayerOutputs(attended.seen, precise(attended.added), precise(mlp_BTC))
            updated: Tensor | None = self.position.update(state, averaged, outputs, places)
        return updated

    # What the block computes itself.

    def _seen(self, normed_BTC: Tensor, places: Places) -> Tensor:
        """Return x as the encoding sees it: in at least fp32, and 0 for padding."""
        seen_BTC = precise(normed_BTC)
        if places.padding is None:
            return seen_BTC
        return seen_BTC * (places.tokens >= 0)[..., None]

    def _mlp(self, x_BTC: Tensor) -> Tensor:
        normed_BTC = cast_for_matmul(self.mlp_norm(x_BTC))
        return self.down(swiglu(self.gate(normed_BTC), self.up(normed_BTC)))

    def _queries_keys_values(self, normed_BTC: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, (B, T, H, D), and keys and values, both (B, T, K, D)."""
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
        """Return keys, values and what is carried, of all tokens so far."""
        new = {"k": k, "v": v}
        if carried is not None:
            new["carried"] = carried
        cached = cache.extend(self.layer, new)
        return cached["k"], cached["v"], cached.get("carried")

    def _scores(
        self, q_BTHD: Tensor, k_BSKD: Tensor, biases: tuple[Bias, ...], places: Places
    ) -> Scores:
        """Return what the probabilities of this layer are made of."""
        scores = Scores(
            q_BTHD.transpose(1, 2),
            k_BSKD.transpose(1, 2),
            biases,
            places.key_positions,
            places.consecutive,
            places.padding,
            self.window,
        )
        with full_precision(q_BTHD.device):
            if self.temperature is not None:
                scores = scores.times(precise(self.temperature)[:, None])
            if self.ssmax is not None:
                scores = scores.times(self._ssmax_factor(scores, precise(self.ssmax)))
        return scores

    def _ssmax_factor(self, scores: Scores, s_H: Tensor) -> Tensor:
        """Return s · ln n for a query that sees n keys, (1 or B, H, T), as in Scalable-Softmax
        (Nakanishi, 2025). A single key has the probability 1 whatever the factor.
        """
        S = scores.k.shape[2]
        up_to_itself = torch.arange(S, device=scores.q.device)[None, scores.offset :] + 1
        if scores.padding is not None:
            up_to_itself = (up_to_itself - scores.padding[:, None]).clamp(min=1)
        n = up_to_itself if self.window is None else self.window.count(up_to_itself)
        return s_H[:, None] * n[:, None].to(s_H.dtype).log()


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """Return silu(gate) · up, computed in place where no gradient will ask for them."""
    if torch.is_grad_enabled():
        return F.silu(gate) * up
    return F.silu(gate, inplace=True).mul_(up)


def matrix(inputs: int, outputs: int, bias: bool = False) -> nn.Linear:
    """Return a linear map without weights, which ``Decoder.init_weights`` or a checkpoint gives."""
    return skip_init(nn.Linear, inputs, outputs, bias=bias, device=torch.get_default_device())


def normed_heads(norm: nn.RMSNorm, x_BTHD: Tensor) -> Tensor:
    """Norm the channels of each head, in at least fp32; the result is of x's dtype."""
    precise_BTHD = precise(x_BTHD)
    weight_D = norm.weight.to(precise_BTHD.dtype)
    normed_BTHD = F.rms_norm(precise_BTHD, norm.normalized_shape, weight_D, norm.eps)
    return normed_BTHD.to(x_BTHD.dtype)
