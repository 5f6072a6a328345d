"""GRAPE's unipotent form: ALiBi with learned slopes."""

import torch
from torch import Tensor, nn

from tape_exp.models.positions.alibi import alibi_slopes
from tape_exp.models.positions.base import RelativeBias
from tape_exp.settings.schema import Arch


class AdditiveGRAPE(RelativeBias):
    """Additive GRAPE (Zhang et al., "Group Representational Position Encoding", 2025): positions as
    powers of a unipotent matrix.

    With two more channels, q̂ = [q, 1, 0] and k̂ = [k, 0, 1], position n multiplies q̂ by G(n) and k̂
    by G(n)⁻ᵀ::

        G(n) = exp(n A) = I + n A        A = -β_h e_{d+2} e_{d+1}ᵀ, so that A² = 0
        (G(i) q̂)ᵀ G(j)⁻ᵀ k̂ = q·k - β_h (i - j)

    which is ALiBi with the slope β_h. Here the slopes are learned, per layer and head, and begin as
    ALiBi's: step 0 is ALiBi.

    Deliberately different: the term is a bias after the scaling by 1/√d, as ALiBi's, and no product
    of wider queries and keys, which 16 bits would round to 897 different positions of 8192. Left
    out: slopes that queries and keys gate, and the path-integral form.
    """

    def __init__(self, arch: Arch) -> None:
        super().__init__(arch)
        self.log_slopes = nn.Parameter(torch.tensor(alibi_slopes(arch.heads)).log())

    def at(self, distance: Tensor) -> Tensor:
        """-β_h times the distance: (H, *shape of distance)."""
        slopes = self.log_slopes.to(distance.dtype).exp()
        return -slopes.view(-1, *[1] * distance.ndim) * distance
