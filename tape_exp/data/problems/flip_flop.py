"""Flip-flop: read the bit that was written last."""

import numpy as np

from tape_exp.data.problems.base import ENDS, Problem, Rows, draw, joined

WRITE, IGNORED, READ, ZERO = range(2, 6)


class FlipFlop(Problem):
    """``w1i0r1w0r0``: instructions with a bit each; the bit of ``r`` is that of the last ``w``.

    FFL(p) of Liu et al. (2023, "Exposing Attention Glitches with Flip-Flop Language Modeling"): the
    first instruction writes and the last reads; each of the others ignores its bit with probability
    p, and writes or reads with (1 - p) / 2 each; bits of ``w`` and ``i`` are uniform. As there,
    training has p = 0.8, and a model is also tested on p = 0.98 (``sparse``) and 0.1 (``dense``).

    Deviations: the loss is on the bits of ``r`` only, as their "clean" evaluation is, and not on
    what nobody can predict; rows have any number of instructions up to n, theirs 256.

    Args:
        ignore: p.
        others: what else a model is tested on.
    """

    name = "flip_flop"
    summary = "read the bit that was written last, among bits to ignore"
    unit = "instructions"
    symbols = (*ENDS, *"wir01")
    shortest = 2

    def __init__(self, ignore: float, **others: Problem) -> None:
        self.ignore, self.others = ignore, others

    def count(self, length: int) -> int:
        """The first bit, and five choices at each place between the first and the last."""
        return int(2 * 5 ** (length - 2))

    def width(self, length: int) -> int:
        """Instructions and bits."""
        return 2 * length

    def draws(self, length: int) -> int:
        """For each its kind and its bit."""
        return 2 * length

    def write(self, lengths: np.ndarray, random: np.ndarray) -> Rows:
        """Instructions and their bits."""
        place, share = np.arange(random.shape[1] // 2), random[:, ::2] / 2**32
        kind = np.select(
            [share < self.ignore, share < (1 + self.ignore) / 2], [IGNORED, WRITE], READ
        )
        kind[:, 0] = WRITE
        kind[place == lengths[:, None] - 1] = READ
        written = np.maximum.accumulate(np.where(kind == WRITE, place, 0), 1)
        bit = ZERO + draw(2, random[:, 1::2])
        bit = np.where(kind == READ, np.take_along_axis(bit, written, 1), bit)
        rows = np.stack([kind, bit], 2).reshape(len(lengths), -1)
        scored = np.stack([np.zeros_like(kind), kind == READ], 2).reshape(rows.shape).astype(bool)
        return joined((rows, 2 * lengths, scored))
