"""The Triton programs of :mod:`tape_exp.models.kernels.causal`; importing this module needs triton.

Shape suffixes as in :mod:`tape_exp.models.attention`: B batch, T queries, S keys, H query heads, D
head dimension, C width of what is carried. An argument is named after the tensor it points to,
``q_b, q_t, q_h`` are its strides in elements, and the last dimension of every tensor is contiguous.
What a program writes is contiguous altogether: (B, T, H, D), (B, H, T) …

Every program owns one block of queries or keys of one head and walks over the blocks of the other
side in two phases, unrolled by ``static_range``: first those on the diagonal of the causal mask,
which are the only ones to compute it, then the inner ones, which it leaves whole. Blocks that it
hides are never visited. The diagonal is never empty, and says so by ``assume``: were the first
loop's accumulators to be set by a path around it, Hopper's asynchronous products would be
serialised. Logits are kept in units of ln 2, since exp2 is what the hardware has::

    z = log2(e) (scale · q kᵀ + bias),   lse = log2 Σ 2^z,   p = 2^(z - lse)

The bias is ALiBi's, or one of :mod:`tape_exp.models.kernels.bias_triton`: ``table`` by distance, to
which the other arguments belong where it BENDS: ``far`` of the queries, ``bends`` (K,), and of each
head ``level`` and ``rise`` (K + 1,) of the pieces. Where KEYED, keys have a bias besides: ``high``
and ``low`` (B, H, S), see :func:`~tape_exp.models.kernels.causal.in_two`, in units of ln 2.

A product whose fp32 inputs must not lose their lower bits has PRECISION ``tf32x3``: three products
on the tensor cores.
"""

import torch
import triton
import triton.language as tl

from tape_exp.models.kernels.bias_triton import (
    LOG2E,
    add_bent,
    along_diagonals,
    bends_below,
    gradients,
    looked_up,
    times_rise,
)
from tape_exp.models.kernels.tiles_triton import (
    INTERPRETED,
    add,
    product,
    put,
    tile,
    tuned,
)

# Lengths differ from batch to batch; programs specialised on their divisibility would be compiled
# over and over.
UNSPECIALISED = ("T", "S", "bucket")


def owned_keys(dtype: torch.dtype, bends: int, width: int) -> int:
    """The keys of a program that keeps sums of its own: of a tile that always fits.

    With bends, ptxas spills most of 64 keys, but for heads of at most 64 on Hopper and Blackwell's
    data centre GPUs (9.x and 10.x), whose products leave registers free.
    """
    if INTERPRETED:
        return 16
    roomy = triton.runtime.driver.active.get_current_target().arch // 10 in (9, 10)
    return 32 if dtype == torch.float32 or (bends and not (roomy and width <= 64)) else 64


@tuned(
    "BLOCK_M", "DC", 2,
    (128, 128, 8, 2), (128, 64, 8, 3), (128, 64, 4, 3), (128, 32, 8, 3),
    (64, 64, 4, 3), (64, 32, 4, 2), (32, 32, 4, 2),
)  # fmt: skip
@triton.jit(do_not_specialize=UNSPECIALISED)
def attention(
    q, k, v, c, slopes, high, low, table, far, bends, level, rise, out, out_c, lse,
    scale, T, S, H, group, bucket,
    q_b, q_t, q_h, k_b, k_s, k_h, v_b, v_s, v_h, c_b, c_s, c_h,
    D: tl.constexpr, C: tl.constexpr, PAD_D: tl.constexpr, PAD_C: tl.constexpr,
    CARRIES: tl.constexpr, SLOPED: tl.constexpr, KEYED: tl.constexpr, BY_DISTANCE: tl.constexpr,
    BENDS: tl.constexpr, PAD_K: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """out = p v, out_c = p c and lse, for one block of queries of one head, by online softmax."""
    past = S - T
    blocks = tl.cdiv(T, BLOCK_M)
    pair = tl.cast(tl.program_id(0) // blocks, tl.int64)
    m0 = (
        blocks - 1 - tl.program_id(0) % blocks
    ) * BLOCK_M  # the last queries see the most keys: they start first
    b = pair // H
    h = pair % H
    rows = m0 + tl.arange(0, BLOCK_M)
    q_MD = tile(q + b * q_b + h * q_h, m0, T, q_t, BLOCK_M, D, PAD_D, True)
    k += b * k_b + h // group * k_h
    v += b * v_b + h // group * v_h
    if CARRIES:
        c += b * c_b + h * c_h
    if SLOPED:
        slope = tl.load(slopes + h) * LOG2E
    if KEYED:
        high += pair * S
        low += pair * S
        own_M = tl.load(high + rows + past, mask=rows < T, other=0.0)
    if BENDS:
        far_M = tl.load(far + rows, mask=rows < T, other=0.0)
        ends = tl.load(far + tl.minimum(m0 + BLOCK_M, T) - 1), tl.load(far + m0)
        level += h * (BENDS + 1)
        rise += h * (BENDS + 1)
        pieces = tl.arange(0, PAD_K)
        bends_K = tl.load(bends + pieces, mask=pieces < BENDS, other=float("inf"))
    elif BY_DISTANCE:
        table += h * S
    z_scale = scale * LOG2E

    top_M = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    sum_M = tl.zeros((BLOCK_M,), tl.float32)
    out_MD = tl.zeros((BLOCK_M, PAD_D), tl.float32)
    out_MC = tl.zeros((BLOCK_M, PAD_C), tl.float32)
    whole = (m0 + past) // BLOCK_N * BLOCK_N
    seen = tl.minimum(m0 + BLOCK_M, T) + past
    tl.assume(whole < seen)
    for inner in tl.static_range(2):
        for n0 in range(0 if inner else whole, whole if inner else seen, BLOCK_N):
            columns = n0 + tl.arange(0, BLOCK_N)
            k_ND = tile(k, n0, S, k_s, BLOCK_N, D, PAD_D, not inner)
            z = product(q_MD, tl.trans(k_ND), tl.zeros((BLOCK_M, BLOCK_N), tl.float32), PRECISION)
            if SLOPED or BY_DISTANCE or KEYED:
                z = z * z_scale
            if SLOPED:
                z += slope * (
                    columns.to(tl.float32)[None, :] - (rows + past).to(tl.float32)[:, None]
                )
            if KEYED:
                high_N = tl.load(high + columns, mask=columns < S, other=0.0)
                low_N = tl.load(low + columns, mask=columns < S, other=0.0)
                z += (high_N[None, :] - own_M[:, None]) + low_N[None, :]
            if BY_DISTANCE:
                near = looked_up(table, (rows + past)[:, None] - columns[None, :], S)
                if BENDS:
                    last = m0 + BLOCK_M - 1 + past - n0
                    below = bends_below(table, ends, m0 + past - n0 - BLOCK_N + 1, last, S, bends_K)
                    z = add_bent(z, near * far_M[:, None], below, bends, level, rise)
                else:
                    z += near * LOG2E
            if not inner:
                z = tl.where(columns[None, :] <= (rows + past)[:, None], z, float("-inf"))
            # Every row sees a key in the first block visited, so that `higher` is finite from there
            # on.
            if SLOPED or BY_DISTANCE or KEYED:
                higher_M = tl.maximum(top_M, tl.max(z, 1))
                p = tl.exp2(z - higher_M[:, None])
            else:  # scaled in the exponent: one fused multiply-add an entry
                higher_M = tl.maximum(top_M, tl.max(z, 1) * z_scale)
                p = tl.exp2(z * z_scale - higher_M[:, None])
            shrink_M = tl.exp2(top_M - higher_M)
            sum_M = sum_M * shrink_M + tl.sum(p, 1)
            top_M = higher_M
            out_MD *= shrink_M[:, None]
            if CARRIES:
                out_MC *= shrink_M[:, None]
            v_ND = tile(v, n0, S, v_s, BLOCK_N, D, PAD_D, not inner)
            p = p.to(v_ND.dtype)
            out_MD = product(p, v_ND, out_MD, PRECISION)
            if CARRIES:
                c_NC = tile(c, n0, S, c_s, BLOCK_N, C, PAD_C, not inner)
                out_MC = product(p, c_NC, out_MC, PRECISION)

    tl.store(lse + pair * T + rows, top_M + tl.log2(sum_M), mask=rows < T)
    put(out + (b * T * H + h) * D, m0, T, H * D, out_MD / sum_M[:, None], BLOCK_M, D, PAD_D)
    if CARRIES:
        put(out_c + (b * T * H + h) * C, m0, T, H * C, out_MC / sum_M[:, None], BLOCK_M, C, PAD_C)


@tuned(
    "BLOCK_M", "D", 3,
    (128, 64, 8, 2), (128, 32, 8, 2), (64, 64, 4, 2), (64, 32, 8, 2), (64, 32, 4, 2),
    (32, 32, 4, 1),
)  # fmt: skip
@triton.jit(do_not_specialize=UNSPECIALISED)
def query_gradient(
    q, k, v, c, slopes, high, low, table, far, bends, level, rise, out, out_c, lse, d_out, d_out_c,
    delta, dq, d_far, scale, T, S, H, group, bucket,
    q_b, q_t, q_h, k_b, k_s, k_h, v_b, v_s, v_h, c_b, c_s, c_h, do_b, do_t, do_h, dc_b, dc_t, dc_h,
    D: tl.constexpr, C: tl.constexpr, PAD_D: tl.constexpr, PAD_C: tl.constexpr,
    CARRIES: tl.constexpr, SLOPED: tl.constexpr, KEYED: tl.constexpr, BY_DISTANCE: tl.constexpr,
    BENDS: tl.constexpr, PAD_K: tl.constexpr, CORRECTS: tl.constexpr, FAR_LEARNS: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """dq for one block of queries of one head, and delta = rowsum(d_out ∘ out + d_out_c ∘ out_c),
    which dk needs as well.

    dp = d_out vᵀ + d_out_c cᵀ,  dz = p ∘ (dp - delta),  dq = scale · dz k.

    A sum of dz over keys is 0. But delta is that of a rounded out, and what a bend multiplies is
    often the same for most keys, so that this error would be the greater part of its gradient; so
    it would be of what sums the gradients of a key bias over tokens. Where it CORRECTS, the sum is
    therefore taken and added to delta, for dk and the bias. Where FAR_LEARNS, the gradient of far
    is written to d_far (B, H, T).
    """
    past = S - T
    blocks = tl.cdiv(T, BLOCK_M)
    pair = tl.cast(tl.program_id(0) // blocks, tl.int64)
    m0 = (blocks - 1 - tl.program_id(0) % blocks) * BLOCK_M
    b = pair // H
    h = pair % H
    rows = m0 + tl.arange(0, BLOCK_M)
    q_MD = tile(q + b * q_b + h * q_h, m0, T, q_t, BLOCK_M, D, PAD_D, True)
    do_MD = tile(d_out + b * do_b + h * do_h, m0, T, do_t, BLOCK_M, D, PAD_D, True)
    out_MD = tile(out + (b * T * H + h) * D, m0, T, H * D, BLOCK_M, D, PAD_D, True)
    delta_M = tl.sum(do_MD.to(tl.float32) * out_MD.to(tl.float32), 1)
    if CARRIES:
        dc_MC = tile(d_out_c + b * dc_b + h * dc_h, m0, T, dc_t, BLOCK_M, C, PAD_C, True)
        out_MC = tile(out_c + (b * T * H + h) * C, m0, T, H * C, BLOCK_M, C, PAD_C, True)
        delta_M += tl.sum(dc_MC.to(tl.float32) * out_MC.to(tl.float32), 1)
        c += b * c_b + h * c_h
    if not CORRECTS:
        tl.store(delta + pair * T + rows, delta_M, mask=rows < T)
    # p = 0 in rows that do not exist.
    lse_M = tl.load(lse + pair * T + rows, mask=rows < T, other=float("inf"))
    k += b * k_b + h // group * k_h
    v += b * v_b + h // group * v_h
    if SLOPED:
        slope = tl.load(slopes + h) * LOG2E
    if KEYED:
        high += pair * S
        low += pair * S
        own_M = tl.load(high + rows + past, mask=rows < T, other=0.0)
    if BENDS:
        far_M = tl.load(far + rows, mask=rows < T, other=0.0)
        ends = tl.load(far + tl.minimum(m0 + BLOCK_M, T) - 1), tl.load(far + m0)
        level += h * (BENDS + 1)
        rise += h * (BENDS + 1)
        pieces = tl.arange(0, PAD_K)
        bends_K = tl.load(bends + pieces, mask=pieces < BENDS, other=float("inf"))
    elif BY_DISTANCE:
        table += h * S
    z_scale = scale * LOG2E

    dq_MD = tl.zeros((BLOCK_M, PAD_D), tl.float32)
    if CORRECTS:
        excess_M = tl.zeros((BLOCK_M,), tl.float32)
    if FAR_LEARNS:
        d_far_M = tl.zeros((BLOCK_M,), tl.float32)
        mean_M = tl.zeros((BLOCK_M,), tl.float32)
    whole = (m0 + past) // BLOCK_N * BLOCK_N
    seen = tl.minimum(m0 + BLOCK_M, T) + past
    tl.assume(whole < seen)
    for inner in tl.static_range(2):
        for n0 in range(0 if inner else whole, whole if inner else seen, BLOCK_N):
            columns = n0 + tl.arange(0, BLOCK_N)
            k_ND = tile(k, n0, S, k_s, BLOCK_N, D, PAD_D, not inner)
            v_ND = tile(v, n0, S, v_s, BLOCK_N, D, PAD_D, not inner)
            z = (
                product(q_MD, tl.trans(k_ND), tl.zeros((BLOCK_M, BLOCK_N), tl.float32), PRECISION)
                * z_scale
            )
            if SLOPED:
                z += slope * (
                    columns.to(tl.float32)[None, :] - (rows + past).to(tl.float32)[:, None]
                )
            if KEYED:
                high_N = tl.load(high + columns, mask=columns < S, other=0.0)
                low_N = tl.load(low + columns, mask=columns < S, other=0.0)
                z += (high_N[None, :] - own_M[:, None]) + low_N[None, :]
            if BY_DISTANCE:
                near = looked_up(table, (rows + past)[:, None] - columns[None, :], S)
                if BENDS:
                    last = m0 + BLOCK_M - 1 + past - n0
                    below = bends_below(table, ends, m0 + past - n0 - BLOCK_N + 1, last, S, bends_K)
                    z = add_bent(z, near * far_M[:, None], below, bends, level, rise)
                else:
                    z += near * LOG2E
            if not inner:
                z = tl.where(columns[None, :] <= (rows + past)[:, None], z, float("-inf"))
            p = tl.exp2(z - lse_M[:, None])
            dp = product(do_MD, tl.trans(v_ND), tl.zeros((BLOCK_M, BLOCK_N), tl.float32), PRECISION)
            if CARRIES:
                c_NC = tile(c, n0, S, c_s, BLOCK_N, C, PAD_C, not inner)
                dp = product(dc_MC, tl.trans(c_NC), dp, PRECISION)
            dz = p * (dp - delta_M[:, None])
            dq_MD = product(dz.to(k_ND.dtype), k_ND, dq_MD, PRECISION)
            if CORRECTS:
                excess_M += tl.sum(dz, 1)
            if FAR_LEARNS:
                by_far = times_rise(near, near * far_M[:, None], below, bends, rise)
                d_far_M += tl.sum(dz * by_far, 1)
                mean_M += tl.sum(p * by_far, 1)

    put(dq + (b * T * H + h) * D, m0, T, H * D, dq_MD * scale, BLOCK_M, D, PAD_D)
    if CORRECTS:
        tl.store(delta + pair * T + rows, delta_M + excess_M, mask=rows < T)
    if FAR_LEARNS:
        tl.store(d_far + pair * T + rows, d_far_M - excess_M * mean_M, mask=rows < T)


@triton.jit(do_not_specialize=("T",))
def row_sums(
    out, out_c, d_out, d_out_c, delta, T, H,
    do_b, do_t, do_h, dc_b, dc_t, dc_h,
    D: tl.constexpr, C: tl.constexpr, PAD_D: tl.constexpr, PAD_C: tl.constexpr,
    CARRIES: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """delta as in :func:`query_gradient`, for one block of queries of one head."""
    blocks = tl.cdiv(T, BLOCK_M)
    pair = tl.cast(tl.program_id(0) // blocks, tl.int64)
    m0 = tl.program_id(0) % blocks * BLOCK_M
    b = pair // H
    h = pair % H
    rows = m0 + tl.arange(0, BLOCK_M)
    do_MD = tile(d_out + b * do_b + h * do_h, m0, T, do_t, BLOCK_M, D, PAD_D, True)
    out_MD = tile(out + (b * T * H + h) * D, m0, T, H * D, BLOCK_M, D, PAD_D, True)
    delta_M = tl.sum(do_MD.to(tl.float32) * out_MD.to(tl.float32), 1)
    if CARRIES:
        dc_MC = tile(d_out_c + b * dc_b + h * dc_h, m0, T, dc_t, BLOCK_M, C, PAD_C, True)
        out_MC = tile(out_c + (b * T * H + h) * C, m0, T, H * C, BLOCK_M, C, PAD_C, True)
        delta_M += tl.sum(dc_MC.to(tl.float32) * out_MC.to(tl.float32), 1)
    tl.store(delta + pair * T + rows, delta_M, mask=rows < T)


@tuned(
    "BLOCK_N", "DDL", 3,
    (64, 128, 8, 2), (32, 128, 8, 2), (64, 64, 8, 2), (32, 64, 8, 2),
    (64, 64, 4, 2), (32, 64, 4, 2), (64, 32, 8, 2), (64, 32, 4, 2),
    (32, 32, 4, 1), (16, 32, 4, 1),
    adds_to=("dq",),
)  # fmt: skip
@triton.jit(do_not_specialize=UNSPECIALISED)
def key_gradient(
    q, k, v, c, slopes, high, low, table, far, bends, level, rise, lse, d_out, d_out_c, delta,
    dq, dk, dv, dc, d_keys, d_table, d_level, d_rise, scale, T, S, H, group, bucket,
    q_b, q_t, q_h, k_b, k_s, k_h, v_b, v_s, v_h, c_b, c_s, c_h, do_b, do_t, do_h, dc_b, dc_t, dc_h,
    D: tl.constexpr, C: tl.constexpr, PAD_D: tl.constexpr, PAD_C: tl.constexpr,
    CARRIES: tl.constexpr, CARRIED_LEARNS: tl.constexpr, SLOPED: tl.constexpr,
    KEYED: tl.constexpr, KEYS_LEARN: tl.constexpr, BY_DISTANCE: tl.constexpr, BENDS: tl.constexpr,
    PAD_K: tl.constexpr, OWNS: tl.constexpr, PRECISION: tl.constexpr, ONE_PASS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """dk, dv and dc for one block of keys of one query head; transposed throughout: keys are the
    rows. In ONE_PASS also what these keys add to dq, which is fp32.

    dv = pᵀ d_out,  dc = pᵀ d_out_c,  dk = scale · dzᵀ q, with dz as in :func:`query_gradient`; its
    sum over queries is the gradient of a key's bias, which where KEYS_LEARN goes to d_keys (B, H,
    S).
    Where OWNS, the sums for the table at each distance go to d_table (B, H, blocks, S), and those
    for the pieces of a function to d_level and d_rise (B, H, blocks, K + 1).
    """
    past = S - T
    blocks = tl.cdiv(S, BLOCK_N)
    pair = tl.cast(tl.program_id(0) // blocks, tl.int64)
    # The first keys are seen by the most queries: they start first.
    n0 = tl.program_id(0) % blocks * BLOCK_N
    b = pair // H
    h = pair % H
    columns = n0 + tl.arange(0, BLOCK_N)
    k_ND = tile(k + b * k_b + h // group * k_h, n0, S, k_s, BLOCK_N, D, PAD_D, True)
    v_ND = tile(v + b * v_b + h // group * v_h, n0, S, v_s, BLOCK_N, D, PAD_D, True)
    q += b * q_b + h * q_h
    d_out += b * do_b + h * do_h
    if CARRIES:
        c_NC = tile(c + b * c_b + h * c_h, n0, S, c_s, BLOCK_N, C, PAD_C, True)
        d_out_c += b * dc_b + h * dc_h
    lse += pair * T
    delta += pair * T
    if ONE_PASS:
        dq += (b * T * H + h) * D
    if SLOPED:
        slope = tl.load(slopes + h) * LOG2E
    if KEYED:
        high += pair * S
        low += pair * S
        high_N = tl.load(high + columns, mask=columns < S, other=0.0)
        low_N = tl.load(low + columns, mask=columns < S, other=0.0)
    if KEYS_LEARN:
        d_keys_N = tl.zeros((BLOCK_N,), tl.float32)
    if BENDS:
        level += h * (BENDS + 1)
        rise += h * (BENDS + 1)
        pieces = tl.arange(0, PAD_K)
        bends_K = tl.load(bends + pieces, mask=pieces < BENDS, other=float("inf"))
    elif BY_DISTANCE:
        table += h * S
    z_scale = scale * LOG2E

    dk_ND = tl.zeros((BLOCK_N, PAD_D), tl.float32)
    dv_ND = tl.zeros((BLOCK_N, PAD_D), tl.float32)
    dc_NC = tl.zeros((BLOCK_N, PAD_C), tl.float32)
    if OWNS:
        d_table += (pair * blocks + n0 // BLOCK_N) * S
        lags = tl.arange(0, BLOCK_M)
        # Of the distances that this block of queries shares with the next one.
        shared_M = tl.zeros((BLOCK_M,), tl.float32)
        d_level_K = tl.zeros((PAD_K,), tl.float32)
        d_rise_K = tl.zeros((PAD_K,), tl.float32)
    first = tl.maximum(n0 - past, 0) // BLOCK_M * BLOCK_M
    whole = tl.minimum(tl.cdiv(tl.maximum(n0 + BLOCK_N - 1 - past, 1), BLOCK_M) * BLOCK_M, T)
    tl.assume(first < whole)
    for inner in tl.static_range(2):
        for m0 in range(whole if inner else first, T if inner else whole, BLOCK_M):
            rows = m0 + tl.arange(0, BLOCK_M)
            q_MD = tile(q, m0, T, q_t, BLOCK_M, D, PAD_D, True)
            do_MD = tile(d_out, m0, T, do_t, BLOCK_M, D, PAD_D, True)
            # p = 0 in rows that do not exist.
            lse_M = tl.load(lse + rows, mask=rows < T, other=float("inf"))
            delta_M = tl.load(delta + rows, mask=rows < T, other=0.0)
            z = (
                product(k_ND, tl.trans(q_MD), tl.zeros((BLOCK_N, BLOCK_M), tl.float32), PRECISION)
                * z_scale
            )
            if SLOPED:
                z += slope * (
                    columns.to(tl.float32)[:, None] - (rows + past).to(tl.float32)[None, :]
                )
            if KEYED:
                own_M = tl.load(high + rows + past, mask=rows < T, other=0.0)
                z += (high_N[:, None] - own_M[None, :]) + low_N[:, None]
            if BY_DISTANCE:
                near = looked_up(table, (rows + past)[None, :] - columns[:, None], S)
                if BENDS:
                    far_M = tl.load(far + rows, mask=rows < T, other=0.0)
                    ends = tl.load(far + tl.minimum(m0 + BLOCK_M, T) - 1), tl.load(far + m0)
                    last = m0 + BLOCK_M - 1 + past - n0
                    below = bends_below(table, ends, m0 + past - n0 - BLOCK_N + 1, last, S, bends_K)
                    x = near * far_M[None, :]
                    z = add_bent(z, x, below, bends, level, rise)
                else:
                    z += near * LOG2E
            if not inner:
                z = tl.where(columns[:, None] <= (rows + past)[None, :], z, float("-inf"))
            p = tl.exp2(z - lse_M[None, :])
            dv_ND = product(p.to(do_MD.dtype), do_MD, dv_ND, PRECISION)
            dp = product(v_ND, tl.trans(do_MD), tl.zeros((BLOCK_N, BLOCK_M), tl.float32), PRECISION)
            if CARRIES:
                do_MC = tile(d_out_c, m0, T, dc_t, BLOCK_M, C, PAD_C, True)
                dp = product(c_NC, tl.trans(do_MC), dp, PRECISION)
                if CARRIED_LEARNS:
                    dc_NC = product(p.to(do_MC.dtype), do_MC, dc_NC, PRECISION)
            dz = p * (dp - delta_M[None, :])
            dk_ND = product(dz.to(q_MD.dtype), q_MD, dk_ND, PRECISION)
            if KEYS_LEARN:
                d_keys_N += tl.sum(dz, 1)
            if ONE_PASS:
                dq_MD = tl.zeros((BLOCK_M, PAD_D), tl.float32)
                dq_MD = product(tl.trans(dz.to(k_ND.dtype)), k_ND, dq_MD, PRECISION)
                add(dq, m0, T, H * D, dq_MD * scale, BLOCK_M, D, PAD_D)
            if OWNS:
                d_near = dz
                if BENDS:
                    d_x, d_level_K, d_rise_K = gradients(
                        dz, x, below, bends, rise, d_level_K, d_rise_K, PAD_K
                    )
                    d_near = d_x * far_M[None, :]
                later_M, earlier_M = along_diagonals(d_near, BLOCK_N, BLOCK_M)
                distance = m0 + past - n0 - BLOCK_M + lags
                tl.store(d_table + distance, shared_M + earlier_M, mask=distance >= 0)
                shared_M = later_M

    put(dk + (b * S * H + h) * D, n0, S, H * D, dk_ND * scale, BLOCK_N, D, PAD_D)
    put(dv + (b * S * H + h) * D, n0, S, H * D, dv_ND, BLOCK_N, D, PAD_D)
    if CARRIED_LEARNS:
        put(dc + (b * S * H + h) * C, n0, S, H * C, dc_NC, BLOCK_N, C, PAD_C)
    if KEYS_LEARN:
        tl.store(d_keys + pair * S + columns, d_keys_N, mask=columns < S)
    if OWNS:
        distance = tl.cdiv(T, BLOCK_M) * BLOCK_M + past - n0 - BLOCK_M + lags
        tl.store(d_table + distance, shared_M, mask=(distance >= 0) & (distance < S))
        if BENDS:
            piece = (pair * blocks + n0 // BLOCK_N) * (BENDS + 1) + pieces
            tl.store(d_level + piece, d_level_K, mask=pieces <= BENDS)
            tl.store(d_rise + piece, d_rise_K, mask=pieces <= BENDS)
