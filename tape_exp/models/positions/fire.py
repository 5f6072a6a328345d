"""FIRE: a learned function of progressively normalised distance."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.compiler import is_compiling

from tape_exp.models.biases import ByDistance, ByPosition
from tape_exp.models.places import Places
from tape_exp.models.positions.base import PositionEncoding
from tape_exp.models.positions.parts import linear, uniform
from tape_exp.models.precision import precise
from tape_exp.settings.schema import Arch, Count, Positive


class FIRE(PositionEncoding):
    """FIRE: b(i, j) = f(ψ(i - j) / ψ(max(i, L))), ψ(x) = log(|c| x + 1), f an MLP 1 → hidden → H
    (Li et al., "Functional Interpolation for Relative Positions Improves Long Context
    Transformers", 2023).

    The bias is added after the factor 1/√d. Beyond the threshold, i > L, it depends on i too. c and
    a factor on L, 1 at first, are trained per layer.

    Args:
        c, threshold: c and L at first, L in tokens.
    """

    def __init__(
        self, arch: Arch, hidden: Count = 32, c: float = 0.1, threshold: Positive = 512.0
    ) -> None:
        super().__init__(arch)
        self.threshold = threshold
        self.inner = nn.Linear(1, hidden)
        self.outer = nn.Linear(hidden, arch.heads)
        # vectors, since FSDP2 shards no scalars
        self.c = nn.Parameter(torch.tensor([c]))
        self.threshold_factor = nn.Parameter(torch.tensor([1.0]))

    def init_weights(self, generator: torch.Generator) -> None:
        """Draw both maps uniformly in ± 1/√inputs: a bias near zero would learn its shape late."""
        uniform(self.inner, generator)
        uniform(self.outer, generator)

    def bias(
        self, q_BTHD: Tensor, k_BSHD: Tensor, x_BTC: Tensor, state: Any, places: Places
    ) -> ByDistance | ByPosition:
        """Return f of the normalised log-distance. Only a CPU asks whether a position is beyond the
        threshold: where none is, one value serves each distance, and elsewhere :meth:`pieces` do.
        """
        threshold = (self.threshold * precise(self.threshold_factor[0])).abs()
        on_cpu = x_BTC.device.type == "cpu" and not is_compiling()
        if on_cpu and places.key_positions.amax() <= threshold:
            return ByDistance(lambda distance: self.mlp(self.relative(distance, threshold)))
        f = self.pieces() if on_cpu else self.mlp

        def at(queries_BT: Tensor, keys_BS: Tensor) -> Tensor:
            distances_BTS = (queries_BT[:, :, None] - keys_BS[:, None]).clamp(min=0)
            far_BT1 = torch.maximum(queries_BT, threshold)[..., None]
            return f(self.relative(distances_BTS, far_BT1)).transpose(0, 1)

        return ByPosition(at)

    def relative(self, distances: Tensor, far: Tensor) -> Tensor:
        """Return ψ(distances) / ψ(far), from 0 to 1."""
        return self.psi(distances) / (self.psi(far) + 1e-6)  # never 0

    def mlp(self, relative: Tensor) -> Tensor:
        """Return f of relative distances, (H, …)."""
        hidden = F.relu(linear(self.inner, relative[..., None]), inplace=True)
        return linear(self.outer, hidden).movedim(-1, 0)

    def pieces(self) -> Callable[[Tensor], Tensor]:
        """Return f as the piecewise linear function of one number that it is, with a bend for each
        of N hidden units: the same as :meth:`mlp` for a third of its time where a CPU has a million
        pairs. P = N + 1 pieces; on each f is slope · x + offset, sums over the units whose ReLU is
        not 0 there::

            pieces                   0 | 1 | 2
            unit 0, weight > 0       0 | / | /        active after its bend
            unit 1, weight < 0       - | - | 0        active before its bend
        """
        outer_HN = precise(self.outer.weight)
        weight_N = precise(self.inner.weight[:, 0])
        shift_N = precise(self.inner.bias)
        # A unit of weight 0, or -0, is a number everywhere: as if its bend were beyond all others.
        bends_N = (-shift_N / (weight_N + 0.0)).detach()
        bends_N = bends_N.nan_to_num(torch.inf, torch.inf, -torch.inf)
        bends_N, order_N = bends_N.sort()
        unit_N = torch.arange(len(bends_N))
        piece_P1 = torch.arange(len(bends_N) + 1)[:, None]
        rises_N = weight_N[order_N] >= 0
        active_PN = torch.where(rises_N, unit_N < piece_P1, unit_N >= piece_P1).to(outer_HN.dtype)
        slopes_HP = (outer_HN * weight_N)[:, order_N] @ active_PN.T
        offsets_HP = (outer_HN * shift_N)[:, order_N] @ active_PN.T
        offsets_HP = offsets_HP + precise(self.outer.bias)[:, None]
        table = torch.cat([slopes_HP, offsets_HP])

        def at(relative: Tensor) -> Tensor:
            piece = torch.bucketize(relative.detach(), bends_N).flatten()
            slope, offset = table.index_select(1, piece).unflatten(1, relative.shape).chunk(2)
            return torch.addcmul(offset, slope, relative)

        return at

    def psi(self, x: Tensor) -> Tensor:
        return torch.log(precise(self.c[0]).abs() * x + 1)
