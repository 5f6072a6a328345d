"""ALiBi: a linear penalty on distance."""

import math
from typing import Any

import torch
from torch import Tensor

from tape_exp.models.positions.base import RelativeBias
from tape_exp.settings.schema import Arch


class ALiBi(RelativeBias):
    """ALiBi: b(i, j) = -r_h (i - j), r_h fixed (Press et al., "Train Short, Test Long", 2021)."""

    r: Tensor  # (H,)

    def __init__(self, arch: Arch) -> None:
        super().__init__(arch)
        self.register_buffer("r", torch.tensor(alibi_slopes(arch.heads)), persistent=False)

    def _apply(self, fn: Any, recurse: bool = True) -> "ALiBi":
        """Move, and stay in fp32: 16-bit weights do not round the slopes."""
        super()._apply(fn, recurse)
        self.r = torch.tensor(alibi_slopes(self.arch.heads)).to(self.r.device)
        return self

    def at(self, distance: Tensor) -> Tensor:
        """-r_h times the distance: (H, *shape of distance)."""
        return -self.r.view(-1, *[1] * distance.ndim) * distance

    def slopes(self) -> Tensor:
        """r, (H,)."""
        return self.r


def alibi_slopes(heads: int) -> list[float]:
    """2^(-8h/H), h = 1 … H, where H is a power of two; otherwise those of the power below, then
    every other one of the next.

    For 12 heads: 2^-1 … 2^-8, then 2^-0.5, 2^-1.5, 2^-2.5, 2^-3.5.
    """
    power = 2 ** math.floor(math.log2(heads))
    first = [2.0 ** (-8 * h / power) for h in range(1, power + 1)]
    return first + [2.0 ** (-4 * h / power) for h in range(1, 2 * power + 1, 2)][: heads - power]
