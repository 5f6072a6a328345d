"""Learned positions, added to the input."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tape_exp.models.places import Places
from tape_exp.models.positions.base import PositionEncoding
from tape_exp.settings.schema import Arch, Count


class Learned(PositionEncoding):
    """A learned embedding of each position: x_p ← x_p + w_p (Gehring et al., "Convolutional
    Sequence to Sequence Learning", 2017; as in GPT-2).

    w is (length, C), beginning as N(0, 0.02). There are no positions beyond the table, and those
    from the training length on stay as they begin.

    Args:
        length: rows of the table; null: the task's longest sequence.
    """

    def __init__(self, arch: Arch, length: Count | None = None) -> None:
        super().__init__(arch)
        self.reach = arch.max_length if length is None else length
        self.require(arch.max_length)
        self.embedding = nn.Parameter(torch.empty(self.reach, arch.width))

    def embed(self, x_BTC: Tensor, places: Places) -> Tensor:
        return x_BTC + F.embedding(places.positions.long(), self.embedding)
