"""The Triton programs of :mod:`tape_exp.models.kernels.update`; importing this module needs triton.

A program takes TOKENS tokens, one after the other, each a matrix of H heads times D numbers. An
argument is named after the tensor it points to, ``E_b, E_t, E_h`` are its strides in elements, and
the last dimension of every tensor is contiguous. What a program writes is contiguous altogether. Of
one token, with G the gradient of E'::

    Z = E + P Ẽ            E' = Z + F Z
    dF = G Zᵀ              dE = G + Fᵀ G          dẼ = Pᵀ dE          dP = dE Ẽᵀ
"""

import triton
import triton.language as tl

from tape_exp.models.kernels.tiles_triton import product

# Lengths differ from batch to batch; programs specialised on their divisibility would be compiled
# over and over.
UNSPECIALISED = ("tokens", "T")


@triton.jit
def part(
    base, stride, first, H: tl.constexpr, D: tl.constexpr, PAD_H: tl.constexpr, CHUNK: tl.constexpr
):
    """Columns first … first + CHUNK of the H rows at ``base``, (PAD_H, CHUNK) fp32, zero beyond."""
    rows = tl.arange(0, PAD_H)[:, None]
    columns = first + tl.arange(0, CHUNK)[None, :]
    inside = (rows < H) & (columns < D)
    return tl.load(base + rows * stride + columns, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def put_part(
    base, values, first, H: tl.constexpr, D: tl.constexpr, PAD_H: tl.constexpr, CHUNK: tl.constexpr
):
    """Write them to the contiguous (H, D) at ``base``."""
    rows = tl.arange(0, PAD_H)[:, None]
    columns = first + tl.arange(0, CHUNK)[None, :]
    inside = (rows < H) & (columns < D)
    tl.store(base + rows * D + columns, values.to(base.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=UNSPECIALISED)
def update(
    E, attended, p, F, out, tokens, T, E_b, E_t, E_h, a_b, a_t, a_h,
    H: tl.constexpr, D: tl.constexpr, PAD_H: tl.constexpr, CHUNK: tl.constexpr,
    ATTENDS: tl.constexpr, MAPS: tl.constexpr, PRECISION: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    """out = E' of TOKENS tokens."""
    if ATTENDS:
        p_HH = part(p, H, 0, H, H, PAD_H, PAD_H)
    first = tl.program_id(0) * TOKENS
    for n in range(first, tl.minimum(first + TOKENS, tokens)):
        b = tl.cast(n // T, tl.int64)
        t = tl.cast(n % T, tl.int64)
        own = tl.cast(n, tl.int64)
        if MAPS:
            f_HH = part(F + own * H * H, H, 0, H, H, PAD_H, PAD_H)
        for c in range(0, D, CHUNK):
            z_HC = part(E + b * E_b + t * E_t, E_h, c, H, D, PAD_H, CHUNK)
            if ATTENDS:
                a_HC = part(attended + b * a_b + t * a_t, a_h, c, H, D, PAD_H, CHUNK)
                z_HC = product(p_HH, a_HC, z_HC, PRECISION)
            if MAPS:
                z_HC = product(f_HH, z_HC, z_HC, PRECISION)
            put_part(out + own * H * D, z_HC, c, H, D, PAD_H, CHUNK)


@triton.jit(do_not_specialize=UNSPECIALISED)
def update_gradient(
    d_out, E, attended, p, F, dE, d_attended, dp, dF, tokens, T,
    E_b, E_t, E_h, a_b, a_t, a_h, g_b, g_t, g_h,
    H: tl.constexpr, D: tl.constexpr, PAD_H: tl.constexpr, CHUNK: tl.constexpr,
    ATTENDS: tl.constexpr, MAPS: tl.constexpr, PRECISION: tl.constexpr, TOKENS: tl.constexpr,
    LEARNS: tl.constexpr,
):  # fmt: skip
    """dE, dẼ and dF of TOKENS tokens, and their sum of dP."""
    if ATTENDS:
        p_HH = part(p, H, 0, H, H, PAD_H, PAD_H)
        dp_HH = tl.zeros((PAD_H, PAD_H), tl.float32)
    nothing = tl.zeros((PAD_H, CHUNK), tl.float32)
    program = tl.cast(tl.program_id(0), tl.int64)
    first = tl.program_id(0) * TOKENS
    for n in range(first, tl.minimum(first + TOKENS, tokens)):
        b = tl.cast(n // T, tl.int64)
        t = tl.cast(n % T, tl.int64)
        own = tl.cast(n, tl.int64)
        if MAPS:
            f_HH = part(F + own * H * H, H, 0, H, H, PAD_H, PAD_H)
            df_HH = tl.zeros((PAD_H, PAD_H), tl.float32)
        for c in range(0, D, CHUNK):
            g_HC = part(d_out + b * g_b + t * g_t, g_h, c, H, D, PAD_H, CHUNK)
            de_HC = g_HC
            if ATTENDS:
                a_HC = part(attended + b * a_b + t * a_t, a_h, c, H, D, PAD_H, CHUNK)
            if MAPS:
                z_HC = part(E + b * E_b + t * E_t, E_h, c, H, D, PAD_H, CHUNK)
                if ATTENDS:
                    z_HC = product(p_HH, a_HC, z_HC, PRECISION)
                df_HH = product(g_HC, tl.trans(z_HC), df_HH, PRECISION)
                de_HC = product(tl.trans(f_HH), g_HC, g_HC, PRECISION)
            if ATTENDS:
                da_HC = product(tl.trans(p_HH), de_HC, nothing, PRECISION)
                put_part(d_attended + own * H * D, da_HC, c, H, D, PAD_H, CHUNK)
                dp_HH = product(de_HC, tl.trans(a_HC), dp_HH, PRECISION)
            if LEARNS:
                put_part(dE + own * H * D, de_HC, c, H, D, PAD_H, CHUNK)
        if MAPS:
            put_part(dF + own * H * H, df_HH, 0, H, H, PAD_H, PAD_H)
    if ATTENDS:
        put_part(dp + program * H * H, dp_HH, 0, H, H, PAD_H, PAD_H)
