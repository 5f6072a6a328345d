"""Kerple and BAM: learned logarithmic or power decay."""

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tape_exp.models.biases import ByDistance
from tape_exp.models.positions.base import Biases, PositionEncoding
from tape_exp.models.precision import precise
from tape_exp.settings.schema import Arch

EPSILON = 1e-5  # of BAM's authors: keeps powers of distance 0 finite


class Kerple(PositionEncoding):
    """Kerple (Chi et al., "KERPLE: Kernelized Relative Positional Embedding for Length
    Extrapolation", 2022), with r1, r2 > 0 learned per layer and head:

    - ``log``: b(i, j) = -r1 log(1 + r2 (i - j))
    - ``power``: b(i, j) = -r1 (i - j)^r2 with r2 <= 2

    As in the authors' code (github.com/chijames/KERPLE) the factor of the distance, r2 of ``log``
    and r1 of ``power``, begins uniform in 0 … 1, the other in 0 … 2. Deliberately different:
    softplus and sigmoid keep them in their range, where a clamp would hold a head at its bound.
    """

    def __init__(self, arch: Arch, kernel: Literal["log", "power"] = "log") -> None:
        super().__init__(arch)
        self.kernel = kernel
        self.raw_r1 = nn.Parameter(torch.zeros(arch.heads))
        self.raw_r2 = nn.Parameter(torch.zeros(arch.heads))

    def init_weights(self, generator: torch.Generator) -> None:
        """Draw r1 and r2 of each head uniformly in their ranges, at least 0.01."""
        heads = self.arch.heads
        of_distance = torch.rand(heads, generator=generator).clamp(min=0.01)
        other = (2 * torch.rand(heads, generator=generator)).clamp(min=0.01)
        with torch.no_grad():
            if self.kernel == "log":
                self.raw_r1.copy_(inverse_softplus(other))
                self.raw_r2.copy_(inverse_softplus(of_distance))
            else:
                self.raw_r1.copy_(inverse_softplus(of_distance))
                self.raw_r2.copy_((other / 2).logit())

    def bias(self, *_: Any) -> Biases:
        return ByDistance(self.decay)

    def decay(self, distance: Tensor) -> Tensor:
        """Return b at each distance, (N,): (H, N)."""
        raw_r1 = self.raw_r1.to(distance.dtype)[:, None]
        raw_r2 = self.raw_r2.to(distance.dtype)[:, None]
        if self.kernel == "log":
            return -F.softplus(raw_r1) * torch.log1p(F.softplus(raw_r2) * distance)
        # 0^r2 is 0, but its derivative by r2 is not finite: distance 0 is kept out of the power.
        base = torch.where(distance > 0, distance, 1.0)
        power = base ** (2 * raw_r2.sigmoid())
        return -F.softplus(raw_r1) * torch.where(distance > 0, power, 0.0)


def inverse_softplus(x: Tensor) -> Tensor:
    """Return log(exp(x) - 1)."""
    return x.expm1().log()


class BAM(PositionEncoding):
    """BAM (Bianchessi et al., "Bayesian Attention Mechanism: A Probabilistic Framework for
    Positional Encoding and Context Length Extrapolation", 2025), its generalized Gaussian prior
    around the query::

        b(i, j) = -exp(α_h) (i - j + ε)^β_h

    α and β are learned per layer and head and begin at 0, so that step 0 is NoPE. β = 1 is ALiBi
    with the slope exp(α); a negative β hides what is near. The paper's form with Scalable-Softmax
    has ``+model.ssmax=true``. Left out: a learned centre μ, which the authors' code
    (github.com/ArthurSBianchessi/BAM) keeps at 0 too.
    """

    def __init__(self, arch: Arch) -> None:
        super().__init__(arch)
        self.alpha = nn.Parameter(torch.zeros(arch.heads))
        self.beta = nn.Parameter(torch.zeros(arch.heads))

    def bias(self, *_: Any) -> ByDistance:
        alpha = precise(self.alpha)[:, None]
        beta = precise(self.beta)[:, None]
        return ByDistance(lambda distance: -alpha.exp() * (distance + EPSILON) ** beta)
