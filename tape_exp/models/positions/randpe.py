"""Randomised positions."""

import torch
from torch import Tensor

from tape_exp.machine.seeding import RowSampler
from tape_exp.models.positions.rope import RoPE
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.schema import Arch

MOST = 2**22  # positions to draw from: each row of a batch shuffles them all


class RandPE(RoPE):
    """RandPE: RoPE on a sorted random subset of 0 … L_max - 1 (Ruoss et al., "Randomized Positional
    Encodings Boost Length Generalization of Transformers", 2023).

    Training then meets every position that longer sequences will need. One subset per sequence is
    drawn, also at evaluation, from the sampler that ``positions`` is given; every layer and every
    cached step of that sequence sees the same one. Deliberately different from the TAPE paper's
    public code, which draws S positions out of S for arithmetic and so computes RoPE: here L_max is
    ``range_factor`` × the longest sequence of the task.

    Args:
        theta: base of the frequencies.
        range_factor: L_max as a multiple of the task's longest sequence; above 1.
    """

    consecutive = False

    def __init__(self, arch: Arch, theta: float = 10_000.0, range_factor: float = 2.0) -> None:
        super().__init__(arch, theta)
        if range_factor <= 1:
            raise ConfigError(
                f"model.range_factor={range_factor} must be above 1: with 1 there is nothing to "
                "draw from."
            )
        self.range = round(range_factor * arch.max_length)
        if self.range > MOST:
            raise ConfigError(
                f"model.range_factor={range_factor} makes {self.range:,} positions to draw "
                f"from, of which there may be {MOST:,}; model.range_factor=2 is usual."
            )

    def positions(
        self, batch: int, length: int, device: torch.device, sampler: RowSampler | None = None
    ) -> Tensor:
        """(B, T) fp32: a sorted sample without replacement for each row."""
        if length > self.range:
            raise ConfigError(
                f"{length} tokens do not fit in RandPE's {self.range} positions; "
                f"model.range_factor={2 * length / self.arch.max_length:.1f} would do."
            )
        if sampler is None:
            raise ValueError("RandPE samples positions: pass a RowSampler.")
        shuffled = sampler.integers(batch, self.range).to(device).argsort(dim=-1, stable=True)
        return shuffled[:, :length].sort(-1).values.float()
