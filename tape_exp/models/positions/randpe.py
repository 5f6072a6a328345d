"""Randomised positions, for every encoding that reads positions."""

import torch
from torch import Tensor

from tape_exp.machine.seeding import RowSampler
from tape_exp.settings.errors import ConfigError

MOST = 2**22  # positions to draw from: each row of a batch shuffles them all


class RandomPositions:
    """Randomised positions: a sorted random subset of 0 … L_max - 1 instead of 0 … T - 1 (Ruoss et
    al., "Randomized Positional Encodings Boost Length Generalization of Transformers", 2023).

    Training then meets every position that longer sequences will need. With RoPE it is RandPE. One
    subset per sequence is drawn, also at evaluation; every layer and every cached step of that
    sequence sees the same one. Deliberately different from the TAPE paper's public code, which
    draws S positions out of S for arithmetic and so computes RoPE.

    The subset has as many positions as the padded row, as in the authors' code: how far apart those
    of a short row are depends on the longest row of its batch, and so, at evaluation, on the task's
    ``rows_per_batch``.

    Args:
        multiple: L_max as a multiple of the task's longest sequence, ``model.random_range``; above
            1, as the schema checks.
        max_length: the task's longest sequence, in tokens.
    """

    def __init__(self, multiple: float, max_length: int) -> None:
        self.range, self.max_length = round(multiple * max_length), max_length
        if not max_length < self.range <= MOST and max_length:
            raise ConfigError(
                f"model.random_range={multiple} makes {self.range:,} positions to draw from, which "
                f"must be above {max_length} and at most {MOST:,}; model.random_range=2 is usual."
            )

    def sample(
        self, rows: int, length: int, device: torch.device, sampler: RowSampler | None
    ) -> Tensor:
        """(rows, length) fp32: for each row a sorted sample, without replacement.

        Raises:
            ConfigError: there are fewer positions than tokens.
            ValueError: no sampler is given.
        """
        if length > self.range:
            raise ConfigError(
                f"{length} tokens do not fit in {self.range} random positions; "
                f"model.random_range={2 * length / max(self.max_length, 1):.1f} would do."
            )
        if sampler is None:
            raise ValueError("The positions of this model are random: pass a RowSampler.")
        shuffled = sampler.integers(rows, self.range, device).argsort(dim=-1, stable=True)
        return shuffled[:, :length].sort(-1).values.float()
