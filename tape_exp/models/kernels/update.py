"""TAPE's update of its position state, and the rotation of the next layer's queries and keys by it,
fused, in Triton, with gradients.

Shape suffixes: B batch, T tokens, H heads, K key heads, D numbers of the state of a head, as many
as channels of a head. The oracle is the update of :class:`tape_exp.models.positions.tape.TAPE`
followed by :func:`tape_exp.models.positions.rope.turn`; the programs are in
:mod:`tape_exp.models.kernels.update_triton`, which is imported at the first use.

What is moved, bytes a token and unit of the width H·D, with 16-bit q, k and Ẽ, and F (B, T, H, H)
made from ψ by a matrix product, as is the gradient of ψ from that of F:

| pass     | moves                                                              | 12 heads, D = 64 |
|----------|--------------------------------------------------------------------|------------------|
| forward  | E 4, Ẽ 2, F 4 H / D, q and k 4; E' 4, its copy 2, the rotated 4    | 20.75            |
| backward | dE' 4, dcopy 2, those of the rotated 4, E 4, Ẽ 2, F 4 H / D, q and | 31.5             |
|          | k 4; dE 4, dẼ 2, dF 4 H / D, dq and dk 4                           |                  |

Backward, E' is computed anew, and the gradients of E' are summed where they are read. Apart,
update, rotation, copy and that sum would move 28.75 and 51.5. A program that makes F from ψ itself
would move 1.5 bytes fewer, as would the products; but with W1, W2 and the sums of their gradients,
compiled for an H100, it fills all 255 registers and spills.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from tape_exp.models.kernels import causal, rotation, runtime

MOST_HEADS = 32
# Tokens of a program, one after the other. It reads P once, and leaves its sum of P's gradient.
TOKENS = 8
CHUNK = 16  # of the complex numbers of a head, which are mapped alike, in registers at a time


class Update(NamedTuple):
    """An update that is not made yet: E' = (I + F) (E + P Ẽ) of every token, (B, T, H, D) fp32."""

    E: Tensor  # (B, T, H, D), the state, fp32; expanded dimensions are read in place
    attended: Tensor | None  # Ẽ: bf16, fp16 or fp32; None, together with P: 0
    p: Tensor | None  # P, (H, H), fp32
    F: Tensor | None  # (B, T, H, H), W2 diag(ψ) W1ᵀ of every token, fp32; None: 0


def updated(
    q_BTHD: Tensor, k_BTKD: Tensor, update: Update, keeps: bool = True, copies: bool = False
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """E', and q and k as complex numbers (x_m, x_{m+D/2}) times it.

    For tensors to which :func:`supports` and :func:`turns` have no objection. Products of matrices
    are as :func:`~tape_exp.models.kernels.causal.precision` says of fp32 beside q. The gradient of
    P is the sum of what each program leaves in fp32: the backward pass is deterministic, and cannot
    be differentiated again.

    Args:
        q_BTHD: queries: bf16, fp16 or fp32.
        k_BTKD: keys, in the dtype of q; K divides H.
        update: what makes E'.
        keeps: whether E' is needed any more.
        copies: whether a copy of it in the dtype of q is.

    Returns:
        The rotated q and the rotated k, both (B, T, H, D); E' where it ``keeps`` it, and its copy
        where it ``copies``, else None.
    """
    q, k, out, copy = _update(q_BTHD, k_BTKD, *update, keeps, copies)
    return q, k, out if keeps else None, copy if copies else None


def supports(E: Tensor, attended: Tensor | None, p: Tensor | None, F: Tensor | None) -> str | None:
    """None if :func:`updated` can make this update, else a sentence why not."""
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


def turns(q: Tensor, k: Tensor, E_BTHD: Tensor) -> str | None:
    """None if :func:`updated` can rotate q and k by the next E, else a sentence why not."""
    return rotation.supports(q, k, E_BTHD.unflatten(-1, (2, -1)))


@torch.library.custom_op("tape_exp::update", mutates_args=())
def _update(
    q: Tensor,
    k: Tensor,
    E: Tensor,
    attended: Tensor | None,
    p: Tensor | None,
    F: Tensor | None,
    keeps: bool,
    copies: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What :func:`updated` returns; what is not needed is empty."""
    q, k, E = (causal._rows(x) for x in (q, k, E))
    attended = None if attended is None else causal._rows(attended)
    q_out, k_out, out, copy = _outputs(q, k, E, attended, p, F, keeps, copies)
    with torch.cuda.device_of(E):
        _programs().update[(_count(E),)](
            q, k, E, attended, _contiguous(p), _contiguous(F), q_out, k_out, out, copy,
            *_sizes(E), *_strides(q, k, E, attended), **_constants(k, E, attended, F), KEEPS=keeps,
            COPIES=copies,
        )  # fmt: skip
    return q_out, k_out, out, copy


@_update.register_fake
def _outputs(
    q: Tensor,
    k: Tensor,
    E: Tensor,
    attended: Tensor | None,
    p: Tensor | None,
    F: Tensor | None,
    keeps: bool,
    copies: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    out, copy = E.new_empty(E.shape if keeps else 0), q.new_empty(E.shape if copies else 0)
    return q.new_empty(q.shape), k.new_empty(q.shape), out, copy


@torch.library.custom_op("tape_exp::update_backward", mutates_args=())
def _gradients(
    d_q_out: Tensor,
    d_k_out: Tensor,
    d_out: Tensor | None,
    d_copy: Tensor | None,
    q: Tensor,
    k: Tensor,
    E: Tensor,
    attended: Tensor | None,
    p: Tensor | None,
    F: Tensor | None,
    learns: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The gradients of q, k, E, Ẽ, P and F, that of P of the tokens of each program; that of E is
    empty unless it ``learns``, and so are those of what is not there.
    """
    given = (d_q_out, d_k_out, d_out, d_copy, q, k, E, attended)
    read = [None if x is None else causal._rows(x) for x in given]
    dq, dk, dE, d_attended, sums, dF = _empty_gradients(*given, p, F, learns)
    # Query heads that share a key head write gradients of their own in fp32, summed afterwards.
    group = q.shape[2] // k.shape[2]
    each_k = dk if group == 1 else dk.new_empty(q.shape, dtype=torch.float32)
    with torch.cuda.device_of(E):
        _programs().update_gradient[(_count(E),)](
            *read, _contiguous(p), _contiguous(F), dq, each_k, dE, d_attended, sums, dF,
            *_sizes(E), *_strides(*read), **_constants(k, E, attended, F), KEPT=d_out is not None,
            COPIED=d_copy is not None, LEARNS=learns,
        )  # fmt: skip
    if group > 1:
        dk = each_k.unflatten(2, (-1, group)).sum(3).to(dk.dtype)
    return dq, dk, dE, d_attended, sums, dF


@_gradients.register_fake
def _empty_gradients(
    d_q_out: Tensor,
    d_k_out: Tensor,
    d_out: Tensor | None,
    d_copy: Tensor | None,
    q: Tensor,
    k: Tensor,
    E: Tensor,
    attended: Tensor | None,
    p: Tensor | None,
    F: Tensor | None,
    learns: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    def empty(x: Tensor | None) -> Tensor:
        return E.new_empty(0) if x is None else x.new_empty(x.shape)

    sums = E.new_empty(0) if p is None else p.new_empty(_count(E), *p.shape)
    return empty(q), empty(k), empty(E if learns else None), empty(attended), sums, empty(F)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs[:6])
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, *d_outputs: Tensor | None) -> tuple[Tensor | None, ...]:
    """Of :func:`_update`, which cannot be differentiated again."""
    q, k, *update = ctx.saved_tensors
    d_q_out, d_k_out = (q.new_zeros(q.shape) if x is None else x for x in d_outputs[:2])
    needed = ctx.needs_input_grad[:6]
    dq, dk, dE, d_attended, sums, dF = _gradients(
        d_q_out, d_k_out, *d_outputs[2:], q, k, *update, needed[2]
    )
    gradients = dq, dk, dE, d_attended, sums.sum(0), dF
    return *(x if needs else None for x, needs in zip(gradients, needed, strict=True)), None, None


_update.register_autograd(_backward, setup_context=_keep)


def _contiguous(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.contiguous()


def _count(E: Tensor) -> int:
    """Of programs."""
    return -(-E.shape[0] * E.shape[1] // TOKENS)


def _sizes(E: Tensor) -> tuple[int, int]:
    """All tokens, and T."""
    return E.shape[0] * E.shape[1], E.shape[1]


def _strides(*tensors: Tensor | None) -> tuple[int, ...]:
    """Of batch, token and head of each; 0 where there is no tensor."""
    return tuple(0 if x is None else x.stride(i) for x in tensors for i in range(3))


def _constants(k: Tensor, E: Tensor, attended: Tensor | None, F: Tensor | None) -> dict[str, Any]:
    """The compile-time constants; each 16 rows of a matrix have a warp."""
    H, D = E.shape[2:]
    padded = runtime.padded(H)
    return {
        "H": H,
        "M": D // 2,
        "PAD_H": padded,
        "CHUNK": CHUNK,
        "GROUP": H // k.shape[2],
        "ATTENDS": attended is not None,
        "MAPS": F is not None,
        "PRECISION": causal.precision(E.dtype, k.dtype),
        "TOKENS": TOKENS,
        "num_warps": padded // 16,
        "num_stages": 2,
    }


def _programs() -> Any:
    from tape_exp.models.kernels import update_triton

    return update_triton
