"""FIRE: a learned function of progressively normalised distance."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tape_exp.models.kernels.causal import Piecewise
from tape_exp.models.positions.base import PositionEncoding, distances
from tape_exp.models.precision import full_precision, precise
from tape_exp.settings.errors import at_least_one
from tape_exp.settings.schema import Arch


class FIRE(PositionEncoding):
    """FIRE: b(i, j) = f(ψ(i - j) / ψ(max(i, L))), ψ(x) = log(|c| x + 1), f an MLP 1 → 32 → H (Li et
    al., "Functional Interpolation for Relative Positions Improves Long Context Transformers",
    2023).

    c and a factor on L are trained per layer, beginning at ``c`` and 1. The bias is added after the
    factor 1/√d. Up to the threshold (i <= L) it depends only on the distance, beyond it also on i.

    Args:
        hidden: inner size of f.
        c: initial c.
        threshold: initial L, in tokens.
    """

    absolute_positions = True

    def __init__(
        self, arch: Arch, hidden: int = 32, c: float = 0.1, threshold: float = 512.0
    ) -> None:
        at_least_one("model", hidden=hidden)
        super().__init__(arch)
        self.threshold = threshold
        self.inner = nn.Linear(1, hidden)
        self.outer = nn.Linear(hidden, arch.heads)
        # vectors, since FSDP2 shards no scalars
        self.c = nn.Parameter(torch.tensor([c]))
        self.threshold_factor = nn.Parameter(torch.tensor([1.0]))

    def init_weights(self, generator: torch.Generator) -> None:
        """Both maps uniform in ± 1/√inputs: a bias near zero would learn its shape late."""
        for linear in (self.inner, self.outer):
            bound = linear.in_features**-0.5
            nn.init.uniform_(linear.weight, -bound, bound, generator=generator)
            nn.init.uniform_(linear.bias, -bound, bound, generator=generator)

    def bias(self, q_positions_BT: Tensor, k_positions_BS: Tensor) -> Tensor:
        """f of the normalised log-distance, (B, H, T, S) fp32."""
        with full_precision(q_positions_BT):
            far = self._scale(q_positions_BT)[:, None, :, None]
            relative = self._psi(distances(q_positions_BT, k_positions_BS)) / far
            inner, outer = self._maps()
            hidden = F.relu(F.linear(relative[..., None], *inner))
            return F.linear(hidden, *outer).squeeze(1).permute(0, 3, 1, 2)

    def piecewise(self, length: int, device: torch.device) -> Piecewise:
        """f as lines: a unit of the hidden layer, ReLU(w x + b), bends it at -b / w, and is active
        from there on if w > 0, up to there if w < 0.
        """
        positions = torch.arange(length, device=device, dtype=torch.float32)
        with full_precision(positions):
            (inner, b), (outer, constant) = self._maps()
            w = inner[:, 0]
            # Where w = 0 the unit does not bend f, and is active everywhere or nowhere.
            bends, order = torch.where(w == 0, torch.inf, -b / w).detach().sort()
            w, b, outer = w[order], b[order], outer[:, order]
            unit = torch.arange(len(w), device=device)[:, None]
            after = torch.arange(len(w) + 1, device=device) > unit  # (units, pieces)
            active = (after == (w > 0)[:, None]) & ((w != 0) | (b > 0))[:, None]
            # Sums instead of matrix products, which a GPU may round to TF32.
            level, rise = (torch.where(active, (outer * x)[:, :, None], 0.0).sum(1) for x in (b, w))
            near, far = self._psi(positions), 1 / self._scale(positions)
            return Piecewise(near, far, bends, constant[:, None] + level, rise)

    def counted_operations(self, length: int) -> tuple[int, int]:
        """The MLP on every pair of tokens; its ReLU as FLOPs."""
        hidden, heads = self.inner.out_features, self.outer.out_features
        return length**2 * (hidden + hidden * heads), length**2 * hidden

    def _maps(self) -> list[list[Tensor]]:
        """Weight and bias of the inner and the outer map of f."""
        return [
            [precise(parameter) for parameter in (linear.weight, linear.bias)]
            for linear in (self.inner, self.outer)
        ]

    def _scale(self, positions: Tensor) -> Tensor:
        """ψ(max(i, L)), which is never 0."""
        threshold = (self.threshold * precise(self.threshold_factor[0])).abs()
        return self._psi(torch.maximum(positions, threshold)) + 1e-6

    def _psi(self, x: Tensor) -> Tensor:
        return torch.log(precise(self.c[0]).abs() * x + 1)
