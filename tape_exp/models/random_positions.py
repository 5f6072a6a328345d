"""Random positions instead of 0 … T - 1, which every encoding can be given."""

from collections.abc import Sequence

import torch
from torch import Tensor

from tape_exp.machine.seeding import RowSampler
from tape_exp.models.layers import LayerKind
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.schema import Arch

MOST = 2**22  # random positions to draw from: each row of a batch shuffles them all


class RandomPositions:
    """Randomised positions: a sorted random subset of 0 … L_max - 1 instead of 0 … T - 1 (Ruoss et
    al., "Randomized Positional Encodings Boost Length Generalization of Transformers", 2023), so
    that training meets every position of longer sequences. With RoPE it is RandPE.

    Each sequence draws one subset, also at evaluation, which all its layers and cached steps see.
    Deliberately different from the TAPE paper's public code, which draws S positions out of S for
    arithmetic and so computes RoPE. As in the authors' code the subset has as many positions as the
    padded row: how far apart those of a short row are depends on the longest row of its batch.
    ``multiple`` is L_max over the task's longest sequence.
    """

    def __init__(self, multiple: float, arch: Arch) -> None:
        self.range = round(multiple * arch.max_length)
        self.max_length = arch.max_length
        self.train_length = arch.train_length
        max_length = arch.max_length
        if not max_length < self.range <= MOST and max_length:
            raise ConfigError(
                f"model.random_range={multiple} makes {self.range:,} positions to draw from, which "
                f"must be above {max_length} and at most {MOST:,}; model.random_range=2 is usual."
            )

    def sample(
        self,
        rows: int,
        length: int,
        device: torch.device,
        sampler: RowSampler | None,
        training: bool = False,
    ) -> Tensor:
        """Draw a sorted sample for each row, without replacement: (rows, length) fp32."""
        if length > self.range:
            raise ConfigError(
                f"{length} tokens do not fit in {self.range} random positions; "
                f"model.random_range={2 * length / max(self.max_length, 1):.1f} would do."
            )
        assert sampler is not None, "The positions of this model are random: pass a RowSampler."
        shuffled = sampler.integers(rows, self.range, device).argsort(dim=-1, stable=True)
        return shuffled[:, :length].sort(-1).values.float()


class RandomFloats(RandomPositions):
    """Random Float Sampling (Shimizu et al., "Position Encoding with Random Float Sampling Enhances
    Length Generalization of Transformers", 2026, arXiv:2602.14050): in training the positions of a
    row of T tokens are T sorted draws from a continuous range; in evaluation they are equally
    spaced in the same range, with T' tokens of which training has T_train at most::

        p_i = L_max u_(i),  u ~ U[0, 1);    p_i = L_max (2i - 1) / (2 max(T_train, T')),  i = 1 … T'

    Deliberately different from the paper's range [0, 1), where RoPE's lower frequencies would not
    turn. The paper was not at hand; this is its algorithm 1 as others tell it.
    """

    def sample(
        self,
        rows: int,
        length: int,
        device: torch.device,
        sampler: RowSampler | None,
        training: bool = False,
    ) -> Tensor:
        if not training:
            places = torch.arange(length, dtype=torch.float64, device=device) + 0.5
            drawn = (places / max(self.train_length, length)).expand(rows, -1)
        else:
            assert sampler is not None, "The positions of this model are random: pass a RowSampler."
            drawn = sampler.integers(rows, length, device).double().sort(-1).values / 2**32
        return (self.range * drawn).float()


def random_positions(kinds: Sequence[LayerKind], arch: Arch) -> RandomPositions | None:
    """Return the random positions of all layers, if any layer has the key ``random_range``."""
    settings = {(kind.attention.random_range, kind.attention.random_floats) for kind in kinds}
    if (None, True) in settings:
        raise ConfigError("model.random_floats=true needs model.random_range; 2 is usual.")
    if len(settings - {(None, False)}) > 1:
        raise ConfigError("model.random_range and model.random_floats are the same for all layers.")
    for multiple, floats in settings:
        if multiple is not None:
            return (RandomFloats if floats else RandomPositions)(multiple, arch)
    return None
