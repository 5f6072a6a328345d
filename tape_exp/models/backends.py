"""The backends of attention: each averages values by the probabilities of :class:`Scores`.

``explicit`` computes the softmax as its equation has it, and is the reference of the others. These
call kernels of libraries: ``sdpa`` torch's fused one, ``flex`` FlexAttention, ``flash`` flash-attn.
All take values, (B, K, S, D), and return their averages, (B, H, T, D).
:mod:`tape_exp.models.attention` chooses one of them for each call.

Shape suffixes: B batch, T queries, S keys (S >= T: earlier ones come from a cache), H heads, K
heads of keys and values (each serves H / K heads of queries), D head dimension.
"""

import functools
import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.compiler import is_compiling
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from tape_exp.models.biases import Modifier
from tape_exp.models.compilation import prepare_to_compile
from tape_exp.models.scores import Scores, Window, product_by_group, sees

ROWS = 128  # queries whose probabilities a CPU holds at once


def explicit(scores: Scores, v: Tensor) -> Tensor:
    """Compute the explicit softmax in at least fp32, the reference of all others; on a CPU for
    :data:`ROWS` queries at a time, over the keys up to the last one's own.
    """
    T = scores.q.shape[2]
    S = scores.k.shape[2]
    if T <= ROWS or scores.q.device.type != "cpu":
        return product_by_group(scores.probabilities().to(v.dtype), v)
    firsts = range(0, T, ROWS)
    ends = [min(S - T + first + ROWS, S) for first in firsts]
    queries = scores.q.split(ROWS, 2)
    keys = Prefixes.apply(scores.k, ends)
    values = Prefixes.apply(v, ends)
    outputs = []
    for n, first in enumerate(firsts):
        block = scores.block(queries[n], keys[n], first)
        outputs.append(product_by_group(block.probabilities().to(v.dtype), values[n]))
    return torch.cat(outputs, 2)


class Prefixes(torch.autograd.Function):
    """The first tokens of x up to each of some ends, the last of which is its length. Their
    gradients are added where they belong, while that of a slice would be as long as x.
    """

    @staticmethod
    def forward(ctx: Any, x_BHSD: Tensor, ends: list[int]) -> tuple[Tensor, ...]:
        x_BHSD = x_BHSD.contiguous()
        return tuple(x_BHSD[:, :, :end] for end in ends)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        total = gradients[-1].clone()
        for grad in gradients[:-1]:
            total[:, :, : grad.shape[2]] += grad
        return total, None


def sdpa(scores: Scores, v: Tensor) -> Tensor:
    """Call torch's scaled_dot_product_attention, which picks the kernel. A CPU's and flash's want
    values as wide as queries: narrower ones are padded with zeros. A GPU's that take a mask want a
    key for each head of queries.
    """
    on_cpu = scores.q.device.type == "cpu"
    T = scores.q.shape[2]
    S = scores.k.shape[2]
    plain = len(scores.biases) == 0 and scores.window is None and scores.padding is None
    causal_or_all = plain and T in (1, S)
    mask = None if causal_or_all else sdpa_mask(scores)
    if mask is not None and not on_cpu:
        scores, v = with_all_heads(scores, v)
    q = scores.q
    k = scores.k
    width = v.shape[-1]
    D = q.shape[-1]
    if width < D:
        v = F.pad(v, (0, D - width))
    options: dict[str, Any] = {
        "is_causal": mask is None and T == S,
        "scale": 1 / math.sqrt(D),
        "enable_gqa": k.shape[1] < q.shape[1],
    }
    # Autocast would round the mask, which a CPU's kernel takes in fp32.
    keep_mask = on_cpu and mask is not None
    with torch.autocast("cpu", enabled=False) if keep_mask else nullcontext():
        return F.scaled_dot_product_attention(q, k, v, mask, **options)[..., :width]


def sdpa_mask(scores: Scores) -> Tensor:
    """Return which keys a query sees, as booleans, or with biases as what is added to the logits:
    (B, H, T, S), -inf where it does not see one.
    """
    visible = scores.visible()
    if not scores.biases:
        return visible
    q = scores.q
    bias = scores.added()
    if q.device.type != "cpu":
        bias = bias.to(q.dtype)
    S = scores.k.shape[2]
    return torch.where(visible, bias, float("-inf")).expand(*q.shape[:3], S)


def with_all_heads(scores: Scores, v_BKSD: Tensor) -> tuple[Scores, Tensor]:
    """Repeat keys and values for each head of queries."""
    times = scores.q.shape[1] // scores.k.shape[1]
    if times == 1:
        return scores, v_BKSD
    k = scores.k.repeat_interleave(times, 1)
    return replace(scores, k=k), v_BKSD.repeat_interleave(times, 1)


def flash(scores: Scores, v: Tensor) -> Tensor:
    """Call flash-attn, with its slopes and windows; q and k are padded to the width of values."""
    from flash_attn import flash_attn_func

    scale = 1 / math.sqrt(scores.q.shape[-1])
    slopes = scores.slopes
    if slopes is not None:  # the kernel reads one for each head
        slopes = slopes.float().expand(scores.q.shape[1]).contiguous()
    wider = v.shape[-1] - scores.q.shape[-1]
    outputs = flash_attn_func(
        F.pad(scores.q, (0, wider)).transpose(1, 2),
        F.pad(scores.k, (0, wider)).transpose(1, 2),
        v.transpose(1, 2),
        softmax_scale=scale,
        causal=True,
        window_size=(-1 if scores.window is None else scores.window.size - 1, -1),
        alibi_slopes=slopes,
    )
    return outputs.transpose(1, 2)


def flex(scores: Scores, v: Tensor) -> Tensor:
    """Call FlexAttention: a score_mod adds the biases, and blocks that no query sees are skipped.

    It is compiled for every size that it meets, so lengths are padded to a few: what is added lies
    behind all real keys, where no real query looks, and the kernel wants multiples of 128.
    """
    T = scores.q.shape[2]
    S = scores.k.shape[2]
    extra = bucket(T) - T
    q = F.pad(scores.q, (0, 0, 0, extra))
    k = F.pad(scores.k, (0, 0, 0, extra))
    v = F.pad(v, (0, 0, 0, extra))
    modifier = None
    if scores.biases or scores.padding is not None:
        modifier = score_mod(scores, extra)
    options: dict[str, Any] = {
        "score_mod": modifier,
        "block_mask": seen_blocks(scores, T + extra, S + extra),
        "scale": 1 / math.sqrt(q.shape[-1]),
        "enable_gqa": k.shape[1] < q.shape[1],
        # A tile of each bias is held for each stage of the kernel's pipeline: with the usual three
        # stages, more than the shared memory of a GPU.
        "kernel_options": {"num_stages": 2} if modifier else None,
    }
    return flex_kernel(q.device)(q, k, v, **options)[:, :, :T]


def seen_blocks(scores: Scores, T: int, S: int) -> BlockMask:
    """Return the blocks of T queries and S keys in which one looks at another; a compiled model
    makes them in its own graph.
    """
    # With padding a window's sinks count from each row's beginning: the score_mod hides them.
    window = scores.window if scores.padding is None else None
    make = causal_blocks.__wrapped__ if is_compiling() else causal_blocks
    return make(T, S, str(scores.q.device), window)


def flex_kernel(device: torch.device) -> Callable[..., Any]:
    """Return FlexAttention, for a compiled model, which makes it part of its own graph; else, on a
    GPU, compiled by itself, since eagerly it would hold all scores.
    """
    if is_compiling() or device.type != "cuda":
        return flex_attention
    return compiled_flex()


def score_mod(scores: Scores, extra: int) -> Callable[..., Tensor]:
    """Return what adds the biases to a score and hides padding; queries and keys have ``extra``
    tokens at the end.
    """
    offset = scores.offset
    padding = scores.padding
    window = scores.window
    added: list[Modifier] = scores.modifiers(extra)

    def modified(score: Tensor, b: Tensor, h: Tensor, t: Tensor, s: Tensor) -> Tensor:
        for add in added:
            score = score + add(b, h, t, s)
        if padding is None:
            return score
        seen = sees(t + offset - s, s - padding[b], window, True)
        return torch.where(seen, score, float("-inf"))

    return modified


def bucket(length: int) -> int:
    """Return the length that a row is padded to: a multiple of 128, beyond 1024 of an eighth of the
    power of two above, so that there are few lengths and at most a quarter is added.

    >>> bucket(100), bucket(1000), bucket(1500), bucket(3000)
    (128, 1024, 1536, 3072)
    """
    power_of_two = 1 << (length - 1).bit_length()
    unit = max(128, power_of_two // 8)
    return math.ceil(length / unit) * unit


@functools.cache
def compiled_flex() -> Any:
    """Return FlexAttention as one kernel."""
    prepare_to_compile()
    return torch.compile(flex_attention, dynamic=False, fullgraph=True)


@functools.lru_cache(maxsize=32)
def causal_blocks(T: int, S: int, device: str, window: Window | None = None) -> BlockMask:
    """Return the blocks of (T, S) in which a query looks at a key."""

    def seen(b: Tensor, h: Tensor, t: Tensor, s: Tensor) -> Tensor:
        return sees(t + (S - T) - s, s, window, False)

    with torch.inference_mode(False):  # what evaluation makes serves training too
        return create_block_mask(seen, None, None, T, S, device=device)


BACKENDS: dict[str, Callable[..., Any]]
BACKENDS = {"explicit": explicit, "sdpa": sdpa, "flex": flex, "flash": flash}
