"""Sinusoidal positions, added to the input."""

import torch
from torch import Tensor

from tape_exp.models.positions.base import PositionEncoding
from tape_exp.settings.errors import at_least_one, positive
from tape_exp.settings.schema import Arch


class Sinusoidal(PositionEncoding):
    """Sinusoidal positions (Vaswani et al., "Attention Is All You Need", 2017)::

        x_p ← x_p + s · PE(p)
        PE(p)_{2m} = sin(p / θ^{2m/C})        PE(p)_{2m+1} = cos(p / θ^{2m/C})

    Nothing is trained, and there is an embedding for every position. Deliberately different from
    the paper, which multiplies the embeddings of the tokens by √C instead: this decoder's begin as
    N(0, 0.02), next to which PE would be all that is seen, so ``scale`` makes it as small.

    Args:
        theta: base of the frequencies.
        scale: s.
    """

    absolute_positions = True

    def __init__(self, arch: Arch, theta: float = 10_000.0, scale: float = 0.02) -> None:
        at_least_one("model", theta=theta)
        positive("model", scale=scale)
        super().__init__(arch)
        self.theta, self.scale = theta, scale

    def embed(self, ids_BT: Tensor) -> Tensor:
        """s · PE, (B, T, C) in the positions' dtype."""
        C = self.arch.width
        exponents = torch.arange(0, C, 2, device=ids_BT.device, dtype=ids_BT.dtype) / C
        angles = ids_BT[..., None] * self.theta**-exponents
        return self.scale * torch.stack([angles.sin(), angles.cos()], -1).flatten(-2)[..., :C]
