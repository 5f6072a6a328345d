"""PoPE: what a token is in magnitudes, where it is in phases."""

import math
from typing import Any, Literal

import torch
from torch import Tensor, nn

from tape_exp.models.places import Places
from tape_exp.models.positions.base import PositionEncoding, Rotated
from tape_exp.models.positions.rope import rotations
from tape_exp.models.positions.rope_scaling import Theta
from tape_exp.models.precision import precise
from tape_exp.settings.schema import Arch


class PoPE(PositionEncoding):
    """PoPE (Gopalakrishnan et al., "Decoupling the 'What' and 'Where' With Polar Coordinate
    Positional Embeddings", 2025). Every channel c of queries and keys is a complex number, with the
    content as its magnitude and the position as its phase::

        logit(i, j) = Σ_c softplus(q_ic) softplus(k_jc) cos((i - j) θ_c - δ_c) / √d
        θ_c = θ^(-c/d)    c = 0 … d - 1

    Only the learned phase δ of each key head moves the distance that a channel prefers. Real and
    imaginary parts are queries and keys of width 2d beside values of width d. Deliberately
    different: δ is not clamped to [-2π, 0], since a clamped angle gets no gradient. A δ for each
    key head is as in public code (lucidrains/PoPE-pytorch); the authors' was not seen.

    Args:
        theta: base of the frequencies.
        phases: the first δ: ``zero``, which extrapolated better in the paper, or ``uniform`` in
            [-2π, 0], which was better within the trained length.
    """

    grouped_keys = True

    def __init__(
        self, arch: Arch, theta: Theta = 10_000.0, phases: Literal["zero", "uniform"] = "zero"
    ) -> None:
        super().__init__(arch)
        self.theta = theta
        self.phases = phases
        self.delta = nn.Parameter(torch.zeros(arch.key_heads, arch.head_dim))

    def init_weights(self, generator: torch.Generator) -> None:
        if self.phases == "uniform":
            nn.init.uniform_(self.delta, -2 * math.pi, 0.0, generator=generator)

    def start(self, places: Places) -> Tensor:
        """Return cosine and sine of position · θ_c: (B, T, 1, 2, d)."""
        d = self.arch.head_dim
        positions_BT = places.positions
        channels = torch.arange(d, device=positions_BT.device, dtype=positions_BT.dtype)
        return rotations(positions_BT[:, :, None, None] * self.theta ** (-channels / d))

    def rotate(
        self, q_BTHD: Tensor, k_BTHD: Tensor, x_BTC: Tensor, state: Any, places: Places
    ) -> Rotated:
        """Return real and imaginary parts, (B, T, H, 2d) and (B, T, K, 2d). Logits are divided by
        √(2d), so both are multiplied by the fourth root of 2.
        """
        delta = precise(self.delta)
        cos, sin = state.unbind(-2)
        turned = (cos * delta.cos() - sin * delta.sin(), sin * delta.cos() + cos * delta.sin())
        return self._polar(q_BTHD, cos, sin), self._polar(k_BTHD, *turned)

    def _polar(self, x_BTHD: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        # Not F.softplus: what torch.compile expects of its backward pass has other strides.
        magnitude = torch.logaddexp(x_BTHD, x_BTHD.new_zeros(())) * 2**0.25
        return torch.cat([magnitude * cos, magnitude * sin], -1)
