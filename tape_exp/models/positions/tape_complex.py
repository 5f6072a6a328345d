"""TAPE with a complex ψ: each token may turn its own position, not only scale it."""

import torch
from torch import Tensor, nn

from tape_exp.models.positions.base import LayerOutputs
from tape_exp.models.positions.tape import TAPE


class ComplexTAPE(TAPE):
    """TAPE whose update from the token's features is complex::

        E ← E + P Ẽ
        E ← E + W2 diag(SiLU(W_x x̃) + i SiLU(W_y x̃)) W1ᵀ E     W_y: I × C, as W_x

    State E: (B, T, H, 2, d/2) fp32, one complex number a block, as in TAPE. Deliberately different
    from the paper, whose ψ is real: there only Ẽ, which comes from other tokens, brings another
    phase, and a token cannot turn its own position. Multiplying by i commutes with every rotation
    of E, so that logits still depend only on distances. It does not commute with mirroring, so
    that the group of the equivariance is SO(2) and no longer O(2).

    Args:
        settings: of :class:`TAPE`.
    """

    def _make_weights(self, rows: int, inner: int) -> None:
        super()._make_weights(rows, inner)
        if self.feed_forward:
            self.update_net["wy"] = torch.zeros(inner, self.arch.width)

    def init_weights(self, generator: torch.Generator) -> None:
        """Draw as TAPE, and W_y as W_x; W2 = 0: step 0 is RoPE."""
        super().init_weights(generator)
        if self.feed_forward:
            nn.init.normal_(self.update_net["wy"], std=0.02, generator=generator)

    def mapped(self, E_BTGE: Tensor, tokens: LayerOutputs, mixing_HG: Tensor) -> Tensor:
        """Apply A ``mixing`` to E: the real part of A times E, and its imaginary part times i E."""
        scaled = super().mapped(E_BTGE, tokens, mixing_HG)
        if not self.feed_forward:
            return scaled
        psi_BTI = self.psi(tokens, self.update_net["wy"].to(E_BTGE.dtype))
        maps_BTHG = torch.einsum("bti,ihg->bthg", psi_BTI, self.outer_products(mixing_HG))
        return scaled + maps_BTHG @ times_i(E_BTGE)


def times_i(E_BTGE: Tensor) -> Tensor:
    """Return i E, of real and imaginary parts side by side."""
    real, imaginary = E_BTGE.chunk(2, -1)
    return torch.cat([-imaginary, real], -1)
