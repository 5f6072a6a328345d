"""Learned positions, added to the input."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tape_exp.models.positions.base import PositionEncoding
from tape_exp.settings.errors import ConfigError
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
        self.length = arch.max_length if length is None else length
        self.require(arch.max_length)
        self.embedding = nn.Parameter(torch.zeros(self.length, arch.width))

    def require(self, length: int) -> None:
        if length > self.length:
            raise ConfigError(
                f"model.length={self.length} is the number of positions that are learned, and "
                f"there are {length} tokens; model.length={length} would do."
            )

    def embed(self, x_BTC: Tensor, tokens_BT: Tensor, positions_BT: Tensor, *_: Any) -> Tensor:
        return x_BTC + F.embedding(positions_BT.long(), self.embedding)
