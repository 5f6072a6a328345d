"""Learned positions, added to the input."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tape_exp.machine.seeding import RowSampler
from tape_exp.models.positions.base import PositionEncoding
from tape_exp.settings.errors import ConfigError, at_least_one
from tape_exp.settings.schema import Arch


class Learned(PositionEncoding):
    """A learned embedding of each position: x_p ← x_p + w_p (Gehring et al., "Convolutional
    Sequence to Sequence Learning", 2017; as in GPT-2).

    w is (length, C), beginning as N(0, 0.02) like the embedding of the tokens. There are no
    positions beyond the table, and those from the training length on stay as they begin: longer
    sequences meet untrained embeddings.

    Args:
        length: rows of the table; null: the task's longest sequence.
    """

    absolute_positions = True
    embedding_parameters = ("table",)

    def __init__(self, arch: Arch, length: int | None = None) -> None:
        at_least_one("model", length=length)
        super().__init__(arch)
        self.reach = arch.max_length if length is None else length
        if self.reach < arch.max_length:
            raise self._too_long(arch.max_length)
        self.table = nn.Parameter(torch.zeros(self.reach, arch.width))

    def positions(
        self, batch: int, length: int, device: torch.device, sampler: RowSampler | None = None
    ) -> Tensor:
        """0 … T-1, (1, T) fp32. Raises ConfigError where the table is shorter."""
        assert self.reach is not None
        if length > self.reach:
            raise self._too_long(length)
        return super().positions(batch, length, device, sampler)

    def embed(self, ids_BT: Tensor) -> Tensor:
        """w of every position, (B, T, C)."""
        return F.embedding(ids_BT.long(), self.table)

    def _too_long(self, length: int) -> ConfigError:
        return ConfigError(
            f"model.length={self.reach} is the number of positions that are learned, and there are "
            f"{length} tokens; model.length={length} would do."
        )
