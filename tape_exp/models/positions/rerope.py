"""ReRoPE: RoPE whose distances end."""

import math
from typing import Any

import torch
from torch import Tensor

from tape_exp.models.biases import Dense
from tape_exp.models.places import Places
from tape_exp.models.positions.base import for_heads
from tape_exp.models.positions.rope import RoPE, apply_rotary
from tape_exp.models.positions.rope_scaling import Theta
from tape_exp.settings.schema import Arch, Count


class ReRoPE(RoPE):
    """ReRoPE, "rectified" RoPE (Su, 2023, github.com/bojone/rerope): RoPE where all that is further
    away than w tokens is w tokens away::

        logit(i, j) = q_iᵀ R(min(i - j, w)) k_j / √d

    Up to w tokens it is RoPE; beyond, no distance is one that training has not shown. What the far
    pairs differ by is a bias, of queries turned to w and keys turned to 0. Left out: Leaky ReRoPE,
    whose distances go on by 1/k.

    Args:
        theta: base of the frequencies.
        farthest: w, in tokens.
    """

    def __init__(self, arch: Arch, theta: Theta = 10_000.0, farthest: Count = 512) -> None:
        super().__init__(arch, theta)
        self.farthest = farthest

    def bias(
        self, q_BTHD: Tensor, k_BSHD: Tensor, x_BTC: Tensor, state: Any, places: Places
    ) -> Dense:
        """Return the logit at distance w less RoPE's, 0 where RoPE's is right: (B, H, T, S)."""
        positions_BT1 = places.positions[..., None]
        keys_BS1 = places.key_positions[..., None]
        far_q_BTHD = apply_rotary(q_BTHD, self.rotations(self.farthest - positions_BT1))
        far_k_BSHD = apply_rotary(k_BSHD, self.rotations(-keys_BS1))
        far_BHTS = products(far_q_BTHD, far_k_BSHD)
        near_BHTS = products(q_BTHD, k_BSHD)
        distance_BTS = positions_BT1 - keys_BS1.mT
        is_far_B1TS = distance_BTS[:, None] > self.farthest
        added_BHTS = torch.where(is_far_B1TS, far_BHTS - near_BHTS, 0.0)
        return Dense(added_BHTS / math.sqrt(q_BTHD.shape[-1]))

    def matrices(self, state: Tensor) -> None:
        return None


def products(q_BTHD: Tensor, k_BSKD: Tensor) -> Tensor:
    """Return q·k of all pairs: (B, H, T, S)."""
    return torch.einsum("bthd,bshd->bhts", q_BTHD, for_heads(k_BSKD, q_BTHD.shape[2]))
