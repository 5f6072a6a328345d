"""The Triton programs of :mod:`tape_exp.models.kernels.update`; importing this module needs triton.

A program takes TOKENS tokens, one after the other, each a matrix of H heads times M complex
numbers: numbers 0 … M - 1 of a row are the real parts, the next M the imaginary ones. Rows of k are
those of the key heads, of which each serves GROUP query heads. An argument is named after the
tensor it points to, ``E_b, E_t, E_h`` are its strides in elements, and the last dimension of every
tensor is contiguous. What a program writes is contiguous altogether. Of one token::

    Z = E + P Ẽ            E' = Z + F Z           y_q = q · E'           y_k = k · E'
    G = dE' + dcopy + dy_q · q̄ + dy_k · k̄         dq = dy_q · Ē'         dk = dy_k · Ē'
    dF = G Zᵀ              dE = G + Fᵀ G          dẼ = Pᵀ dE             dP = dE Ẽᵀ

where · is the product of complex numbers, and G the gradient of E', which also was copied.
"""

import triton
import triton.language as tl

from tape_exp.models.kernels.rotation_triton import times
from tape_exp.models.kernels.tiles_triton import product

# Lengths differ from batch to batch; programs specialised on their divisibility would be compiled
# over and over.
UNSPECIALISED = ("tokens", "T")


@triton.jit
def part(
    base, stride, first, H: tl.constexpr, N: tl.constexpr, PAD_H: tl.constexpr, CHUNK: tl.constexpr,
    GROUP: tl.constexpr = 1,
):  # fmt: skip
    """Columns first … first + CHUNK of N, of the H rows at ``base``, each of which is taken GROUP
    times: (PAD_H, CHUNK) fp32, zero beyond.
    """
    rows = tl.arange(0, PAD_H)[:, None]
    columns = first + tl.arange(0, CHUNK)[None, :]
    inside = (rows < H) & (columns < N)
    return tl.load(base + rows // GROUP * stride + columns, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def put_part(
    base, values, stride, first,
    H: tl.constexpr, N: tl.constexpr, PAD_H: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Write them to the H rows at ``base``."""
    rows = tl.arange(0, PAD_H)[:, None]
    columns = first + tl.arange(0, CHUNK)[None, :]
    inside = (rows < H) & (columns < N)
    to = base + rows * stride + columns
    tl.store(to, values.to(base.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=UNSPECIALISED)
def update(
    q, k, E, attended, p, F, q_out, k_out, out, copy, tokens, T,
    q_b, q_t, q_h, k_b, k_t, k_h, E_b, E_t, E_h, a_b, a_t, a_h,
    H: tl.constexpr, M: tl.constexpr, PAD_H: tl.constexpr, CHUNK: tl.constexpr,
    GROUP: tl.constexpr, ATTENDS: tl.constexpr, MAPS: tl.constexpr, PRECISION: tl.constexpr,
    TOKENS: tl.constexpr, KEEPS: tl.constexpr, COPIES: tl.constexpr,
):  # fmt: skip
    """q and k of TOKENS tokens times E'; out = E' where it KEEPS it, and a copy where it COPIES."""
    if ATTENDS:
        p_HH = part(p, H, 0, H, H, PAD_H, PAD_H)
    first = tl.program_id(0) * TOKENS
    for n in range(first, tl.minimum(first + TOKENS, tokens)):
        b = tl.cast(n // T, tl.int64)
        t = tl.cast(n % T, tl.int64)
        own = tl.cast(n, tl.int64) * H * 2 * M
        if MAPS:
            f_HH = part(F + tl.cast(n, tl.int64) * H * H, H, 0, H, H, PAD_H, PAD_H)
        for c in range(0, M, CHUNK):
            at = E + b * E_b + t * E_t
            real = part(at, E_h, c, H, M, PAD_H, CHUNK)
            imaginary = part(at + M, E_h, c, H, M, PAD_H, CHUNK)
            if ATTENDS:
                at = attended + b * a_b + t * a_t
                real = product(p_HH, part(at, a_h, c, H, M, PAD_H, CHUNK), real, PRECISION)
                imaginary = product(
                    p_HH, part(at + M, a_h, c, H, M, PAD_H, CHUNK), imaginary, PRECISION
                )
            if MAPS:
                real = product(f_HH, real, real, PRECISION)
                imaginary = product(f_HH, imaginary, imaginary, PRECISION)
            if KEEPS:
                put_part(out + own, real, 2 * M, c, H, M, PAD_H, CHUNK)
                put_part(out + own + M, imaginary, 2 * M, c, H, M, PAD_H, CHUNK)
            if COPIES:
                put_part(copy + own, real, 2 * M, c, H, M, PAD_H, CHUNK)
                put_part(copy + own + M, imaginary, 2 * M, c, H, M, PAD_H, CHUNK)

            at = q + b * q_b + t * q_t
            x = part(at, q_h, c, H, M, PAD_H, CHUNK)
            y = part(at + M, q_h, c, H, M, PAD_H, CHUNK)
            x, y = times(x, y, real, imaginary)
            put_part(q_out + own, x, 2 * M, c, H, M, PAD_H, CHUNK)
            put_part(q_out + own + M, y, 2 * M, c, H, M, PAD_H, CHUNK)

            at = k + b * k_b + t * k_t
            x = part(at, k_h, c, H, M, PAD_H, CHUNK, GROUP)
            y = part(at + M, k_h, c, H, M, PAD_H, CHUNK, GROUP)
            x, y = times(x, y, real, imaginary)
            put_part(k_out + own, x, 2 * M, c, H, M, PAD_H, CHUNK)
            put_part(k_out + own + M, y, 2 * M, c, H, M, PAD_H, CHUNK)


@triton.jit(do_not_specialize=UNSPECIALISED)
def update_gradient(
    d_q_out, d_k_out, d_out, d_copy, q, k, E, attended, p, F, dq, dk, dE, d_attended, dp, dF,
    tokens, T, dqo_b, dqo_t, dqo_h, dko_b, dko_t, dko_h, g_b, g_t, g_h, c_b, c_t, c_h,
    q_b, q_t, q_h, k_b, k_t, k_h, E_b, E_t, E_h, a_b, a_t, a_h,
    H: tl.constexpr, M: tl.constexpr, PAD_H: tl.constexpr, CHUNK: tl.constexpr,
    GROUP: tl.constexpr, ATTENDS: tl.constexpr, MAPS: tl.constexpr, PRECISION: tl.constexpr,
    TOKENS: tl.constexpr, KEPT: tl.constexpr, COPIED: tl.constexpr, LEARNS: tl.constexpr,
):  # fmt: skip
    """dq, dk of each query head, dẼ, dF and, where E LEARNS, dE of TOKENS tokens, and their sum of
    dP. E' has a gradient where it was KEPT, and its copy where it was COPIED.
    """
    if ATTENDS:
        p_HH = part(p, H, 0, H, H, PAD_H, PAD_H)
        dp_HH = tl.zeros((PAD_H, PAD_H), tl.float32)
    nothing = tl.zeros((PAD_H, CHUNK), tl.float32)
    program = tl.cast(tl.program_id(0), tl.int64)
    first = tl.program_id(0) * TOKENS
    for n in range(first, tl.minimum(first + TOKENS, tokens)):
        b = tl.cast(n // T, tl.int64)
        t = tl.cast(n % T, tl.int64)
        own = tl.cast(n, tl.int64) * H * 2 * M
        if MAPS:
            f_HH = part(F + tl.cast(n, tl.int64) * H * H, H, 0, H, H, PAD_H, PAD_H)
            df_HH = tl.zeros((PAD_H, PAD_H), tl.float32)
        for c in range(0, M, CHUNK):
            at = E + b * E_b + t * E_t
            z_real = part(at, E_h, c, H, M, PAD_H, CHUNK)
            z_imaginary = part(at + M, E_h, c, H, M, PAD_H, CHUNK)
            if ATTENDS:
                at = attended + b * a_b + t * a_t
                a_real = part(at, a_h, c, H, M, PAD_H, CHUNK)
                a_imaginary = part(at + M, a_h, c, H, M, PAD_H, CHUNK)
                z_real = product(p_HH, a_real, z_real, PRECISION)
                z_imaginary = product(p_HH, a_imaginary, z_imaginary, PRECISION)
            cos, sin = z_real, z_imaginary
            if MAPS:
                cos = product(f_HH, z_real, z_real, PRECISION)
                sin = product(f_HH, z_imaginary, z_imaginary, PRECISION)

            g_real, g_imaginary = nothing, nothing
            if KEPT:
                at = d_out + b * g_b + t * g_t
                g_real = part(at, g_h, c, H, M, PAD_H, CHUNK)
                g_imaginary = part(at + M, g_h, c, H, M, PAD_H, CHUNK)
            if COPIED:
                at = d_copy + b * c_b + t * c_t
                g_real += part(at, c_h, c, H, M, PAD_H, CHUNK)
                g_imaginary += part(at + M, c_h, c, H, M, PAD_H, CHUNK)

            at = d_q_out + b * dqo_b + t * dqo_t
            dx = part(at, dqo_h, c, H, M, PAD_H, CHUNK)
            dy = part(at + M, dqo_h, c, H, M, PAD_H, CHUNK)
            real, imaginary = times(dx, dy, cos, -sin)
            put_part(dq + own, real, 2 * M, c, H, M, PAD_H, CHUNK)
            put_part(dq + own + M, imaginary, 2 * M, c, H, M, PAD_H, CHUNK)
            at = q + b * q_b + t * q_t
            real = part(at, q_h, c, H, M, PAD_H, CHUNK)
            imaginary = part(at + M, q_h, c, H, M, PAD_H, CHUNK)
            real, imaginary = times(dx, dy, real, -imaginary)
            g_real += real
            g_imaginary += imaginary

            at = d_k_out + b * dko_b + t * dko_t
            dx = part(at, dko_h, c, H, M, PAD_H, CHUNK)
            dy = part(at + M, dko_h, c, H, M, PAD_H, CHUNK)
            real, imaginary = times(dx, dy, cos, -sin)
            put_part(dk + own, real, 2 * M, c, H, M, PAD_H, CHUNK)
            put_part(dk + own + M, imaginary, 2 * M, c, H, M, PAD_H, CHUNK)
            at = k + b * k_b + t * k_t
            real = part(at, k_h, c, H, M, PAD_H, CHUNK, GROUP)
            imaginary = part(at + M, k_h, c, H, M, PAD_H, CHUNK, GROUP)
            real, imaginary = times(dx, dy, real, -imaginary)
            g_real += real
            g_imaginary += imaginary

            if MAPS:
                df_HH = product(g_real, tl.trans(z_real), df_HH, PRECISION)
                df_HH = product(g_imaginary, tl.trans(z_imaginary), df_HH, PRECISION)
                g_real = product(tl.trans(f_HH), g_real, g_real, PRECISION)
                g_imaginary = product(tl.trans(f_HH), g_imaginary, g_imaginary, PRECISION)
            if LEARNS:
                put_part(dE + own, g_real, 2 * M, c, H, M, PAD_H, CHUNK)
                put_part(dE + own + M, g_imaginary, 2 * M, c, H, M, PAD_H, CHUNK)
            if ATTENDS:
                da_HC = product(tl.trans(p_HH), g_real, nothing, PRECISION)
                put_part(d_attended + own, da_HC, 2 * M, c, H, M, PAD_H, CHUNK)
                da_HC = product(tl.trans(p_HH), g_imaginary, nothing, PRECISION)
                put_part(d_attended + own + M, da_HC, 2 * M, c, H, M, PAD_H, CHUNK)
                dp_HH = product(g_real, tl.trans(a_real), dp_HH, PRECISION)
                dp_HH = product(g_imaginary, tl.trans(a_imaginary), dp_HH, PRECISION)
        if MAPS:
            put_part(dF + tl.cast(n, tl.int64) * H * H, df_HH, H, 0, H, H, PAD_H, PAD_H)
    if ATTENDS:
        put_part(dp + program * H * H, dp_HH, H, 0, H, H, PAD_H, PAD_H)
