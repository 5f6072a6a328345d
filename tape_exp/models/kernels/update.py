"""TAPE's update of its position state, fused, in Triton, with gradients.

Shape suffixes: B batch, T tokens, H heads, D numbers of the state of a head. The oracle is
:meth:`tape_exp.models.positions.tape.TAPE.update`; the programs are in
:mod:`tape_exp.models.kernels.update_triton`, which is imported at the first use.

What is moved, bytes a token and unit of the width H·D, with a 16-bit Ẽ and F (B, T, H, H) made from
ψ by a matrix product, as is the gradient of ψ from that of F:

| pass     | moves                                        | 12 heads, D = 64 |
|----------|----------------------------------------------|------------------|
| forward  | E 4, Ẽ 2, E' 4, F 4 H / D                    | 10.75            |
| backward | dE' 4, E 4, Ẽ 2, dE 4, dẼ 2, F and dF 8 H / D | 17.5            |

A program that makes F from ψ itself would move 1.5 bytes fewer, as would the products; but with W1,
W2 and the sums of their gradients, compiled for an H100, it fills all 255 registers and spills.
"""

from typing import Any

import torch
from torch import Tensor

from tape_exp.models.kernels import causal, runtime

MOST_HEADS = 32
# Tokens of a program, one after the other. It reads P once, and leaves its sum of P's gradient.
TOKENS = 8
CHUNK = 16  # of the D numbers of a head, which are mapped alike, in the registers at a time


def updated(
    E_BTHD: Tensor, attended_BTHD: Tensor | None, p_HH: Tensor | None, F_BTHH: Tensor | None
) -> Tensor:
    """E' = (I + F) (E + P Ẽ) of every token, (B, T, H, D) fp32.

    For tensors to which :func:`supports` has no objection. Products are of fp32 accuracy (or follow
    ``torch.backends.cuda.matmul.fp32_precision``). The gradient of P is the sum of what each
    program leaves in fp32: the backward pass is deterministic, and cannot be differentiated again.

    Args:
        E_BTHD: the state, fp32; expanded dimensions are read in place.
        attended_BTHD: Ẽ: bf16, fp16 or fp32; None, together with P, for E' = (I + F) E.
        p_HH: P, fp32.
        F_BTHH: W2 diag(ψ) W1ᵀ of every token, fp32; None: 0.
    """
    return _update(E_BTHD, attended_BTHD, p_HH, F_BTHH)


def supports(E: Tensor, attended: Tensor | None, F: Tensor | None) -> str | None:
    """None if :func:`updated` can serve these tensors, else a sentence why not."""
    if reason := runtime.cannot_run(E):
        return reason
    B, T, H = E.shape[:3]
    if E.dtype != torch.float32 or (
        F is not None and (F.dtype, F.shape) != (E.dtype, (B, T, H, H))
    ):
        maps = "" if F is None else f", the maps {tuple(F.shape)}, {F.dtype}"
        return f"E is {tuple(E.shape)}, {E.dtype}{maps}; fp32 and H × H maps are needed."
    if attended is not None and (attended.dtype not in causal.DTYPES or attended.shape != E.shape):
        return (
            f"The attended state is {tuple(attended.shape)}, {attended.dtype}; {tuple(E.shape)} in "
            "bf16, fp16 or fp32 is needed."
        )
    if not 0 < B * T < 2**31:
        return f"There are {B * T} tokens; at least one and fewer than 2^31 are needed."
    if H > MOST_HEADS:
        return f"Maps over {H} heads are larger than those over {MOST_HEADS}."
    return None


@torch.library.custom_op("tape_exp::update", mutates_args=())
def _update(E: Tensor, attended: Tensor | None, p: Tensor | None, F: Tensor | None) -> Tensor:
    """What :func:`updated` returns."""
    E, attended = causal._rows(E), None if attended is None else causal._rows(attended)
    out = _output(E, attended, p, F)
    tokens = E.shape[0] * E.shape[1]
    with torch.cuda.device_of(E):
        _programs().update[(-(-tokens // TOKENS),)](
            E, attended, _contiguous(p), _contiguous(F), out, tokens, E.shape[1],
            *_strides(E, attended), **_constants(E, attended, F),
        )  # fmt: skip
    return out


@_update.register_fake
def _output(E: Tensor, attended: Tensor | None, p: Tensor | None, F: Tensor | None) -> Tensor:
    return E.new_empty(E.shape)


@torch.library.custom_op("tape_exp::update_backward", mutates_args=())
def _gradients(
    d_out: Tensor,
    E: Tensor,
    attended: Tensor | None,
    p: Tensor | None,
    F: Tensor | None,
    learns: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of E, Ẽ, P and F; that of E is empty unless it ``learns``, and so are those of
    what is not there.
    """
    d_out, E = causal._rows(d_out), causal._rows(E)
    attended = None if attended is None else causal._rows(attended)
    dE, d_attended, dp, dF = _empty_gradients(d_out, E, attended, p, F, learns)
    tokens = E.shape[0] * E.shape[1]
    programs = -(-tokens // TOKENS)
    sums = dp.new_empty(programs, *dp.shape)
    with torch.cuda.device_of(E):
        _programs().update_gradient[(programs,)](
            d_out, E, attended, _contiguous(p), _contiguous(F), dE, d_attended, sums, dF, tokens,
            E.shape[1], *_strides(E, attended, d_out), **_constants(E, attended, F), LEARNS=learns,
        )  # fmt: skip
    return dE, d_attended, sums.sum(0), dF


@_gradients.register_fake
def _empty_gradients(
    d_out: Tensor,
    E: Tensor,
    attended: Tensor | None,
    p: Tensor | None,
    F: Tensor | None,
    learns: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    def empty(x: Tensor | None) -> Tensor:
        return E.new_empty(0) if x is None else x.new_empty(x.shape)

    return empty(E if learns else None), empty(attended), empty(p), empty(F)


def _keep(ctx: Any, inputs: tuple[Tensor | None, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
    """Of :func:`_update`, which cannot be differentiated again."""
    gradients = _gradients(d_out, *ctx.saved_tensors, ctx.needs_input_grad[0])
    return tuple(
        gradient if needed else None
        for gradient, needed in zip(gradients, ctx.needs_input_grad, strict=True)
    )


_update.register_autograd(_backward, setup_context=_keep)


def _contiguous(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.contiguous()


def _strides(*tensors: Tensor | None) -> tuple[int, ...]:
    """Of batch, token and head of each; 0 where there is no tensor."""
    return tuple(0 if x is None else x.stride(i) for x in tensors for i in range(3))


def _constants(E: Tensor, attended: Tensor | None, F: Tensor | None) -> dict[str, Any]:
    """The compile-time constants; the rows of a matrix are a power of two, at least the 16 of a
    tensor core, and each 16 have a warp.
    """
    H, D = E.shape[2:]
    padded = max(16, 1 << (H - 1).bit_length())
    return {
        "H": H,
        "D": D,
        "PAD_H": padded,
        "CHUNK": CHUNK,
        "ATTENDS": attended is not None,
        "MAPS": F is not None,
        "PRECISION": causal.precision(E.dtype),
        "TOKENS": TOKENS,
        "num_warps": padded // 16,
        "num_stages": 2,
    }


def _programs() -> Any:
    from tape_exp.models.kernels import update_triton

    return update_triton
