"""``attend``: the one attention primitive, causal softmax attention that also averages what positions carry.

Shape suffixes: B batch, T query tokens, S key tokens (S >= T: earlier ones come from a cache), H query heads, K key/value
heads (K divides H), D head dimension, C width of what is carried.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from tape_exp.config import one_of

BACKENDS = ("reference", "sdpa")
# On a CPU the fused kernel pays off only above this many tokens; below, one explicit softmax serves v and carried at once.
CPU_SDPA_FROM = 64


def attend(
    q_BTHD: Tensor,
    k_BSKD: Tensor,
    v_BSKD: Tensor,
    *,
    bias: Tensor | None = None,
    carried: Tensor | None = None,
    backend: str = "auto",
) -> tuple[Tensor, Tensor | None]:
    """Causal attention: ``softmax(q kᵀ / √D + bias) v``, and the same probabilities times ``carried``.

    Query t sees keys up to t + S - T. This is eq. (f_attn) and eq. (g_attn) of the TAPE paper in one call: one
    probability matrix averages both the values and the position state.

    Args:
        q_BTHD: queries, already rotated where the positional encoding rotates. Logits are computed in their dtype.
        k_BSKD: keys; with fewer heads than q (grouped queries) each serves H / K query heads in turn.
        v_BSKD: values.
        bias: added to the scaled logits; broadcasts to (B, H, T, S).
        carried: (B, S, H, C), or with 1 in place of B or H; averaged by the probabilities of each query head.
        backend: ``reference`` (explicit softmax, the oracle), ``sdpa`` (torch's fused kernels), or ``auto``.

    Returns:
        The attended values (B, T, H, D) and the attended state (B, T, H, C), or None where nothing is carried.
    """
    if backend == "auto":
        backend = pick_backend(q_BTHD)
    one_of("attention backend", backend, BACKENDS)
    q, k, v = (x.transpose(1, 2) for x in (q_BTHD, k_BSKD, v_BSKD))
    groups = q.shape[1] // k.shape[1]
    if groups > 1:
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    if carried is None:
        return _FUNCTIONS[backend](q, k, v, bias).transpose(1, 2), None
    B, H, S = k.shape[:3]
    c_BHSC = carried.to(v.dtype).transpose(1, 2).expand(B, H, S, carried.shape[-1])
    both = _FUNCTIONS[backend](q, k, torch.cat([v, c_BHSC], -1), bias).transpose(1, 2)
    return both[..., : v.shape[-1]], both[..., v.shape[-1] :]


def pick_backend(q_BTHD: Tensor) -> str:
    """The fastest correct backend for the device and shape of ``q``."""
    return "reference" if q_BTHD.device.type == "cpu" and q_BTHD.shape[1] < CPU_SDPA_FROM else "sdpa"


def causal_mask(T: int, S: int, device: torch.device) -> Tensor:
    """(T, S) booleans, true where query t may look at key s: s <= t + S - T."""
    return torch.ones(T, S, dtype=torch.bool, device=device).tril(S - T)


def _reference(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    """The explicit softmax, (B, H, T, D) in and out, fp32 logits and probabilities; v may be wider than q."""
    logits = (q @ k.transpose(-1, -2)) / math.sqrt(q.shape[-1])
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if bias is not None:
        logits = logits + bias
    logits = logits.masked_fill(~causal_mask(q.shape[2], k.shape[2], q.device), float("-inf"))
    return logits.softmax(-1).to(v.dtype) @ v


def _sdpa(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    """torch's scaled_dot_product_attention. The fused kernels want equal widths: q and k are padded with zeros to v's."""
    scale = 1 / math.sqrt(q.shape[-1])
    T, S, width = q.shape[2], k.shape[2], v.shape[-1]
    if width > q.shape[-1]:
        q, k = F.pad(q, (0, width - q.shape[-1])), F.pad(k, (0, width - k.shape[-1]))
    if bias is None and T == S:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)
    allowed = causal_mask(T, S, q.device)
    if bias is None:
        mask = allowed
    else:
        mask = torch.where(allowed, bias.to(q.dtype), float("-inf")).expand(q.shape[0], q.shape[1], T, S)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)


_FUNCTIONS = {"reference": _reference, "sdpa": _sdpa}
