"""What Triton programs share: tiles of matrices, their products, and which sizes of tiles are
tried; importing this module needs triton.
"""

from typing import Any

import triton
import triton.language as tl

INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)


def tuned(
    owner: str,
    sums: str,
    squares: int,
    *choices: tuple[int, int, int, int],
    adds_to: tuple[str, ...] = (),
):
    """Autotune over tile sizes, (BLOCK_M, BLOCK_N, warps, stages); the interpreter gets one that is
    small and uneven.

    Only tiles that fit into the registers are tried: of its 255 a thread may fill 192 with its
    share of the fp32 sums over the block ``owner``, as wide as the letters of ``sums`` (D, C, or L:
    C if carried learns), and of ``squares`` tiles of logits and the like. fp32 inputs take the
    small tiles, since their products are split in three. Where a program keeps sums of its own, it
    has OWNS keys, since room was made for so many blocks, and no fewer queries.

    The choice is kept on disk with the compiled programs, so that a resumed run computes with the
    same tiles. What the program ``adds_to`` is zero again after its tiles were tried.
    """

    def affordable(
        tiles: list[triton.Config], arguments: dict[str, Any], **constants: Any
    ) -> list[triton.Config]:
        single = arguments["q"].element_size() == 4
        carried = constants["PAD_C"] if constants["CARRIES"] else 0
        widths = {
            "D": constants["PAD_D"],
            "C": carried,
            "L": carried if constants.get("CARRIED_LEARNS") else 0,
        }
        width = sum(widths[letter] for letter in sums)
        owns = constants.get("OWNS")

        def fits(tile: triton.Config) -> bool:
            queries, keys = tile.kwargs["BLOCK_M"], tile.kwargs["BLOCK_N"]
            area = queries * keys
            held = (tile.kwargs[owner] * width + squares * area) // (32 * tile.num_warps)
            tall = owner == "BLOCK_N" and queries > keys
            room = keys == owns <= queries if owns else not tall
            return room and held <= 192 and single == (area <= 1024)

        return [tile for tile in tiles if fits(tile)]

    if INTERPRETED:
        choices = ((32, 16, 4, 1),)
    return triton.autotune(
        [
            triton.Config({"BLOCK_M": m, "BLOCK_N": n}, num_warps=w, num_stages=s)
            for m, n, w, s in choices
        ],
        key=[
            *("bucket", "D", "C", "CARRIES", "CARRIED_LEARNS", "SLOPED", "BY_DISTANCE", "BENDS"),
            *("FAR_LEARNS", "OWNS", "ONE_PASS", "PRECISION", "KEYED", "CORRECTS", "KEYS_LEARN"),
        ],
        prune_configs_by={"early_config_prune": affordable},
        reset_to_zero=adds_to,
        cache_results=True,
    )


@triton.jit
def tile(
    base,
    first,
    end,
    stride,
    BLOCK: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    BOUNDED: tl.constexpr,
):
    """Rows first … first + BLOCK of the matrix at ``base``, (BLOCK, PADDED), with zeros beyond its
    WIDTH and its ``end``.

    Without BOUNDED the rows are known to be before ``end``.
    """
    rows = tl.arange(0, BLOCK)
    columns = tl.arange(0, PADDED)
    # 64 bits for where the block begins, which may be beyond 2^31 elements; within it 32 are
    # enough.
    pointers = (
        base + tl.cast(first, tl.int64) * stride + (rows[:, None] * stride + columns[None, :])
    )
    if BOUNDED:
        if WIDTH == PADDED:
            return tl.load(pointers, mask=(first + rows < end)[:, None], other=0.0)
        else:
            return tl.load(
                pointers, mask=(first + rows < end)[:, None] & (columns < WIDTH)[None, :], other=0.0
            )
    else:
        if WIDTH == PADDED:
            return tl.load(pointers)
        else:
            return tl.load(pointers, mask=(columns < WIDTH)[None, :], other=0.0)


@triton.jit
def put(
    base, first, end, stride, values, BLOCK: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr
):
    """Write ``values`` (BLOCK, PADDED) to rows from ``first`` on, within WIDTH and ``end``."""
    rows = tl.arange(0, BLOCK)
    columns = tl.arange(0, PADDED)
    pointers = (
        base + tl.cast(first, tl.int64) * stride + (rows[:, None] * stride + columns[None, :])
    )
    mask = (first + rows < end)[:, None] & (columns < WIDTH)[None, :]
    tl.store(pointers, values.to(base.dtype.element_ty), mask=mask)


@triton.jit
def add(
    base, first, end, stride, values, BLOCK: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr
):
    """Add ``values`` (BLOCK, PADDED) to rows from ``first`` on, within WIDTH and ``end``, in the
    order in which programs come.
    """
    rows = tl.arange(0, BLOCK)
    columns = tl.arange(0, PADDED)
    pointers = (
        base + tl.cast(first, tl.int64) * stride + (rows[:, None] * stride + columns[None, :])
    )
    mask = (first + rows < end)[:, None] & (columns < WIDTH)[None, :]
    tl.atomic_add(pointers, values, mask=mask, sem="relaxed")


@triton.jit
def product(a, b, total, PRECISION: tl.constexpr):
    """total + a b, in fp32."""
    if INTERPRETED:  # the interpreter keeps bf16 as integers and would multiply those
        a = a.to(tl.float32)
        b = b.to(tl.float32)
        if PRECISION == "bf16x3":  # which it does not know
            coarse_a = a.to(tl.bfloat16).to(tl.float32)
            coarse_b = b.to(tl.bfloat16).to(tl.float32)
            fine_a = (a - coarse_a).to(tl.bfloat16).to(tl.float32)
            fine_b = (b - coarse_b).to(tl.bfloat16).to(tl.float32)
            total = tl.dot(fine_a, coarse_b, total, input_precision="ieee")
            total = tl.dot(coarse_a, fine_b, total, input_precision="ieee")
            return tl.dot(coarse_a, coarse_b, total, input_precision="ieee")
    return tl.dot(a, b, total, input_precision=PRECISION)
