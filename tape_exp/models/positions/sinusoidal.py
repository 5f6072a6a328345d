"""Sinusoidal positions, added to the input."""

import torch
from torch import Tensor

from tape_exp.models.places import Places
from tape_exp.models.positions.base import PositionEncoding
from tape_exp.models.positions.rope_scaling import Theta
from tape_exp.settings.schema import Arch, Positive


class Sinusoidal(PositionEncoding):
    """Sinusoidal positions (Vaswani et al., "Attention Is All You Need", 2017)::

        x_p ← x_p + s · PE(p)
        PE(p)_{2m} = sin(p / θ^{2m/C})        PE(p)_{2m+1} = cos(p / θ^{2m/C})

    Deliberately different from the paper, which multiplies the embeddings of the tokens by √C: this
    decoder's begin as N(0, 0.02), and s, ``scale``, makes PE as small.
    """

    def __init__(self, arch: Arch, theta: Theta = 10_000.0, scale: Positive = 0.02) -> None:
        super().__init__(arch)
        self.theta = theta
        self.scale = scale

    def embed(self, x_BTC: Tensor, places: Places) -> Tensor:
        C = self.arch.width
        positions_BT = places.positions
        exponents = torch.arange(0, C, 2, device=x_BTC.device, dtype=positions_BT.dtype) / C
        angles = positions_BT[..., None] * self.theta**-exponents
        waves = torch.stack([angles.sin(), angles.cos()], -1).flatten(-2)[..., :C]
        return x_BTC + self.scale * waves
