"""The Triton programs of :mod:`tape_exp.models.kernels.maps`; importing this module needs triton.

A program takes BLOCK tokens, and of a matrix WIDE columns at a time. The units of ψ are INNER, with
their padding PAD_I. An argument is named after the tensor it points to; all are contiguous. Of a
token, with h = W_x x̃, ψ = SiLU(h), V of shape (INNER, J) and F = Vᵀ ψ::

    dψ = V dF        dh = dψ SiLU'(h)        dx̃ = W_xᵀ dh        dW_x = Σ dh x̃ᵀ        dV = Σ ψ dFᵀ
"""

import triton
import triton.language as tl

from tape_exp.models.kernels.tiles_triton import product

# Lengths differ from batch to batch; programs specialised on their divisibility would be compiled
# over and over.
UNSPECIALISED = ("tokens",)


@triton.jit
def tile(base, row, column, rows, columns: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr):
    """Rows and columns from ``row`` and ``column`` on of a matrix, fp32, zero beyond."""
    i = row + tl.arange(0, HEIGHT)[:, None]
    j = column + tl.arange(0, WIDTH)[None, :]
    at = base + tl.cast(i, tl.int64) * columns + j
    return tl.load(at, mask=(i < rows) & (j < columns), other=0.0).to(tl.float32)


@triton.jit
def put_tile(
    base, values, row, column, rows, columns: tl.constexpr,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Write them."""
    i = row + tl.arange(0, HEIGHT)[:, None]
    j = column + tl.arange(0, WIDTH)[None, :]
    at = base + tl.cast(i, tl.int64) * columns + j
    tl.store(at, values.to(base.dtype.element_ty), mask=(i < rows) & (j < columns))


@triton.jit(do_not_specialize=UNSPECIALISED)
def maps(
    x, wx, v, h, F, tokens,
    C: tl.constexpr, INNER: tl.constexpr, J: tl.constexpr, PAD_I: tl.constexpr,
    BLOCK: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """h and F of BLOCK tokens."""
    first = tl.program_id(0) * BLOCK
    h_NI = tl.zeros((BLOCK, PAD_I), tl.float32)
    for c in range(0, C, WIDE):
        x_NC = tile(x, first, c, tokens, C, BLOCK, WIDE)
        wx_IC = tile(wx, 0, c, INNER, C, PAD_I, WIDE)
        h_NI = product(x_NC, tl.trans(wx_IC), h_NI, PRECISION)
    put_tile(h, h_NI, first, 0, tokens, INNER, BLOCK, PAD_I)
    psi_NI = h_NI * tl.sigmoid(h_NI)
    nothing = tl.zeros((BLOCK, WIDE), tl.float32)
    for j in range(0, J, WIDE):
        f_NJ = product(psi_NI, tile(v, 0, j, INNER, J, PAD_I, WIDE), nothing, PRECISION)
        put_tile(F, f_NJ, first, j, tokens, J, BLOCK, WIDE)


@triton.jit(do_not_specialize=UNSPECIALISED)
def maps_gradient(
    dF, wx, v, h, dh, dx, tokens,
    C: tl.constexpr, INNER: tl.constexpr, J: tl.constexpr, PAD_I: tl.constexpr,
    BLOCK: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dh and dx̃ of BLOCK tokens."""
    first = tl.program_id(0) * BLOCK
    dh_NI = tl.zeros((BLOCK, PAD_I), tl.float32)
    for j in range(0, J, WIDE):
        df_NJ = tile(dF, first, j, tokens, J, BLOCK, WIDE)
        v_IJ = tile(v, 0, j, INNER, J, PAD_I, WIDE)
        dh_NI = product(df_NJ, tl.trans(v_IJ), dh_NI, PRECISION)
    h_NI = tile(h, first, 0, tokens, INNER, BLOCK, PAD_I)
    open_NI = tl.sigmoid(h_NI)
    dh_NI *= open_NI * (1 + h_NI * (1 - open_NI))
    put_tile(dh, dh_NI, first, 0, tokens, INNER, BLOCK, PAD_I)
    nothing = tl.zeros((BLOCK, WIDE), tl.float32)
    for c in range(0, C, WIDE):
        dx_NC = product(dh_NI, tile(wx, 0, c, INNER, C, PAD_I, WIDE), nothing, PRECISION)
        put_tile(dx, dx_NC, first, c, tokens, C, BLOCK, WIDE)


@triton.jit(do_not_specialize=("tokens", "each"))
def sum_of_products(
    left, right, sums, tokens, each,
    INNER: tl.constexpr, W: tl.constexpr, PAD_I: tl.constexpr, BLOCK: tl.constexpr,
    WIDE: tl.constexpr, OPENS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Σ left rightᵀ, or SiLU(left) rightᵀ where it OPENS them, over ``each`` tokens from those of
    the first axis on: WIDE columns of (I, W).
    """
    column = tl.program_id(1) * WIDE
    part = tl.cast(tl.program_id(0), tl.int64)
    first = tl.program_id(0) * each
    last = tl.minimum(first + each, tokens)
    sum_IW = tl.zeros((PAD_I, WIDE), tl.float32)
    for n in range(first, last, BLOCK):
        left_NI = tile(left, n, 0, last, INNER, BLOCK, PAD_I)
        if OPENS:
            left_NI *= tl.sigmoid(left_NI)
        right_NW = tile(right, n, column, last, W, BLOCK, WIDE)
        sum_IW = product(tl.trans(left_NI), right_NW, sum_IW, PRECISION)
    put_tile(sums + part * INNER * W, sum_IW, 0, column, INNER, W, PAD_I, WIDE)
