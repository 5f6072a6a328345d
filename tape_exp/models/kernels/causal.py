"""Fused causal attention: one probability matrix for the values and for what positions carry, in
Triton, with gradients.

Shape suffixes as in :mod:`tape_exp.models.attention`, whose ``reference`` backend is the oracle of
this one. The programs are in :mod:`tape_exp.models.kernels.causal_triton`, which is imported at the
first use: torch for CPUs comes without triton.
"""

import functools
import importlib.util
import math
import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

WIDEST = 128
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def fused_attention(
    q_BTHD: Tensor,
    k_BSKD: Tensor,
    v_BSKD: Tensor,
    carried: Tensor | None = None,
    slopes: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor | None]:
    """``p = softmax(scale · q kᵀ + alibi)`` under the causal mask, and ``p v`` and ``p carried``; p
    is never in memory.

    Query t sees keys up to t + S - T. The forward pass computes q kᵀ once for both products. The
    backward pass computes p anew, with the gradients of both products in it: dp = d_out vᵀ +
    d_carried carriedᵀ. It is deterministic, and cannot be differentiated again.

    Args:
        q_BTHD: queries: bf16, fp16 or fp32. Sums, softmax and, for fp32, products are of fp32
            accuracy (products of fp32 inputs follow ``torch.backends.cuda.matmul.fp32_precision``).
        k_BSKD: keys, in the dtype of q; with fewer heads than q each serves H / K query heads in
            turn.
        v_BSKD: values, of the shape and dtype of the keys.
        carried: (B, S, H, C), or with 1 in place of B or H, which is read in place, never expanded.
            Cast to v's dtype.
        slopes: (H,), ALiBi: -slope_h · (t + S - T - s) is added to the scaled logits. Gets no
            gradient.
        scale: of the logits, positive; 1 / √D by default.

    Returns:
        The attended values (B, T, H, D) and the attended state (B, T, H, C), or None where nothing
        is carried.

    Raises:
        ValueError: where :func:`supports` has a reason not to.
    """
    reason = supports(q_BTHD, k_BSKD, v_BSKD, carried)
    if reason is not None:
        raise ValueError(f"fused_attention cannot serve this call: {reason}")
    if scale is None:
        scale = 1 / math.sqrt(q_BTHD.shape[-1])
    assert scale > 0, "the running maximum is taken before scaling"
    if carried is not None:
        carried = carried.to(v_BSKD.dtype)
    if slopes is not None:
        assert slopes.shape == (q_BTHD.shape[2],), "one slope for every query head"
        slopes = slopes.detach().to(q_BTHD.device, torch.float32).contiguous()
    out, attended, _ = _attention(q_BTHD, k_BSKD, v_BSKD, carried, slopes, scale)
    return out, None if carried is None else attended


def supports(q: Tensor, k: Tensor, v: Tensor, carried: Tensor | None = None) -> str | None:
    """None if :func:`fused_attention` can serve these tensors, else a sentence why not."""
    if reason := cannot_run(q):
        return reason
    others = [x for x in (k, v, carried) if x is not None]
    if any(x.device != q.device for x in others):
        return "The tensors are on different devices."
    if q.dtype not in DTYPES or k.dtype != q.dtype or v.dtype != q.dtype:
        return (
            f"q, k and v are {q.dtype}, {k.dtype} and {v.dtype}; they should all be one of bf16, "
            "fp16 and fp32."
        )
    if carried is not None and not carried.is_floating_point():
        return f"What is carried is {carried.dtype}, not floating point."
    (B, T, H, D), (S, K) = q.shape, k.shape[1:3]
    if k.shape != (B, S, K, D) or v.shape != k.shape or H % K:
        return (
            f"The shapes {tuple(q.shape)}, {tuple(k.shape)} and {tuple(v.shape)} are not (B, T, H, "
            "D) and twice (B, S, K, D)."
        )
    if not 0 < T <= S or B == 0:
        return (
            f"There are {T} queries for {S} keys in a batch of {B}; at least one, and a key for "
            "each, are needed."
        )
    if carried is not None and not (
        carried.ndim == 4
        and carried.shape[0] in (1, B)
        and carried.shape[1] == S
        and carried.shape[2] in (1, H)
    ):
        return f"What is carried is {tuple(carried.shape)}; ({B} or 1, {S}, {H} or 1, C) is needed."
    widest = max(D, 0 if carried is None else carried.shape[-1])
    if widest > WIDEST:
        return f"A head dimension or carried width of {widest} is more than {WIDEST}."
    return None


@torch.library.custom_op("tape_exp::fused_attention", mutates_args=())
def _attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    carried: Tensor | None,
    slopes: Tensor | None,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The average of the values, that of what is carried (empty where nothing is), and log2 Σ 2^z.

    An operator that compilers take as it is, so that a compiled model stays one graph. It is not a
    ``triton_op``, whose tiles Inductor would choose anew, without our rule for which may be tried.
    """
    q, k, v = _rows(q), _rows(k), _rows(v)
    carried = None if carried is None else _rows(carried)
    out, out_c, lse = _outputs(q, v, carried)
    B, T, H, _ = q.shape
    with torch.cuda.device_of(q):
        _programs().attention[_grid(B * H, T, "BLOCK_M")](
            q, k, v, carried, slopes, out, None if carried is None else out_c, lse, scale,
            *_sizes(q, k), *_strides(q, k, v), *_carried_strides(carried, B, H),
            **_constants(q, carried, slopes),
        )  # fmt: skip
    return out, out_c, lse


@_attention.register_fake
def _outputs_of(
    q: Tensor, k: Tensor, v: Tensor, carried: Tensor | None, slopes: Tensor | None, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    return _outputs(q, v, carried)


def _outputs(q: Tensor, v: Tensor, carried: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """What :func:`_attention` returns, not yet computed."""
    B, T, H, _ = q.shape
    out = torch.empty(q.shape, dtype=v.dtype, device=v.device)
    out_c = out.new_empty(0) if carried is None else out.new_empty(B, T, H, carried.shape[-1])
    return out, out_c, torch.empty(B, H, T, dtype=torch.float32, device=q.device)


@torch.library.custom_op("tape_exp::fused_attention_backward", mutates_args=())
def _gradients(
    d_out: Tensor | None,
    d_out_c: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    carried: Tensor | None,
    slopes: Tensor | None,
    out: Tensor,
    out_c: Tensor,
    lse: Tensor,
    scale: float,
    learns: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of q, k, v and carried, the last empty unless carried ``learns``."""
    q, k, v = _rows(q), _rows(k), _rows(v)
    carried = None if carried is None or d_out_c is None else _rows(carried)
    (B, T, H, D), (S, K) = q.shape, k.shape[1:3]
    d_out = torch.zeros_like(out) if d_out is None else _rows(d_out)
    d_out_c = None if d_out_c is None else _rows(d_out_c)
    dq = torch.empty_like(out)
    delta = torch.empty_like(lse)
    strides = (
        *_strides(q, k, v), *_carried_strides(carried, B, H),
        *_strides(d_out), *_carried_strides(d_out_c, B, H)
    )  # fmt: skip
    constants = _constants(q, carried, slopes)
    # Heads that share keys, and heads and rows that share what is carried, write gradients of
    # their own in fp32, which are summed afterwards: unlike atomic additions this gives the
    # same sum every time.
    dk = q.new_empty(B, S, H, D, dtype=torch.float32 if K < H else q.dtype)
    dv = torch.empty_like(dk)
    dc = None
    if learns and carried is not None:
        shared = carried.shape[0] < B or carried.shape[2] < H
        dc = q.new_empty(B, S, H, carried.shape[-1], dtype=torch.float32 if shared else q.dtype)
    with torch.cuda.device_of(q):
        _programs().query_gradient[_grid(B * H, T, "BLOCK_M")](
            q, k, v, carried, slopes, out, None if carried is None else out_c, lse, d_out, d_out_c,
            delta, dq, scale, *_sizes(q, k), *strides, **constants,
        )  # fmt: skip
        _programs().key_gradient[_grid(B * H, S, "BLOCK_N")](
            q, k, v, carried, slopes, lse, d_out, d_out_c, delta, dk, dv, dc, scale,
            *_sizes(q, k), *strides, **constants, CARRIED_LEARNS=dc is not None,
        )  # fmt: skip
    if K < H:
        dk, dv = (x.unflatten(2, (K, H // K)).sum(3).to(q.dtype) for x in (dk, dv))
    if dc is None or carried is None:
        return dq, dk, dv, q.new_empty(0)
    return dq, dk, dv, dc.sum_to_size(_shape_of_carried(carried, S)).to(q.dtype)


@_gradients.register_fake
def _gradients_of(
    d_out: Tensor | None,
    d_out_c: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    carried: Tensor | None,
    slopes: Tensor | None,
    out: Tensor,
    out_c: Tensor,
    lse: Tensor,
    scale: float,
    learns: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    dk, dv = (torch.empty(x.shape, dtype=q.dtype, device=q.device) for x in (k, v))
    dc = q.new_empty(0)
    if learns and carried is not None and d_out_c is not None:
        dc = q.new_empty(_shape_of_carried(carried, k.shape[1]))
    return torch.empty_like(out), dk, dv, dc


def _shape_of_carried(carried: Tensor, S: int) -> tuple[int, ...]:
    return carried.shape[0], S, carried.shape[2], carried.shape[-1]


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    """For the backward pass: the tensors, and which of them there are."""
    *tensors, ctx.scale = inputs
    ctx.save_for_backward(*tensors, *output)
    ctx.mark_non_differentiable(output[2])
    ctx.set_materialize_grads(False)


def _backward(
    ctx: Any, d_out: Tensor | None, d_out_c: Tensor | None, _: Any
) -> tuple[Tensor | None, ...]:
    """Of :func:`_attention`, which cannot be differentiated again."""
    q, k, v, carried, slopes, out, out_c, lse = ctx.saved_tensors
    if carried is None:
        d_out_c = None
    learns = ctx.needs_input_grad[3] and d_out_c is not None
    dq, dk, dv, dc = _gradients(
        d_out, d_out_c, q, k, v, carried, slopes, out, out_c, lse, ctx.scale, learns
    )
    return dq, dk, dv, dc if learns else None, None, None


_attention.register_autograd(_backward, setup_context=_keep)


def _rows(x: Tensor) -> Tensor:
    """x, copied only where its last dimension is not contiguous."""
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def _grid(pairs: int, length: int, block: str) -> Callable[[dict[str, int]], tuple[int]]:
    """One program for every block of every head, on one axis, since the others end at 65535."""
    return lambda meta: (pairs * -(-length // meta[block]),)


def _sizes(q: Tensor, k: Tensor) -> tuple[int, ...]:
    """T, S, H, query heads a key head, and T's next power of two, for which tiles are chosen."""
    T, S, H = q.shape[1], k.shape[1], q.shape[2]
    return T, S, H, H // k.shape[2], max(64, 1 << (T - 1).bit_length())


def _strides(*tensors: Tensor) -> tuple[int, ...]:
    return tuple(x.stride(i) for x in tensors for i in range(3))


def _carried_strides(x: Tensor | None, B: int, H: int) -> tuple[int, int, int]:
    """The strides of (B, S, H, C), with 0 where one serves all rows of the batch or all heads."""
    if x is None:
        return 0, 0, 0
    return x.stride(0) if x.shape[0] == B else 0, x.stride(1), x.stride(2) if x.shape[2] == H else 0


def _constants(q: Tensor, carried: Tensor | None, slopes: Tensor | None) -> dict[str, Any]:
    """The compile-time constants; widths are powers of two, at least the 16 of a tensor core."""
    D, C = q.shape[-1], 0 if carried is None else carried.shape[-1]
    return {
        "D": D,
        "C": C,
        "PAD_D": max(16, 1 << (D - 1).bit_length()),
        "PAD_C": max(16, 1 << (C - 1).bit_length()),
        "CARRIES": carried is not None,
        "SLOPED": slopes is not None,
        "PRECISION": precision(q.dtype),
    }


def precision(dtype: torch.dtype) -> str:
    """How tensor cores multiply this type: fp32 in three products, unless torch may round it."""
    rounded = torch.backends.cuda.matmul.fp32_precision == "tf32"
    return "tf32x3" if dtype == torch.float32 and not rounded else "tf32"


def cannot_run(x: Tensor) -> str | None:
    """None if Triton's programs can run where x is, else a sentence why not."""
    if x.device.type != "cuda" and not (
        x.device.type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1"
    ):
        return f"The tensors are on {x.device.type}, not cuda (and TRITON_INTERPRET=1 is not set)."
    if not installed():
        return "triton is not installed."
    if x.device.type == "cpu" and not interpreted():
        return "TRITON_INTERPRET=1 was set after triton had been imported."
    if x.device.type == "cuda" and not interpreted() and (gpu := too_old(x.device)):
        return f"The {gpu} is older than compute capability 8.0 (A100)."
    return None


@functools.cache
def installed() -> bool:
    """Whether there is triton."""
    return importlib.util.find_spec("triton") is not None


def interpreted() -> bool:
    """Whether triton's interpreter runs the programs, which then need no GPU."""
    return _programs().INTERPRETED.value


@functools.cache
def too_old(device: torch.device) -> str:
    """The name of a GPU that the programs cannot run on; empty for others."""
    gpu = torch.cuda.get_device_properties(device)
    return gpu.name if gpu.major < 8 else ""


def _programs() -> Any:
    from tape_exp.models.kernels import causal_triton

    return causal_triton
