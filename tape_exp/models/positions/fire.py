"""FIRE: a learned function of progressively normalised distance."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tape_exp.models.positions.base import PositionEncoding, distances, full_precision, precise
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
            threshold = (self.threshold * precise(self.threshold_factor[0])).abs()
            far = torch.maximum(q_positions_BT, threshold)[:, None, :, None]
            near = distances(q_positions_BT, k_positions_BS)
            relative = self._psi(near) / (self._psi(far) + 1e-6)
            inner, outer = (
                [precise(parameter) for parameter in (linear.weight, linear.bias)]
                for linear in (self.inner, self.outer)
            )
            hidden = F.relu(F.linear(relative[..., None], *inner))
            return F.linear(hidden, *outer).squeeze(1).permute(0, 3, 1, 2)

    def pair_bytes(self) -> int:
        """Distance, ratio, the hidden layer and the bias of every pair."""
        return 4 * self.inner.out_features + 4 * self.arch.heads + 17

    def counted_operations(self, length: int) -> tuple[int, int]:
        """The MLP on every pair of tokens; its ReLU as FLOPs."""
        hidden, heads = self.inner.out_features, self.outer.out_features
        return length**2 * (hidden + hidden * heads), length**2 * hidden

    def _psi(self, x: Tensor) -> Tensor:
        return torch.log(precise(self.c[0]).abs() * x + 1)
