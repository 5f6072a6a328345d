"""CARoPE: rotations whose frequencies each token chooses for each head."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tape_exp.models.places import Places
from tape_exp.models.positions.base import PositionEncoding, Rotated
from tape_exp.models.positions.rope import apply_rotary, rotations
from tape_exp.models.precision import precise
from tape_exp.settings.schema import Arch


class CARoPE(PositionEncoding):
    """CARoPE (Veisi et al., "Context-aware Rotary Position Embedding", 2025, arXiv:2507.23083):
    RoPE's frequencies are the powers of one number, and here each token chooses that number for
    each head. Pair m of a head is turned by what all tokens so far have summed::

        f_t = 1 / (1 + softplus(w·x_t))            in (0, 1), where RoPE has θ^(-2/d)
        angle_t = Σ_{s<=t} f_s^m                   m = 0 … d/2 - 1

    w is (K, C), one row for each key head, and begins as N(0, 0.02).
    Deliberately different from the paper, as others tell it: powers begin at 0, as RoPE's do, so
    that a constant f = θ^(-2/d) is RoPE, and each key head has one f.
    """

    cacheable = False  # the angles are sums over all tokens so far
    grouped_keys = True

    def __init__(self, arch: Arch) -> None:
        super().__init__(arch)
        self.w = nn.Parameter(torch.empty(arch.key_heads, arch.width))

    def rotate(
        self, q_BTHD: Tensor, k_BTHD: Tensor, x_BTC: Tensor, state: Any, places: Places
    ) -> Rotated:
        f_BTK = 1 / (1 + F.softplus(x_BTC @ precise(self.w).T))
        powers = torch.arange(self.arch.head_dim // 2, device=f_BTK.device)
        state = rotations((f_BTK[..., None] ** powers).cumsum(1))
        return apply_rotary(q_BTHD, state), apply_rotary(k_BTHD, state)
