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
        """The block's output and the position state for the next one."""
        position = self.position
        places = context.places
        if self.is_first_of_kind:
            # Here, not before the first block: where parameters are sharded, a block's own are
            # whole only in its own pass.
            with full_precision(x_BTC):
                x_BTC = position.embed(precise(x_BTC), places).to(x_BTC.dtype)
        attention, averaged, x = self._attention(x_BTC, state, context)
        x_BTC = x_BTC + attention
        if not self.updates_state:
            del attention, x  # nobody reads them, and the MLP needs memory
            return x_BTC + self._mlp(x_BTC), state
        mlp = self._mlp(x_BTC)
        with full_precision(x_BTC):
            averaged = None if averaged is None else precise(averaged)
            made = LayerOutputs(x, precise(attention), precise(mlp))
            state = position.update(state, averaged, made, places)
        return x_BTC + mlp, state

    def _attention(
        self, x_BTC: Tensor, state: Tensor | None, context: ForwardContext
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        """What attention adds to the residual stream, what it averaged of what the encoding
        carries, and the x that queries and keys are made of.
        """
        normed = self.attention_norm(x_BTC)
        x, scores, v, carried = self._attention_inputs(normed, state, context)
        if context.watch is not None:
            context.watch(self, scores, state)
        values, averaged = (self.attend or attend)(scores, v, carried, self.backend)
        return self.o(values.flatten(2)), averaged, x

    def _mlp(self, x_BTC: Tensor) -> Tensor:
        normed = cast_for_matmul(self.mlp_norm(x_BTC))
        return self.down(swiglu(self.gate(normed), self.up(normed)))

    def _attention_inputs(
        self, normed_BTC: Tensor, state: Tensor | None, context: ForwardContext
    ) -> tuple[Tensor, Scores, Tensor, Tensor | None]:
        """x as encodings read it; what :func:`attend` takes: scores, values, what is carried."""
        position = self.position
        places = context.places
        H = self.position.arch.heads
        read = cast_for_matmul(normed_BTC)
        q, k, v = (f(read).unflatten(-1, (-1, self.head_dim)) for f in (self.q, self.k, self.v))
        if self.q_norm is not None and self.k_norm is not None:
            q = normed_heads(self.q_norm, q)
            k = normed_heads(self.k_norm, k)
        x_BTC = precise(normed_BTC)
        if places.padding is not None:
            x_BTC = x_BTC * (places.tokens >= 0)[..., None]
        with full_precision(normed_BTC):
            keys = k if position.grouped_keys else for_heads(k, H)
            turned = position.rotate(precise(q), precise(keys), x_BTC, state, places)
            q, k = (y.to(q.dtype) for y in turned)
            carried = position.carry(state, places) if self.updates_state else None
        if context.cache is not None:
            new = {"k": k, "v": v} | ({} if carried is None else {"carried": carried})
            cached = context.cache.extend(self.layer, new)
            k = cached["k"]
            v = cached["v"]
            carried = cached.get("carried")
        with full_precision(normed_BTC):
            found = position.bias(precise(q), precise(k), x_BTC, state, places)
            scores = self._scores(q, k, found, places)
        return x_BTC, scores, for_heads(v, k.shape[2]), carried

    def _scores(self, q_BTHD: Tensor, k_BSKD: Tensor, found: Biases, places: Places) -> Scores:
        """The scores of these queries and keys and of what ``bias`` found."""
        biases = found if isinstance(found, list) else [] if found is None else [found]
        if wrong := [type(bias).__name__ for bias in biases if not isinstance(bias, Bias)]:
            raise BiasError(
                f"{type(self.position).__name__}.bias gave a {wrong[0]}; it gives ByDistance, "
                "ByKey, ByPosition or Dense, a list of these, or None."
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
        if self.ssmax is None:
            return scores
        # s · ln n for a query that sees n keys; of a single one any factor makes 1.
        T = scores.q.shape[2]
        S = scores.k.shape[2]
        before = torch.arange(S, device=q_BTHD.device)[None, S - T :] + 1
        if places.padding is not None:
            before = (before - places.padding[:, None]).clamp(min=1)
        seen = before if self.window is None else self.window.count(before)
        s = precise(self.ssmax)
        return scores.times(s[:, None] * seen[:, None].to(s.dtype).log())


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
