"""ALiBi: a linear penalty on distance, with fixed or learned slopes."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from tape_exp.models.biases import ByDistance
from tape_exp.models.positions.base import PositionEncoding
from tape_exp.models.precision import precise
from tape_exp.settings.schema import Arch


class ALiBi(PositionEncoding):
    """ALiBi: b(i, j) = -r_h (i - j), r_h fixed (Press et al., "Train Short, Test Long", 2021).

    r_h = 2^(-8h/H), h = 1 … H, where H is a power of two; otherwise those of the power below, then
    every other one of the next: for 12 heads 2^-1 … 2^-8, then 2^-0.5, 2^-1.5, 2^-2.5, 2^-3.5.
    """

    exponents: Tensor  # (H,), in units of 1/P, P the power of two: no cast to 16 bits rounds them

    def __init__(self, arch: Arch) -> None:
        super().__init__(arch)
        self.power = 2 ** int(math.log2(arch.heads))
        more = range(1, 2 * (arch.heads - self.power), 2)
        exponents = [8 * h for h in range(1, self.power + 1)] + [4 * h for h in more]
        self.register_buffer("exponents", torch.tensor(exponents), persistent=False)

    def slopes(self) -> Tensor:
        return 2.0 ** (-self.exponents / self.power)

    def bias(self, *_: Any) -> ByDistance:
        slopes = self.slopes()
        return ByDistance(lambda distance: -slopes[:, None] * distance, slopes)


class AdditiveGRAPE(ALiBi):
    """Additive GRAPE (Zhang et al., "Group Representational Position Encoding", 2025): position n
    multiplies q̂ = [q, 1, 0] by a power of a unipotent matrix, G(n), and k̂ = [k, 0, 1] by G(n)⁻ᵀ::

        G(n) = exp(n A) = I + n A        A = -β_h e_{d+2} e_{d+1}ᵀ, so that A² = 0
        (G(i) q̂)ᵀ G(j)⁻ᵀ k̂ = q·k - β_h (i - j)

    which is ALiBi with learned slopes β_h that begin as ALiBi's. Deliberately different: the term
    is a bias after the scaling by 1/√d, since wider queries and keys in 16 bits would tell 897 of
    8192 positions apart. Left out: slopes that queries and keys gate, and the path-integral form.
    """

    def __init__(self, arch: Arch) -> None:
        super().__init__(arch)
        self.log_slopes = nn.Parameter(super().slopes().log())

    def slopes(self) -> Tensor:
        return precise(self.log_slopes).exp()

    def bias(self, *_: Any) -> ByDistance:
        """Return -β_h times the distance; flash-attn has no gradient for slopes."""
        return ByDistance(super().bias().at)
