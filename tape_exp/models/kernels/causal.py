"""Fused causal attention: one probability matrix for the values and for what positions carry, in
Triton, with gradients.

Shape suffixes as in :mod:`tape_exp.models.attention`, whose ``reference`` backend is the oracle of
this one. The programs are in :mod:`tape_exp.models.kernels.causal_triton`, which is imported at the
first use: torch for CPUs comes without triton.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tape_exp.models.kernels import runtime

WIDEST = 128
WIDEST_FP32 = 64  # wider heads in fp32 need runtime.SHARED KiB of shared memory
LOG2E = 1 / math.log(2)
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


class Piecewise(NamedTuple):
    """A bias f(x) that is piecewise linear in x = near[t + S - T - s] · far[t].

    From bend k - 1 to bend k it is ``level[h, k] + rise[h, k] · x``. It is continuous: bends get no
    gradient.
    """

    near: Tensor  # (N,), N >= S, not negative, rising with the distance
    far: Tensor  # (T,), of each query, positive, falling
    bends: Tensor  # (K,), rising
    level: Tensor  # (H, K + 1)
    rise: Tensor  # (H, K + 1)


def fused_attention(
    q_BTHD: Tensor,
    k_BSKD: Tensor,
    v_BSKD: Tensor,
    carried: Tensor | None = None,
    slopes: Tensor | None = None,
    by_distance: Tensor | None = None,
    piecewise: Piecewise | None = None,
    scale: float | None = None,
    key_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """``p = softmax(scale · q kᵀ + bias)`` under the causal mask, and ``p v`` and ``p carried``; p
    is never in memory.

    Query t sees keys up to t + S - T. The forward pass computes q kᵀ once for both products. The
    backward pass computes p anew, with the gradients of both products in it: dp = d_out vᵀ +
    d_carried carriedᵀ. It cannot be differentiated again.

    The outputs and the gradients of k, v, carried and a bias repeat themselves bit for bit. The
    gradient of q is a sum over blocks of keys in the order in which a GPU finishes them, so that
    its last bits differ from run to run. With ``torch.use_deterministic_algorithms(True)``, and
    where a piecewise bias or one of keys learns, it repeats itself too: a pass of its own computes
    it, and p and dp once more (where something is carried, 13 products in the forward and backward
    pass instead of 10).

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
        by_distance: (H, N), N >= S: entry t + S - T - s of each head is added to the scaled logits,
            in fp32.
        piecewise: a bias that also depends on the query, added in fp32. Of it, ``by_distance`` and
            ``slopes`` only one may be given.
        scale: of the logits, positive; 1 / √D by default.
        key_bias: (B, S, H), added to the logits of a key, besides another bias. Only its
            differences within a row are made, of both halves of its bits: :func:`in_two`.

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
    assert [slopes, by_distance, piecewise].count(None) >= 2, "a call has one kind of bias"
    tables = _tables(by_distance, piecewise, q_BTHD, k_BSKD)
    if key_bias is not None:
        assert key_bias.shape == (*k_BSKD.shape[:2], q_BTHD.shape[2]), "one for each key and head"
    out, attended, _ = _attention(q_BTHD, k_BSKD, v_BSKD, carried, slopes, key_bias, tables, scale)
    return out, None if carried is None else attended


def in_two(x: Tensor) -> tuple[Tensor, Tensor]:
    """x in two fp32 numbers, the nearest to it and the rest: of fp64 twice as many bits as of the
    first.

    A difference of two x of the same row is that of their first numbers, which is exact where it is
    small, plus the rests. The second is a constant for autograd: all of x's gradient is the
    first's.
    """
    high = x.float()
    return high, (x - high).float().detach()


def supports(q: Tensor, k: Tensor, v: Tensor, carried: Tensor | None = None) -> str | None:
    """None if :func:`fused_attention` can serve these tensors, else a sentence why not."""
    if reason := runtime.cannot_run(q):
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
    single = q.dtype == torch.float32 and q.device.type == "cuda"
    if single and widest > WIDEST_FP32 and (gpu := runtime.too_small(q.device)):
        return (
            f"A head dimension or carried width of {widest} is more than {WIDEST_FP32}, for which "
            f"a block of the {gpu} has too little shared memory in fp32; bf16 and fp16 fit."
        )
    return None


@torch.library.custom_op("tape_exp::fused_attention", mutates_args=())
def _attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    carried: Tensor | None,
    slopes: Tensor | None,
    key_bias: Tensor | None,
    tables: Sequence[Tensor],
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
            q, k, v, carried, slopes, *_keys(key_bias), *_five(tables), out,
            None if carried is None else out_c, lse, scale, *_sizes(q, k), *_strides(q, k, v),
            *_carried_strides(carried, B, H), **_constants(q, carried, slopes, key_bias, tables),
        )  # fmt: skip
    return out, out_c, lse


@_attention.register_fake
def _outputs_of(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    carried: Tensor | None,
    slopes: Tensor | None,
    key_bias: Tensor | None,
    tables: Sequence[Tensor],
    scale: float,
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
    key_bias: Tensor | None,
    tables: Sequence[Tensor],
    out: Tensor,
    out_c: Tensor,
    lse: Tensor,
    scale: float,
    carried_learns: bool,
    keys_learn: bool,
    tables_learn: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, list[Tensor]]:
    """The gradients of q, k, v, carried, the key bias and the tables; the last three are empty
    unless ``carried_learns``, ``keys_learn`` and ``tables_learn``.
    """
    q, k, v = _rows(q), _rows(k), _rows(v)
    carried = None if carried is None or d_out_c is None else _rows(carried)
    (B, T, H, D), (S, K) = q.shape, k.shape[1:3]
    d_out = torch.zeros_like(out) if d_out is None else _rows(d_out)
    d_out_c = None if d_out_c is None else _rows(d_out_c)
    constants = _constants(q, carried, slopes, key_bias, tables)
    given_bias = *_keys(key_bias), *_five(tables)
    # What belongs to a query and what corrects its delta is summed in a pass of its own.
    in_pieces = tables_learn and constants["BENDS"] > 0
    one_pass = not (in_pieces or keys_learn or torch.are_deterministic_algorithms_enabled())
    # The sum over blocks of keys is atomic, and fp32 whatever q is.
    dq = torch.zeros_like(out, dtype=torch.float32) if one_pass else torch.empty_like(out)
    delta = torch.empty_like(lse)
    given = *_strides(d_out), *_carried_strides(d_out_c, B, H)
    strides = *_strides(q, k, v), *_carried_strides(carried, B, H), *given
    # Heads that share keys, and heads and rows that share what is carried, write gradients of
    # their own in fp32, which are summed afterwards: unlike atomic additions this gives the
    # same sum every time.
    dk = q.new_empty(B, S, H, D, dtype=torch.float32 if K < H else q.dtype)
    dv = torch.empty_like(dk)
    dc = None
    if carried_learns and carried is not None:
        shared = carried.shape[0] < B or carried.shape[2] < H
        dc = q.new_empty(B, S, H, carried.shape[-1], dtype=torch.float32 if shared else q.dtype)
    # So do blocks of keys, for every distance and every piece of a function.
    owns = 0
    if tables_learn:
        owns = _programs().owned_keys(q.dtype, constants["BENDS"], constants["PAD_D"])
    d_table = d_far = d_level = d_rise = None
    if tables_learn:
        d_table = lse.new_zeros(B, H, -(-S // owns), S)
    d_keys = lse.new_empty(B, H, S) if keys_learn else None
    if in_pieces:
        d_far = torch.empty_like(lse)
        d_level = lse.new_empty(B, H, -(-S // owns), constants["BENDS"] + 1)
        d_rise = torch.empty_like(d_level)
    with torch.cuda.device_of(q):
        averages = out, None if carried is None else out_c
        if one_pass:
            widths = {name: constants[name] for name in ("D", "C", "PAD_D", "PAD_C", "CARRIES")}
            _programs().row_sums[_grid(B * H, T, "BLOCK_M")](
                *averages, d_out, d_out_c, delta, T, H, *given, **widths, BLOCK_M=64
            )
        else:
            _programs().query_gradient[_grid(B * H, T, "BLOCK_M")](
                q, k, v, carried, slopes, *given_bias, *averages, lse, d_out, d_out_c, delta,
                dq, d_far, scale, *_sizes(q, k), *strides, **constants,
                CORRECTS=in_pieces or keys_learn, FAR_LEARNS=in_pieces,
            )  # fmt: skip
        # While tiles are tried this argument is zeroed: it must not be a finished dq.
        summed = dq if one_pass else dq.new_empty(0)
        _programs().key_gradient[_grid(B * H, S, "BLOCK_N")](
            q, k, v, carried, slopes, *given_bias, lse, d_out, d_out_c, delta, summed, dk, dv,
            dc, d_keys, d_table, d_level, d_rise, scale, *_sizes(q, k), *strides, **constants,
            CARRIED_LEARNS=dc is not None, KEYS_LEARN=keys_learn, ONE_PASS=one_pass, OWNS=owns,
        )  # fmt: skip
    dq = dq.to(q.dtype)
    if K < H:
        dk, dv = (x.unflatten(2, (K, H // K)).sum(3).to(q.dtype) for x in (dk, dv))
    if dc is None or carried is None:
        dc = q.new_empty(0)
    else:
        dc = dc.sum_to_size(_shape_of_carried(carried, S)).to(q.dtype)
    if d_keys is None or key_bias is None:
        d_keys = q.new_empty(0)
    else:
        d_keys = d_keys.transpose(1, 2).to(key_bias.dtype).contiguous()
    d_tables = [] if d_table is None else [d_table.sum((0, 2)).sum_to_size(tables[0].shape)]
    if d_far is not None and d_level is not None and d_rise is not None:
        d_tables += [d_far.sum((0, 1)), torch.zeros_like(tables[2])]
        d_tables += [d_level.sum((0, 2)), d_rise.sum((0, 2))]
    return dq, dk, dv, dc, d_keys, d_tables


@_gradients.register_fake
def _gradients_of(
    d_out: Tensor | None,
    d_out_c: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    carried: Tensor | None,
    slopes: Tensor | None,
    key_bias: Tensor | None,
    tables: Sequence[Tensor],
    out: Tensor,
    out_c: Tensor,
    lse: Tensor,
    scale: float,
    carried_learns: bool,
    keys_learn: bool,
    tables_learn: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, list[Tensor]]:
    dk, dv = (torch.empty(x.shape, dtype=q.dtype, device=q.device) for x in (k, v))
    dc = q.new_empty(0)
    if carried_learns and carried is not None and d_out_c is not None:
        dc = q.new_empty(_shape_of_carried(carried, k.shape[1]))
    d_keys = q.new_empty(0)
    if keys_learn and key_bias is not None:
        d_keys = key_bias.new_empty(key_bias.shape)
    d_tables = [torch.empty_like(x) for x in tables] if tables_learn else []
    return torch.empty_like(out), dk, dv, dc, d_keys, d_tables


def _shape_of_carried(carried: Tensor, S: int) -> tuple[int, ...]:
    return carried.shape[0], S, carried.shape[2], carried.shape[-1]


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    """For the backward pass: the tensors, and which of them there are."""
    *tensors, tables, ctx.scale = inputs
    ctx.save_for_backward(*tensors, *output, *tables)
    ctx.mark_non_differentiable(output[2])
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, d_out: Tensor | None, d_out_c: Tensor | None, _: Any) -> tuple[Any, ...]:
    """Of :func:`_attention`, which cannot be differentiated again."""
    q, k, v, carried, slopes, key_bias, out, out_c, lse, *tables = ctx.saved_tensors
    if carried is None:
        d_out_c = None
    asked = ctx.needs_input_grad
    learn = asked[3] and d_out_c is not None, asked[5], any(asked[6])
    bias = slopes, key_bias, tables
    dq, dk, dv, dc, d_keys, d_tables = _gradients(
        d_out, d_out_c, q, k, v, carried, *bias, out, out_c, lse, ctx.scale, *learn
    )
    dc, d_keys = dc if learn[0] else None, d_keys if learn[1] else None
    d_tables = d_tables if learn[2] else [None] * len(tables)
    return dq, dk, dv, dc, None, d_keys, d_tables, None


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


def _tables(
    by_distance: Tensor | None, piecewise: Piecewise | None, q: Tensor, k: Tensor
) -> list[Tensor]:
    """A bias as the programs read it: none, one, or five tables, each contiguous and in fp32."""
    (T, H), S = q.shape[1:3], k.shape[1]
    tables: list[Tensor] = []
    if by_distance is not None:
        assert by_distance.shape[0] == H, "one row of the table for every query head"
        assert by_distance.shape[1] >= S, "one entry for every distance"
        tables = [by_distance[:, :S]]
    if piecewise is not None:
        near, far, bends, level, rise = piecewise
        assert len(near) >= S, "one entry for every distance"
        assert len(far) == T, "one factor for every query"
        assert level.shape == rise.shape == (H, len(bends) + 1), "pieces end at bends"
        tables = [near[None, :S], far, bends.detach(), level, rise]
    return [x.to(q.device, torch.float32).contiguous() for x in tables]


def _keys(key_bias: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """A key bias as the programs read it: two tensors (B, H, S), in units of ln 2."""
    if key_bias is None:
        return None, None
    return in_two((key_bias.double() * LOG2E).transpose(1, 2).contiguous())


def _five(tables: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
    """The tables, and None for those that are not there."""
    return *tables, *[None] * (5 - len(tables))


def _constants(
    q: Tensor,
    carried: Tensor | None,
    slopes: Tensor | None,
    key_bias: Tensor | None,
    tables: Sequence[Tensor],
) -> dict[str, Any]:
    """The compile-time constants; widths are powers of two, at least the 16 of a tensor core."""
    D, C = q.shape[-1], 0 if carried is None else carried.shape[-1]
    bends = tables[2].numel() if len(tables) == 5 else 0
    return {
        "D": D,
        "C": C,
        "PAD_D": runtime.padded(D),
        "PAD_C": runtime.padded(C),
        "CARRIES": carried is not None,
        "SLOPED": slopes is not None,
        "KEYED": key_bias is not None,
        "BY_DISTANCE": bool(tables),
        "BENDS": bends,
        "PAD_K": runtime.padded(bends + 1),
        "PRECISION": precision(q.dtype),
    }


def precision(dtype: torch.dtype, beside: torch.dtype = torch.float32) -> str:
    """How tensor cores multiply this type: fp32 in three products, unless torch may round it.

    The three are of TF32 numbers, 2^-22 from exact. Where what is ``beside`` it has 16 bits, they
    are of bf16 numbers, which is twice as fast and 2^-16 from exact: 128 times as close as the
    rounding of bf16.
    """
    if dtype != torch.float32 or torch.backends.cuda.matmul.fp32_precision == "tf32":
        return "tf32"
    return "tf32x3" if beside == torch.float32 else "bf16x3"


def _programs() -> Any:
    from tape_exp.models.kernels import causal_triton

    return causal_triton
