"""A window with a soft edge, which every head learns."""

import torch
from torch import Tensor, nn

from tape_exp.models.positions.base import RelativeBias
from tape_exp.settings.errors import positive
from tape_exp.settings.schema import Arch


class SoftWindow(RelativeBias):
    """b(i, j) = -s_h max(0, i - j - w_h): free within w_h tokens, then a slope as ALiBi has it.

    Args:
        width: w_h at the beginning, in tokens.
        slope: s_h at the beginning.
    """

    def __init__(self, arch: Arch, width: float = 4.0, slope: float = 0.1) -> None:
        positive("model", width=width, slope=slope)
        super().__init__(arch)
        self.width = nn.Parameter(torch.full((arch.heads,), width))
        self.slope = nn.Parameter(torch.full((arch.heads,), slope))

    def at(self, distance: Tensor) -> Tensor:
        """The bias of every head at each distance: (H, *shape of distance)."""
        shape = (-1, *[1] * distance.ndim)
        return -self.slope.view(shape) * (distance - self.width.view(shape)).clamp(min=0)
