"""Fused rotation: queries and keys times the complex numbers of a position state, in Triton, with
gradients.

Shape suffixes: B batch, T tokens, H query heads, K key heads, D head dimension. The oracle is
:func:`tape_exp.models.positions.rope.turn`; the programs are in
:mod:`tape_exp.models.kernels.rotation_triton`, which is imported at the first use.
"""

from typing import Any

import torch
from torch import Tensor

from tape_exp.models.kernels import causal, runtime

ENTRIES = 1024  # pairs of channels that a program turns


def rotated(q_BTHD: Tensor, k_BTKD: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """q and k as complex numbers (x_m, x_{m+D/2}) times the state: y = x · (cos + i sin).

    For tensors to which :func:`supports` has no objection. Products are fp32. Backward, with g the
    gradient of y, dx = g · (cos - i sin) and d(cos + i sin) = Σ g · (x_m - i x_{m+D/2}), summed
    over q and k. It is deterministic, and cannot be differentiated again.

    One program reads q, k and the state once: of 16-bit q and k and a state of every head, 12 bytes
    a token and unit of the width H·D forward and 20 backward, where the state learns.

    Args:
        q_BTHD: queries: bf16, fp16 or fp32.
        k_BTKD: keys, in the dtype of q; K divides H.
        state: (B, T, H, 2, D/2) fp32, cosines and sines, or with 1 in place of B or H.

    Returns:
        The rotated q, (B, T, H, D), and the rotated k, (B, T, K, D); where every head has a state
        of its own a key is turned by that of each query head which it serves: (B, T, H, D).
    """
    return _rotate(q_BTHD, k_BTKD, state, _group(q_BTHD, k_BTKD, state))


def supports(q: Tensor, k: Tensor, state: Tensor) -> str | None:
    """None if :func:`rotated` can serve these tensors, else a sentence why not."""
    if reason := runtime.cannot_run(q):
        return reason
    if q.dtype not in causal.DTYPES or k.dtype != q.dtype or state.dtype != torch.float32:
        return (
            f"q, k and the state are {q.dtype}, {k.dtype} and {state.dtype}; q and k should both "
            "be one of bf16, fp16 and fp32, and the state fp32."
        )
    (B, T, H, D), K = q.shape, k.shape[2]
    if D % 2 or k.shape != (B, T, K, D) or not K or H % K:
        return (
            f"The shapes {tuple(q.shape)} and {tuple(k.shape)} are not (B, T, H, D) and (B, T, K, "
            "D) with an even D and K a divisor of H."
        )
    if (
        state.ndim != 5
        or state.shape[0] not in (1, B)
        or state.shape[1] != T
        or state.shape[2] not in (1, H)
        or state.shape[3:] != (2, D // 2)
    ):
        return (
            f"The state is {tuple(state.shape)}; ({B} or 1, {T}, {H} or 1, 2, {D // 2}) is needed."
        )
    if not 0 < q.numel() // D < 2**31:
        return f"There are {q.numel() // D} queries; at least one and fewer than 2^31 are needed."
    return None


@torch.library.custom_op("tape_exp::rotate", mutates_args=())
def _rotate(q: Tensor, k: Tensor, state: Tensor, group: int) -> tuple[Tensor, Tensor]:
    """What :func:`rotated` returns; ``group`` query heads have a copy of a key head each."""
    q, k, state = (causal._rows(x) for x in (q, k, state))
    q_out, k_out = _outputs(q, k, state, group)
    with torch.cuda.device_of(q):
        _programs().rotate[_grid(q)](
            q, k, state, q_out, k_out, *_sizes(q), *causal._strides(q, k),
            *_state_strides(state, q), **_constants(q, k_out.shape[2], group), num_warps=4,
        )  # fmt: skip
    return q_out, k_out


@_rotate.register_fake
def _outputs(q: Tensor, k: Tensor, state: Tensor, group: int) -> tuple[Tensor, Tensor]:
    B, T, K, D = k.shape
    return q.new_empty(q.shape), k.new_empty(B, T, K * group, D)


@torch.library.custom_op("tape_exp::rotate_backward", mutates_args=())
def _gradients(
    d_q_out: Tensor, d_k_out: Tensor, q: Tensor | None, k: Tensor | None, state: Tensor, group: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of q, k and the state, the last empty unless q and k are given."""
    learns = q is not None
    dq, dk, ds = _empty_gradients(d_q_out, d_k_out, q, k, state, group)
    d_q_out, d_k_out, state = (causal._rows(x) for x in (d_q_out, d_k_out, state))
    q, k = (causal._rows(x) if x is not None else dq for x in (q, k))
    B, T, H, D = dq.shape
    # Query heads that share a key head, and heads and rows that share a state, write gradients of
    # their own in fp32, which are summed afterwards.
    each_k = dk if group == 1 else dk.new_empty(d_k_out.shape, dtype=torch.float32)
    each_s = state.new_empty(B, T, H, 2, D // 2) if learns else ds
    with torch.cuda.device_of(q):
        _programs().rotate_gradient[_grid(dq)](
            d_q_out, d_k_out, q, k, state, dq, each_k, each_s, *_sizes(dq),
            *causal._strides(d_q_out, d_k_out, q, k), *_state_strides(state, dq),
            **_constants(dq, d_k_out.shape[2], group), LEARNS=learns, num_warps=4,
        )  # fmt: skip
    if group > 1:
        dk = each_k.unflatten(2, (-1, group)).sum(3).to(dk.dtype)
    return dq, dk, each_s.sum_to_size(state.shape) if learns else ds


@_gradients.register_fake
def _empty_gradients(
    d_q_out: Tensor, d_k_out: Tensor, q: Tensor | None, k: Tensor | None, state: Tensor, group: int
) -> tuple[Tensor, Tensor, Tensor]:
    B, T, many, D = d_k_out.shape
    dq, dk = d_q_out.new_empty(d_q_out.shape), d_k_out.new_empty(B, T, many // group, D)
    return dq, dk, state.new_empty(0 if q is None else state.shape)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    """For the backward pass: the state, and q and k only where it learns."""
    q, k, state, ctx.group = inputs
    ctx.learns = ctx.needs_input_grad[2]
    ctx.save_for_backward(*((q, k) if ctx.learns else ()), state)


def _backward(ctx: Any, d_q_out: Tensor, d_k_out: Tensor) -> tuple[Tensor | None, ...]:
    """Of :func:`_rotate`, which cannot be differentiated again."""
    *both, state = ctx.saved_tensors
    q, k = both or (None, None)
    dq, dk, ds = _gradients(d_q_out, d_k_out, q, k, state, ctx.group)
    return dq, dk, ds if ctx.learns else None, None


_rotate.register_autograd(_backward, setup_context=_keep)


def _group(q: Tensor, k: Tensor, state: Tensor) -> int:
    """Copies of a key head: one for each query head that it serves, if those differ in state."""
    return q.shape[2] // k.shape[2] if state.shape[2] > 1 else 1


def _grid(q: Tensor) -> tuple[int]:
    B, T, H, D = q.shape
    return (-(-B * T * H // _block(D)),)


def _block(D: int) -> int:
    """Heads of tokens that a program turns."""
    return max(1, ENTRIES // _padded(D // 2))


def _padded(size: int) -> int:
    return 1 << (size - 1).bit_length()


def _sizes(q: Tensor) -> tuple[int, int]:
    """Heads of all tokens, and T."""
    B, T, H, _ = q.shape
    return B * T * H, T


def _state_strides(state: Tensor, q: Tensor) -> tuple[int, ...]:
    """With 0 where one state serves all rows of the batch or all heads."""
    B, _, H, _ = q.shape
    batch, token, head, part, _ = state.stride()
    return batch if state.shape[0] == B else 0, token, head if state.shape[2] == H else 0, part


def _constants(q: Tensor, key_heads: int, group: int) -> dict[str, int]:
    H, D = q.shape[2:]
    sizes = {"H": H, "K": key_heads, "GROUP": group, "M": D // 2, "PAD_M": _padded(D // 2)}
    return sizes | {"BLOCK": _block(D)}


def _programs() -> Any:
    from tape_exp.models.kernels import rotation_triton

    return rotation_triton
