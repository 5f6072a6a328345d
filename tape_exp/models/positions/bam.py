"""BAM: a generalized Gaussian prior of the distance."""

import torch
from torch import Tensor, nn

from tape_exp.models.attention import ByDistance
from tape_exp.models.positions.base import PositionEncoding
from tape_exp.settings.schema import Arch

EPSILON = 1e-5  # of the authors' code: keeps powers of distance 0 finite


class BAM(PositionEncoding):
    """BAM (Bianchessi et al., "Bayesian Attention Mechanism: A Probabilistic Framework for
    Positional Encoding and Context Length Extrapolation", 2025) with its generalized Gaussian
    prior around the query::

        b(i, j) = -exp(α_h) (i - j + ε)^β_h

    α and β are learned per layer and head and begin at 0, so that step 0 is NoPE. β = 1 is ALiBi
    with the slope exp(α); a negative β hides what is near. The paper's form with Scalable-Softmax
    has ``+model.ssmax=true``. Left out: a learned centre μ, which the authors' code
    (github.com/ArthurSBianchessi/BAM) keeps at 0 too.
    """

    def __init__(self, arch: Arch) -> None:
        super().__init__(arch)
        self.alpha = nn.Parameter(torch.zeros(arch.heads, 1))
        self.beta = nn.Parameter(torch.zeros(arch.heads, 1))

    def init_weights(self, generator: torch.Generator) -> None:
        """α and β stay zero."""

    def bias(self, *_: Tensor) -> ByDistance:
        return ByDistance(self.log_prior)

    def log_prior(self, distance: Tensor) -> Tensor:
        """At each distance, (N,): (H, N)."""
        alpha, beta = self.alpha.to(distance.dtype), self.beta.to(distance.dtype)
        return -alpha.exp() * (distance + EPSILON) ** beta
