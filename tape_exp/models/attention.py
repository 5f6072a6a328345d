"""Causal softmax attention, which also averages what positions carry.

:func:`attend` computes it by one of :data:`BACKENDS`; ``explicit`` is the reference of the others.

Shape suffixes: B batch, T queries, S keys (S >= T: earlier ones come from a cache), H heads, K
heads of keys and values (each serves H / K heads of queries), D head dimension, C width of what is
carried.
"""

import functools
import importlib.util
import logging
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

from tape_exp.machine.seeding import RowSampler
from tape_exp.models.scores import Modifier, Scores, Window, product_by_group, sees
from tape_exp.settings.errors import ConfigError

log = logging.getLogger("tape_exp")

ROWS = 128  # queries whose probabilities a CPU holds at once
CPU_SDPA_FROM = 64  # keys from which torch's fused kernel pays off on a CPU
# On an H200, 16 rows of 2048 tokens and 12 heads: 10.7 ms with a bias in memory, forward and
# backward, and 40 ms with FlexAttention, which adds up the gradient of a table atomically.
DENSE_UP_TO = 4096


def attend(
    scores: Scores, v_BSKD: Tensor, carried_BSHC: Tensor | None = None, backend: str = "auto"
) -> tuple[Tensor, Tensor | None]:
    """Compute causal attention, eq. (f_attn) and eq. (g_attn) of the TAPE paper in one call.

    Args:
        v_BSKD: values, of as many heads as keys.
        carried_BSHC: what is averaged besides, with 1 for B or H where all agree.
        backend: one of :data:`BACKENDS`, or ``auto``: see :func:`choose`.

    Returns:
        softmax(logits) v, (B, T, H, D), and the same probabilities times what is carried, (B, T, H,
        C), or None.
    """
    v_BKSD = v_BSKD.transpose(1, 2)
    name = backend
    if backend == "auto":
        name = choose(scores, v_BKSD, carried_BSHC)
        log_once(f"{described(scores, carried_BSHC)}: {name}")
    if carried_BSHC is None:
        require_able(backend, scores, v_BKSD)
        return BACKENDS[name](scores, v_BKSD).transpose(1, 2), None
    carried_BHSC = carried_BSHC.transpose(1, 2).to(v_BKSD.dtype)
    if name == "explicit" and scores.q.shape[2] <= ROWS:
        return average_apart(scores, v_BKSD, carried_BHSC)
    scores, v_BHSD = with_all_heads(scores, v_BKSD)
    both_BHSE = torch.cat([v_BHSD, carried_BHSC.expand(*v_BHSD.shape[:3], -1)], -1)
    require_able(backend, scores, both_BHSE)
    averages_BTHE = BACKENDS[name](scores, both_BHSE).transpose(1, 2)
    D = v_BHSD.shape[-1]
    return averages_BTHE[..., :D], averages_BTHE[..., D:]


def average_apart(scores: Scores, v_BKSD: Tensor, carried_BHSC: Tensor) -> tuple[Tensor, Tensor]:
    """Average values and what is carried one after the other, so that a state that all share is not
    copied and makes no gradient.
    """
    p_BHTS = scores.probabilities().to(v_BKSD.dtype)
    shared_by_all = carried_BHSC.shape[:2] == (1, 1)
    carried = carried_BHSC[0, 0] if shared_by_all else carried_BHSC
    return product_by_group(p_BHTS, v_BKSD).transpose(1, 2), (p_BHTS @ carried).transpose(1, 2)


def choose(scores: Scores, v: Tensor, carried: Tensor | None) -> str:
    """Return the backend that ``auto`` is: the fastest that suits a call and does not refuse it."""
    on_cpu = scores.q.device.type == "cpu"
    suited = suited_on_cpu(scores, carried) if on_cpu else suited_on_gpu(scores, carried)
    for backend in suited:
        if refusal(backend, scores, v) is None:
            return backend
    return "explicit"


def suited_on_cpu(scores: Scores, carried: Tensor | None) -> list[str]:
    """Return torch's fused kernel; the explicit softmax where there are few keys, where a state is
    carried, and where a bias other than ALiBi's needs gradients.
    """
    few_keys = scores.k.shape[2] < CPU_SDPA_FROM
    bias_learns = torch.is_grad_enabled() and len(scores.biases) > 0 and scores.slopes is None
    if few_keys or carried is not None or bias_learns:
        return ["explicit"]
    return ["sdpa"]


def suited_on_gpu(scores: Scores, carried: Tensor | None) -> list[str]:
    """Return torch's fused kernels in decoding, in full precision, and where there is nothing to
    add, or a bias that is cheap in memory: one of a table of distances, up to :data:`DENSE_UP_TO`
    tokens. Else flash-attn for ALiBi's slopes, and FlexAttention for other biases and windows.
    """
    T = scores.q.shape[2]
    S = scores.k.shape[2]
    decoding = S > T
    in_16_bits = scores.q.element_size() <= 2
    if decoding or not in_16_bits:
        return ["sdpa"]
    if scores.slopes is not None and carried is None:
        return ["flash", "flex"]
    of_tables = all(bias.slopes is None and not bias.from_tokens for bias in scores.biases)
    cheap_in_memory = len(scores.biases) == 0 or (of_tables and T <= DENSE_UP_TO)
    if cheap_in_memory and scores.window is None:
        return ["sdpa"]
    return ["flex"]


def described(scores: Scores, carried: Tensor | None) -> str:
    """Return what the log of a run calls a call of attention."""
    kind = "plain"
    if carried is not None:
        kind = "carried state"
    elif len(scores.biases) > 0:
        kind = "bias"
    return f"attention ({kind}, {scores.q.device.type}, {scores.q.dtype})"


def require_able(backend: str, scores: Scores, v: Tensor) -> None:
    """Raise :class:`ConfigError` where the backend that a config names cannot serve this call."""
    reason = None if backend == "auto" else refusal(backend, scores, v)
    if reason is not None:
        able = [name for name in BACKENDS if refusal(name, scores, v) is None]
        raise ConfigError(f"trainer.attention={backend}: {reason}. These can: {', '.join(able)}.")


def refusal(backend: str, scores: Scores, v: Tensor) -> str | None:
    """Return why a backend cannot serve this call; None: it can."""
    q = scores.q
    grad = torch.is_grad_enabled()
    if backend == "flex":
        learns = grad and any(x.requires_grad for x in (q, scores.k, v))
        if q.device.type == "cpu" and learns:
            return "FlexAttention has no backward pass on a CPU"
    if backend == "sdpa":
        from_tokens = any(bias.from_tokens for bias in scores.biases)
        if on_gpu_in_16_bits(q) and grad and from_tokens:
            return "its kernels round a bias to 16 bits, which loses the gradient of what made it"
    if backend == "flash":
        return flash_refusal(scores, v)
    return None


def flash_refusal(scores: Scores, v: Tensor) -> str | None:
    """Return why flash-attn cannot serve this call; None: it can."""
    q = scores.q
    window = scores.window
    only_slopes = len(scores.biases) == 0 or scores.slopes is not None
    sees_all = scores.padding is None and (window is None or not window.sinks)
    fits = on_gpu_in_16_bits(q) and q.shape[-1] <= v.shape[-1] <= 256
    if not (only_slopes and sees_all and fits):
        return (
            "flash-attn is for 16 bits on a GPU, widths of values from the queries' to 256 and "
            "no bias but ALiBi's slopes, no padding and no sinks"
        )
    if not flash_installed():
        return "flash-attn is not installed (docs/faq.md says how)"
    return None


def on_gpu_in_16_bits(q: Tensor) -> bool:
    """Say whether kernels of a GPU compute in 16 bits."""
    return q.device.type == "cuda" and q.element_size() < 4


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
    bias = q.new_zeros(())
    for each in scores.biases:
        bias = bias + scores.addend(each)
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


@functools.cache  # the search looks in every folder
def flash_installed() -> bool:
    """Say whether there is flash-attn."""
    return importlib.util.find_spec("flash_attn") is not None


CHOICES: list[str] = []  # what was chosen in this run, as its log has it


def log_once(text: str) -> None:
    """Log a choice once in a run."""
    if text not in CHOICES:
        CHOICES.append(text)
        log.info(text)


@functools.cache
def prepare_to_compile() -> None:
    """Tell torch.compile what is constant, so that a block is one graph, and not to autocast in the
    backward pass, which would multiply in 16 bits what the forward pass multiplied in fp32.
    """
    import torch._dynamo  # takes a second
    import torch._functorch.config as functorch_config

    # By default a ninth size or kind of block would silently be computed eagerly.
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, 64)
    functorch_config.backward_pass_autocast = "off"
    for fact in (log_once, flash_installed):
        torch.compiler.assume_constant_result(fact)
    # Not where it is defined: that would import torch._dynamo for those who compile nothing.
    RowSampler.integers = torch.compiler.disable(RowSampler.integers)  # type: ignore[method-assign]
