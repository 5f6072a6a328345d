"""The Triton programs of :mod:`tape_exp.models.kernels.rotation`; importing this module needs
triton.

A row is a head of a token, and heads are the fastest to change. A program turns BLOCK rows of q,
and of k those whose head is below K: query heads that do not share a state with others read the key
head that serves them, h // GROUP. M is half the head dimension. An argument is named after the
tensor it points to, ``q_b, q_t, q_h`` are its strides in elements, and the last dimension of every
tensor is contiguous. What a program writes is contiguous altogether.
"""

import triton
import triton.language as tl

# Lengths differ from batch to batch; programs specialised on their divisibility would be compiled
# over and over.
UNSPECIALISED = ("rows", "T")


@triton.jit
def halves(pointers, inside, M: tl.constexpr):
    """x_m and x_{m+M} in fp32, zero outside."""
    real = tl.load(pointers, mask=inside, other=0.0).to(tl.float32)
    imaginary = tl.load(pointers + M, mask=inside, other=0.0).to(tl.float32)
    return real, imaginary


@triton.jit
def put_halves(base, pointers, real, imaginary, inside, M: tl.constexpr):
    """Write both, in the type of ``base``."""
    tl.store(pointers, real.to(base.dtype.element_ty), mask=inside)
    tl.store(pointers + M, imaginary.to(base.dtype.element_ty), mask=inside)


@triton.jit
def times(real, imaginary, cos, sin):
    """(real + i imaginary) (cos + i sin)."""
    return real * cos - imaginary * sin, real * sin + imaginary * cos


@triton.jit(do_not_specialize=UNSPECIALISED)
def rotate(
    q, k, state, q_out, k_out, rows, T, q_b, q_t, q_h, k_b, k_t, k_h, s_b, s_t, s_h, s_part,
    H: tl.constexpr, K: tl.constexpr, GROUP: tl.constexpr, M: tl.constexpr, PAD_M: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """q_out = q · (cos + i sin), and k_out likewise, for one block of rows."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = tl.arange(0, PAD_M)[None, :]
    h = row % H
    t = tl.cast(row // H % T, tl.int64)
    b = tl.cast(row // H // T, tl.int64)
    inside = (row < rows)[:, None] & (m < M)
    at = state + (b * s_b + t * s_t + h * s_h)[:, None] + m
    cos = tl.load(at, mask=inside, other=0.0)
    sin = tl.load(at + s_part, mask=inside, other=0.0)

    real, imaginary = halves(q + (b * q_b + t * q_t + h * q_h)[:, None] + m, inside, M)
    real, imaginary = times(real, imaginary, cos, sin)
    to = q_out + (tl.cast(row, tl.int64) * 2 * M)[:, None] + m
    put_halves(q_out, to, real, imaginary, inside, M)

    inside = inside & (h < K)[:, None]
    real, imaginary = halves(k + (b * k_b + t * k_t + h // GROUP * k_h)[:, None] + m, inside, M)
    real, imaginary = times(real, imaginary, cos, sin)
    to = k_out + (((b * T + t) * K + h) * 2 * M)[:, None] + m
    put_halves(k_out, to, real, imaginary, inside, M)


@triton.jit(do_not_specialize=UNSPECIALISED)
def rotate_gradient(
    d_q_out, d_k_out, q, k, state, dq, dk, ds, rows, T,
    dqo_b, dqo_t, dqo_h, dko_b, dko_t, dko_h, q_b, q_t, q_h, k_b, k_t, k_h, s_b, s_t, s_h, s_part,
    H: tl.constexpr, K: tl.constexpr, GROUP: tl.constexpr, M: tl.constexpr, PAD_M: tl.constexpr,
    BLOCK: tl.constexpr, LEARNS: tl.constexpr,
):  # fmt: skip
    """dq = d_q_out · (cos - i sin), dk likewise and, if the state LEARNS, ds = d_q_out · q̄ +
    d_k_out · k̄, for one block of rows.
    """
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = tl.arange(0, PAD_M)[None, :]
    h = row % H
    t = tl.cast(row // H % T, tl.int64)
    b = tl.cast(row // H // T, tl.int64)
    inside = (row < rows)[:, None] & (m < M)
    at = state + (b * s_b + t * s_t + h * s_h)[:, None] + m
    cos = tl.load(at, mask=inside, other=0.0)
    sin = tl.load(at + s_part, mask=inside, other=0.0)

    q_real, q_imaginary = halves(
        d_q_out + (b * dqo_b + t * dqo_t + h * dqo_h)[:, None] + m, inside, M
    )
    real, imaginary = times(q_real, q_imaginary, cos, -sin)
    own = (tl.cast(row, tl.int64) * 2 * M)[:, None] + m
    put_halves(dq, dq + own, real, imaginary, inside, M)

    has_key = inside & (h < K)[:, None]
    k_real, k_imaginary = halves(
        d_k_out + (b * dko_b + t * dko_t + h * dko_h)[:, None] + m, has_key, M
    )
    real, imaginary = times(k_real, k_imaginary, cos, -sin)
    to = dk + (((b * T + t) * K + h) * 2 * M)[:, None] + m
    put_halves(dk, to, real, imaginary, has_key, M)

    if LEARNS:
        real, imaginary = halves(q + (b * q_b + t * q_t + h * q_h)[:, None] + m, inside, M)
        d_cos, d_sin = times(q_real, q_imaginary, real, -imaginary)
        real, imaginary = halves(
            k + (b * k_b + t * k_t + h // GROUP * k_h)[:, None] + m, has_key, M
        )
        k_cos, k_sin = times(k_real, k_imaginary, real, -imaginary)
        put_halves(ds, ds + own, d_cos + k_cos, d_sin + k_sin, inside, M)
