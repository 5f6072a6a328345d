"""The relative bias of T5."""

import math
from typing import Annotated, Any

import torch
from annotated_types import Ge
from torch import Tensor, nn

from tape_exp.models.biases import ByDistance
from tape_exp.models.positions.base import PositionEncoding
from tape_exp.models.precision import precise
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.schema import Arch


class T5(PositionEncoding):
    """T5 bias: b(i, j) = r_h[bucket(i - j)], learned per layer and head (Raffel et al., "Exploring
    the Limits of Transfer Learning with a Unified Text-to-Text Transformer", 2020).

    Each bucket of the first half holds one distance, those of the second half grow logarithmically
    up to ``max_distance`` tokens, and the last one takes every distance beyond. Deliberately
    different from T5: logits keep the factor 1/√d, tables, (buckets, H), are per layer, of 64
    buckets, as in the TAPE code.
    """

    def __init__(
        self, arch: Arch, buckets: Annotated[int, Ge(2)] = 64, max_distance: int = 128
    ) -> None:
        if max_distance <= buckets // 2:
            raise ConfigError(
                f"model.max_distance={max_distance} must be above half of model.buckets={buckets}."
            )
        super().__init__(arch)
        self.buckets = buckets
        self.max_distance = max_distance
        self.table = nn.Parameter(torch.empty(buckets, arch.heads))

    def bias(self, *_: Any) -> ByDistance:
        return ByDistance(lambda distance: precise(self.table).T[:, self.bucket(distance)])

    def bucket(self, distance: Tensor) -> Tensor:
        """Return the bucket of each distance, int64."""
        exact = self.buckets // 2
        growth = (distance.clamp(min=1) / exact).log() / math.log(self.max_distance / exact)
        far = exact + (growth * (self.buckets - exact)).long()
        return torch.where(distance < exact, distance.long(), far.clamp(max=self.buckets - 1))
