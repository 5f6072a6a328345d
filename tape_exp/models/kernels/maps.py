"""TAPE's maps over heads, one for each token, from ψ: fused, in Triton, with gradients.

Shape suffixes: B batch, T tokens, C width, I inner units, J numbers of a map. The oracle is
the torch code of :class:`tape_exp.models.positions.tape.TAPE`; the programs are in
:mod:`tape_exp.models.kernels.maps_triton`, which is imported at the first use.

ψ is fp32, and cuBLAS multiplies fp32 without tensor cores, from an fp32 copy of the 16-bit x̃. Here
x̃ is read as it is, and a product is made of three on tensor cores. Bytes a token and unit of C, of
a 16-bit x̃, for I = C / 16 and J = 3 C / 16:

| pass     | moves                                                           |      |
|----------|-----------------------------------------------------------------|------|
| forward  | x̃ 2; h 0.25, F 0.75                                             | 3    |
| backward | dF 0.75, h 0.25; dh 0.25, dx̃ 2; x̃ 2, dh 0.25; h 0.25, dF 0.75   | 6.5  |
"""

from typing import Any

import torch
from torch import Tensor

from tape_exp.models.kernels import causal, runtime

MOST_INNER = 128
BLOCK = 64  # tokens of a program
WIDE = 32  # columns of a matrix, at a time
EACH = 1024  # tokens of which a program adds up the gradients of the weights


def maps(x_BTC: Tensor, wx_IC: Tensor, v_IJ: Tensor) -> Tensor:
    """SiLU(x̃ W_xᵀ) V, (B, T, J) fp32.

    For tensors to which :func:`supports` has no objection. Products are as
    :func:`~tape_exp.models.kernels.causal.precision` says of fp32 beside x̃. The gradients of the
    weights are sums of what programs leave in fp32: the backward pass is deterministic, and cannot
    be differentiated again.

    Args:
        x_BTC: x̃: bf16, fp16 or fp32.
        wx_IC: W_x, fp32.
        v_IJ: V, fp32.
    """
    F, _ = _maps(x_BTC.contiguous(), wx_IC.contiguous(), v_IJ.contiguous())
    return F


def supports(x: Tensor, wx: Tensor, v: Tensor) -> str | None:
    """None if :func:`maps` can serve these tensors, else a sentence why not."""
    if reason := runtime.cannot_run(x):
        return reason
    if x.dtype not in causal.DTYPES or wx.dtype != torch.float32 or v.dtype != torch.float32:
        return (
            f"x, W_x and V are {x.dtype}, {wx.dtype} and {v.dtype}; x should be bf16, fp16 or "
            "fp32, and the others fp32."
        )
    if wx.shape[0] > MOST_INNER:
        return f"ψ has {wx.shape[0]} units, more than {MOST_INNER}."
    if not 0 < x.shape[0] * x.shape[1] < 2**31:
        return (
            f"There are {x.shape[0] * x.shape[1]} tokens; at least one and fewer than 2^31 are "
            "needed."
        )
    return None


@torch.library.custom_op("tape_exp::maps", mutates_args=())
def _maps(x: Tensor, wx: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """F and h."""
    F, h = _outputs(x, wx, v)
    with torch.cuda.device_of(x):
        _programs().maps[_blocks(x)](x, wx, v, h, F, _tokens(x), **_sizes(wx, v, x.dtype))
    return F, h


@_maps.register_fake
def _outputs(x: Tensor, wx: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    B, T, _ = x.shape
    return wx.new_empty(B, T, v.shape[1]), wx.new_empty(B, T, wx.shape[0])


@torch.library.custom_op("tape_exp::maps_backward", mutates_args=())
def _gradients(
    dF: Tensor, wx: Tensor, v: Tensor, h: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """The gradient of x̃, in its dtype, and that of h."""
    dx, dh = _empty_gradients(dF, wx, v, h, dtype)
    with torch.cuda.device_of(h):
        _programs().maps_gradient[_blocks(h)](
            dF, wx, v, h, dh, dx, _tokens(h), **_sizes(wx, v, dtype)
        )
    return dx, dh


@_gradients.register_fake
def _empty_gradients(
    dF: Tensor, wx: Tensor, v: Tensor, h: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    return h.new_empty(*h.shape[:2], wx.shape[1], dtype=dtype), h.new_empty(h.shape)


@torch.library.custom_op("tape_exp::maps_weights", mutates_args=())
def _sums(left: Tensor, right: Tensor, opens: bool, beside: torch.dtype) -> Tensor:
    """Σ left rightᵀ, or SiLU(left) rightᵀ where it ``opens`` them, over EACH tokens at a time."""
    sums = _empty_sums(left, right, opens, beside)
    parts, inner, W = sums.shape
    with torch.cuda.device_of(left):
        _programs().sum_of_products[(parts, -(-W // WIDE))](
            left, right, sums, _tokens(left), EACH, OPENS=opens, **_constants(inner, beside, W=W)
        )
    return sums


@_sums.register_fake
def _empty_sums(left: Tensor, right: Tensor, opens: bool, beside: torch.dtype) -> Tensor:
    return left.new_empty(-(-_tokens(left) // EACH), left.shape[-1], right.shape[-1])


def _keep(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs, output[1])
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, dF: Tensor | None, _: Any) -> tuple[Tensor | None, ...]:
    """Of :func:`_maps`, which cannot be differentiated again."""
    if dF is None:
        return None, None, None
    x, wx, v, h = ctx.saved_tensors
    dF = dF.contiguous()
    dx, dh = _gradients(dF, wx, v, h, x.dtype)
    return dx, _sums(dh, x, False, x.dtype).sum(0), _sums(h, dF, True, x.dtype).sum(0)


_maps.register_autograd(_backward, setup_context=_keep)


def _tokens(x: Tensor) -> int:
    return x.shape[0] * x.shape[1]


def _blocks(x: Tensor) -> tuple[int]:
    return (-(-_tokens(x) // BLOCK),)


def _sizes(wx: Tensor, v: Tensor, beside: torch.dtype) -> dict[str, Any]:
    return _constants(wx.shape[0], beside, C=wx.shape[1], J=v.shape[1])


def _constants(inner: int, beside: torch.dtype, **sizes: int) -> dict[str, Any]:
    """The compile-time constants."""
    return sizes | {
        "INNER": inner,
        "PAD_I": runtime.padded(inner),
        "BLOCK": BLOCK,
        "WIDE": WIDE,
        "PRECISION": causal.precision(torch.float32, beside),
        "num_warps": 4 if inner <= BLOCK else 8,
        "num_stages": 2,
    }


def _programs() -> Any:
    from tape_exp.models.kernels import maps_triton

    return maps_triton
