"""Kerple: learned logarithmic or power decay."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tape_exp.models.attention import ByDistance
from tape_exp.models.positions.base import Biases, PositionEncoding
from tape_exp.settings.schema import Arch


class Kerple(PositionEncoding):
    """Kerple (Chi et al., "KERPLE: Kernelized Relative Positional Embedding for Length
    Extrapolation", 2022), with r1, r2 > 0 learned per layer and head:

    - ``log``: b(i, j) = -r1 log(1 + r2 (i - j))
    - ``power``: b(i, j) = -r1 (i - j)^r2 with r2 <= 2

    The heads begin apart, as in the authors' code (github.com/chijames/KERPLE): the factor of the
    distance, which is r2 of ``log`` and r1 of ``power``, uniform in 0 … 1, the other in 0 … 2.
    Deliberately different: softplus and sigmoid keep r1 and r2 in their range instead of clamping,
    so that no head gets stuck at a bound.
    """

    def __init__(self, arch: Arch, kernel: Literal["log", "power"] = "log") -> None:
        super().__init__(arch)
        self.kernel = kernel
        self.raw_r1 = nn.Parameter(torch.zeros(arch.heads))
        self.raw_r2 = nn.Parameter(torch.zeros(arch.heads))

    def init_weights(self, generator: torch.Generator) -> None:
        """r1 and r2 of each head uniform in their ranges, at least 0.01."""
        factor, other = (
            (top * torch.rand(self.arch.heads, generator=generator)).clamp(min=0.01)
            for top in (1, 2)
        )
        r1, r2 = (other, factor) if self.kernel == "log" else (factor, other)
        with torch.no_grad():
            self.raw_r1.copy_(r1.expm1().log())  # the inverse of softplus
            self.raw_r2.copy_(r2.expm1().log() if self.kernel == "log" else (r2 / 2).logit())

    def bias(self, q_BTHD: Tensor, k_BSHD: Tensor, x_BTC: Tensor, positions_BS: Tensor) -> Biases:
        return ByDistance(self.decay)

    def decay(self, distance: Tensor) -> Tensor:
        """At each distance, (N,): (H, N)."""
        raw_r1, raw_r2 = (x.to(distance.dtype)[:, None] for x in (self.raw_r1, self.raw_r2))
        if self.kernel == "log":
            return -F.softplus(raw_r1) * torch.log1p(F.softplus(raw_r2) * distance)
        # 0^r2 is 0, but its derivative by r2 is not finite: distance 0 is kept out of the power.
        power = distance.clamp(min=1) ** (2 * raw_r2.sigmoid())
        return -F.softplus(raw_r1) * torch.where(distance > 0, power, 0.0)
