"""DAPE: a static bias that a small network adapts to the logits."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tape_exp.models.biases import Dense
from tape_exp.models.places import Places
from tape_exp.models.positions.kerple import Kerple
from tape_exp.models.positions.parts import linear, uniform
from tape_exp.settings.schema import Arch, Count


class DAPE(Kerple):
    """DAPE on Kerple (Zheng et al., "DAPE: Data-Adaptive Positional Encoding for Length
    Extrapolation", 2024). With A the scaled logits of all H heads and B Kerple's logarithmic bias,
    the static bias that the paper's tables report most, heads see each other's logits of a pair (i,
    j)::

        logits = A + B + f([A, B])        f: 2H → hidden, LeakyReLU, hidden → H, an MLP a layer
    """

    def __init__(self, arch: Arch, hidden: Count = 32) -> None:
        super().__init__(arch, "log")
        self.inner = nn.Linear(2 * arch.heads, hidden)
        self.outer = nn.Linear(hidden, arch.heads)

    def init_weights(self, generator: torch.Generator) -> None:
        super().init_weights(generator)
        uniform(self.inner, generator)
        uniform(self.outer, generator)

    def bias(
        self, q_BTHD: Tensor, k_BSHD: Tensor, x_BTC: Tensor, state: Any, places: Places
    ) -> Dense:
        distance_BTS = (places.positions[:, :, None] - places.key_positions[:, None]).clamp(min=0)
        decay_BTSH = self.decay(distance_BTS.flatten()).T.unflatten(0, distance_BTS.shape)
        logits_BTSH = torch.einsum("bthd,bshd->btsh", q_BTHD, k_BSHD) / math.sqrt(q_BTHD.shape[-1])
        both = torch.cat([logits_BTSH, decay_BTSH.expand_as(logits_BTSH)], -1)
        adapted_BTSH = linear(self.outer, F.leaky_relu(linear(self.inner, both)))
        return Dense((decay_BTSH + adapted_BTSH).permute(0, 3, 1, 2))
