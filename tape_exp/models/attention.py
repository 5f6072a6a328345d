"""Causal softmax attention, which also averages what positions carry.

:func:`attend` chooses one of :data:`BACKENDS` by a rule of a few lines, or takes the one that a
config names and refuses it where it cannot serve the call.

Shape suffixes: B batch, T queries, S keys (S >= T: earlier ones come from a cache), H heads, K
heads of keys and values (each serves H / K heads of queries), D head dimension, C width of what is
carried.
"""

import torch
from torch import Tensor

from tape_exp.models.backends import BACKENDS, ROWS, with_all_heads
from tape_exp.models.compilation import flash_installed, log_once
from tape_exp.models.scores import Scores, product_by_group
from tape_exp.settings.errors import ConfigError

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
