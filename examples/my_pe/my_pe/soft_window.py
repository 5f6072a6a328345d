"""A window with a soft edge, which every head learns."""

import torch
from torch import Tensor, nn

from tape_exp.models.biases import ByDistance
from tape_exp.models.positions.base import PositionEncoding
from tape_exp.settings.schema import Arch, Positive


class SoftWindow(PositionEncoding):
    """b(i, j) = -s_h max(0, i - j - w_h): free within w_h tokens, then a slope as ALiBi has it.

    Args:
        width: w_h at the beginning, in tokens.
        slope: s_h at the beginning.
    """

    def __init__(self, arch: Arch, width: Positive = 4.0, slope: Positive = 0.1) -> None:
        super().__init__(arch)
        self.width = nn.Parameter(torch.full((arch.heads, 1), width))
        self.slope = nn.Parameter(torch.full((arch.heads, 1), slope))

    def bias(self, *_: Tensor) -> ByDistance:
        """The bias of every head at each distance."""
        return ByDistance(lambda distance: -self.slope * (distance - self.width).clamp(min=0))
