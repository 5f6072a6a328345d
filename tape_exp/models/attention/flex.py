"""The backend ``flex``: FlexAttention, compiled for each of few sizes."""

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tape_exp.models.attention.inputs import Inputs
from tape_exp.models.attention.window import Window
from tape_exp.models.kernels import causal
from tape_exp.settings.errors import ConfigError

SIZES = 64  # that it is compiled for: batches, buckets of lengths, kinds of bias


def compute(inputs: Inputs) -> tuple[Tensor, Tensor | None]:
    """FlexAttention: a score_mod adds the bias; blocks above the diagonal are skipped.

    It is compiled for every size that it meets. So lengths are padded to a few: what is added is
    behind all real keys, where no real query looks.
    """
    length, (k, v) = inputs.q.shape[2], inputs.per_query_head()
    offset, more = k.shape[2] - length, bucket(length) - length
    q, k, v = (F.pad(x, (0, 0, 0, more)) for x in (inputs.q, k, v))
    bias, table = inputs.bias, inputs.by_distance
    T, S = q.shape[2], k.shape[2]
    if table is not None:
        table = F.pad(table[:, : S - more], (0, more))
    if bias is not None:
        bias = F.pad(bias.expand(-1, -1, T - more, S - more), (0, more, 0, more))
        bias = (
            bias.expand(-1, q.shape[1], T, S)
            if bias.shape[0] == 1
            else bias.expand(q.shape[0], q.shape[1], T, S)
        )
    one_batch = bias is not None and bias.shape[0] == 1
    high = low = own = None  # torch.compile reads what score_mod closes over, used or not
    if inputs.key_bias is not None:
        keys = F.pad(inputs.key_bias.expand(len(q), -1, -1), (0, more))
        high, low = causal.in_two(keys)
        own = high[:, :, offset:].detach()

    def score_mod(score: Tensor, b: Tensor, h: Tensor, t: Tensor, s: Tensor) -> Tensor:
        if table is not None:
            score = score + table[h, (t + offset - s).clamp(min=0)]
        if bias is not None:
            score = score + (bias[0, h, t, s] if one_batch else bias[b, h, t, s])
        if high is not None and low is not None and own is not None:
            score = score + ((high[b, h, s] - own[b, h, t]) + low[b, h, s])
        return score

    out = function(q.device.type)(
        q,
        k,
        v,
        score_mod=score_mod if inputs.biased else None,
        block_mask=causal_blocks(T, S, str(q.device), inputs.window),
        scale=1 / math.sqrt(q.shape[-1]),
    )
    return inputs.split(out[:, :, :length])


def refuses(inputs: Inputs) -> str | None:
    """Why it cannot serve this call; None: it can."""
    biases = (inputs.bias, inputs.by_distance, inputs.key_bias)
    tensors = (inputs.q, inputs.k, inputs.v, inputs.carried, *biases)
    if (
        inputs.q.device.type == "cpu"
        and torch.is_grad_enabled()
        and any(x is not None and x.requires_grad for x in tensors)
    ):
        return "FlexAttention has no backward on a CPU"
    return None


def bucket(length: int) -> int:
    """The length that a row is padded to: a multiple of 128, beyond 1024 of an eighth of the power
    of two above, so that at most a quarter is added and there are few lengths.
    """
    unit = max(128, (1 << (length - 1).bit_length()) // 8)
    return -(-length // unit) * unit


@functools.cache
def function(device: str) -> Callable[..., Any]:
    """Compiled on a GPU, where eager FlexAttention would hold all scores: one graph or an error."""
    from torch.nn.attention.flex_attention import flex_attention

    if device != "cuda":
        return flex_attention
    import torch._dynamo

    # By default a ninth size would be computed eagerly, with no word about it.
    limit = max(torch._dynamo.config.recompile_limit, SIZES)
    torch._dynamo.config.recompile_limit = limit
    compiled = torch.compile(flex_attention, dynamic=False, fullgraph=True)

    def or_refuse(*arguments: Any, **options: Any) -> Any:
        try:
            return compiled(*arguments, **options)
        except torch._dynamo.exc.FailOnRecompileLimitHit as error:
            raise ConfigError(
                f"trainer.attention=flex has met more than {limit} different sizes, and would hold "
                "all scores for another; trainer.attention=sdpa takes every size."
            ) from error

    return or_refuse


@functools.lru_cache(maxsize=32)
def causal_blocks(T: int, S: int, device: str, window: Window | None = None) -> Any:
    """The blocks of (T, S) in which query t looks at keys up to t + S - T, of a window only at
    those that it shows: others are skipped. What evaluation made serves training too.
    """
    from torch.nn.attention.flex_attention import create_block_mask

    def seen(b: Tensor, h: Tensor, t: Tensor, s: Tensor) -> Tensor:
        distance = t + S - T - s
        return distance >= 0 if window is None else window.shows(distance, s)

    with torch.inference_mode(False):
        return create_block_mask(seen, None, None, T, S, device=device)
