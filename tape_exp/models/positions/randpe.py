"""Randomised positions, for any encoding that reads positions."""

from typing import Any

import torch
from torch import Tensor

from tape_exp.machine.seeding import RowSampler
from tape_exp.models.positions.base import PositionEncoding
from tape_exp.models.positions.rope import RoPE
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.schema import Arch

MOST = 2**22  # positions to draw from: each row of a batch shuffles them all


class RandomPositions(PositionEncoding):
    """Randomised positions: a sorted random subset of 0 … L_max - 1 instead of 0 … T - 1 (Ruoss et
    al., "Randomized Positional Encodings Boost Length Generalization of Transformers", 2023).

    Training then meets every position that longer sequences will need. A class that inherits first
    from this one and then from an encoding is that encoding on random positions, with the keys of
    both. One subset per sequence is drawn, also at evaluation, from the sampler that ``positions``
    is given; every layer and every cached step of that sequence sees the same one.

    The subset has as many positions as the padded row, as in the authors' code: how far apart those
    of a short row are depends on the longest row of its batch, and so, at evaluation, on the task's
    ``rows_per_batch``.

    Args:
        range_factor: L_max as a multiple of the task's longest sequence; above 1.
        settings: of the encoding.
    """

    consecutive = False
    unlike_rope: str | None = "its positions are random"

    def __init__(self, arch: Arch, range_factor: float = 2.0, **settings: Any) -> None:
        super().__init__(arch, **settings)
        if range_factor <= 1:
            raise ConfigError(
                f"model.range_factor={range_factor} must be above 1: with 1 there is nothing to "
                "draw from."
            )
        self.range = round(range_factor * arch.max_length)
        if self.range == arch.max_length > 0:
            raise ConfigError(
                f"model.range_factor={range_factor} is too near 1: all of {self.range} positions "
                "would be drawn; model.range_factor=2 is usual."
            )
        if self.range > MOST:
            raise ConfigError(
                f"model.range_factor={range_factor} makes {self.range:,} positions to draw "
                f"from, of which there may be {MOST:,}; model.range_factor=2 is usual."
            )

    def positions(
        self, batch: int, length: int, device: torch.device, sampler: RowSampler | None = None
    ) -> Tensor:
        """(B, T) fp32: a sorted sample, without replacement, of the encoding's first L_max."""
        if length > self.range:
            raise ConfigError(
                f"{length} tokens do not fit in {self.range} random positions; "
                f"model.range_factor={2 * length / self.arch.max_length:.1f} would do."
            )
        if sampler is None:
            raise ValueError(f"{type(self).__name__} samples positions: pass a RowSampler.")
        all_positions = super().positions(batch, self.range, device, sampler)
        shuffled = sampler.integers(batch, self.range, device).argsort(dim=-1, stable=True)
        chosen_BT = shuffled[:, :length].sort(-1).values
        return all_positions.expand(batch, -1).gather(1, chosen_BT)


class RandPE(RandomPositions, RoPE):
    """RandPE: RoPE on :class:`RandomPositions`.

    Deliberately different from the TAPE paper's public code, which draws S positions out of S for
    arithmetic and so computes RoPE: here L_max is ``range_factor`` × the longest sequence of the
    task.

    Args:
        range_factor: as in :class:`RandomPositions`.
        theta, scaling: as in RoPE.
    """
