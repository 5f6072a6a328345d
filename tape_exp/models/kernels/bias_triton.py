"""What :mod:`tape_exp.models.kernels.causal_triton` adds to the logits, and the sums that its
gradients are: functions that run within its programs.

A bias is looked up by distance, or it is piecewise linear in the product of two numbers, of which
one is looked up by distance and the other belongs to the query. Such a function bends at few places
and its argument rises with the distance. So in most tiles it is one straight line, and in the
others the bends that are between the least and the greatest argument are gone through.
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def looked_up(table, distance, S):
    """The table's entry at each distance, and any entry where it is no distance."""
    return tl.load(table + tl.minimum(tl.maximum(distance, 0), S - 1))


@triton.jit
def bends_below(near, far, first, last, S, bends_K):
    """How many bends are below all arguments of a tile, and below some: between these it bends.

    Its distances are ``first`` … ``last``; ``far`` are the factors of its last and its first query.
    """
    lowest = looked_up(near, first, S) * far[0]
    highest = looked_up(near, last, S) * far[1]
    return tl.sum((bends_K < lowest).to(tl.int32), 0), tl.sum((bends_K < highest).to(tl.int32), 0)


@triton.jit
def add_bent(z, x, below, bends, level, rise):
    """z + LOG2E f(x), where f is level + rise · x between bends."""
    z += (tl.load(level + below[0]) + tl.load(rise + below[0]) * x) * LOG2E
    if below[0] < below[1]:
        for s in range(below[0], below[1]):
            higher = tl.load(level + s + 1) - tl.load(level + s)
            steeper = tl.load(rise + s + 1) - tl.load(rise + s)
            z += tl.where(x > tl.load(bends + s), (higher + steeper * x) * LOG2E, 0.0)
    return z


@triton.jit
def times_rise(y, x, below, bends, rise):
    """y f'(x)."""
    total = y * tl.load(rise + below[0])
    if below[0] < below[1]:
        for s in range(below[0], below[1]):
            steeper = tl.load(rise + s + 1) - tl.load(rise + s)
            total += tl.where(x > tl.load(bends + s), y * steeper, 0.0)
    return total


@triton.jit
def gradients(dz, x, below, bends, rise, d_level_K, d_rise_K, PAD_K: tl.constexpr):
    """dz f'(x), and the sums of dz and of dz x over each piece, with what a tile adds to them."""
    pieces = tl.arange(0, PAD_K)
    first_K = (pieces == below[0]).to(tl.float32)
    d_level_K += first_K * tl.sum(tl.sum(dz, 1), 0)
    d_rise_K += first_K * tl.sum(tl.sum(dz * x, 1), 0)
    d_x = dz * tl.load(rise + below[0])
    if below[0] < below[1]:
        for s in range(below[0], below[1]):
            # What is beyond a bend belongs to the next piece instead.
            beyond = tl.where(x > tl.load(bends + s), dz, 0.0)
            moved_K = (pieces == s + 1).to(tl.float32) - (pieces == s).to(tl.float32)
            d_level_K += moved_K * tl.sum(tl.sum(beyond, 1), 0)
            d_rise_K += moved_K * tl.sum(tl.sum(beyond * x, 1), 0)
            d_x += beyond * (tl.load(rise + s + 1) - tl.load(rise + s))
    return d_x, d_level_K, d_rise_K


@triton.jit
def along_diagonals(x_NM, BLOCK_N: tl.constexpr, BLOCK_M: tl.constexpr):
    """For each l < BLOCK_M the sum of x[n, m] where m - n = l, and where m - n = l - BLOCK_M.

    Each row turned left by its number has both diagonals in column l. BLOCK_N <= BLOCK_M.
    """
    tl.static_assert(BLOCK_N <= BLOCK_M)
    turned = tl.arange(0, BLOCK_N)[:, None] + tl.arange(0, BLOCK_M)[None, :]
    x_NM = tl.gather(x_NM, turned % BLOCK_M, 1)
    return (
        tl.sum(tl.where(turned < BLOCK_M, x_NM, 0.0), 0),
        tl.sum(tl.where(turned < BLOCK_M, 0.0, x_NM), 0),
    )
