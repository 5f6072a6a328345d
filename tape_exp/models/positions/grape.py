"""GRAPE: positions as powers of one rotation, whose frequencies and planes are learned."""

import math
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tape_exp.models.places import Places
from tape_exp.models.positions.base import Rotated, for_heads
from tape_exp.models.positions.rope import RoPE
from tape_exp.models.precision import precise
from tape_exp.settings.schema import Arch, Positive


class GRAPE(RoPE):
    """Multiplicative GRAPE (Zhang et al., "Group Representational Position Encoding", 2025):
    position n multiplies queries and keys by a rotation of the whole head::

        G(n) = exp(n Σ_m ω_m L_m)        L_m = b_m a_mᵀ - a_m b_mᵀ        ω_m = θ_m exp(r_m)
        logit(i, j) = q_iᵀ G(i)ᵀ G(j) k_j / √d = q_iᵀ G(j - i) k_j / √d

    θ_m are RoPE's frequencies and r is learned. The d/2 planes of a_m and b_m are orthogonal, so
    that the L_m commute: the axes m and m + d/2, or the axes turned by exp(S), S learned and
    skew-symmetric, of each key head. (These add no logits that other W_q and W_k would not give,
    but learn differently.) r = S = 0 at first: step 0 is RoPE. n is the index, or a phase that
    earlier tokens choose (public code: model-architectures/GRAPE)::

        n_t = Σ_{s<t} softplus(w·x_s + c)        padding adds nothing

    Left out: planes that do not commute, a frequency per head. The unipotent form: grape_additive.

    Args:
        planes, phase: ``axes`` (the public code) or ``learned``; ``index`` or ``tokens``.
        step: softplus(c) at first, with w = 0; at 1 step 0 is RoPE, 0.001 is the public code's.
        settings: of RoPE.
    """

    def __init__(
        self,
        arch: Arch,
        planes: Literal["axes", "learned"] = "axes",
        phase: Literal["index", "tokens"] = "index",
        step: Positive = 1.0,
        **settings: Any,
    ) -> None:
        super().__init__(arch, **settings)
        self.scaling.refuse_lengths()
        self.planes = planes
        self.phase = phase
        self.cacheable = phase == "index"  # else a sum over all tokens so far
        self.r = nn.Parameter(torch.zeros(arch.head_dim // 2))
        if planes == "learned":
            self.skew = nn.Parameter(torch.zeros(arch.key_heads, arch.head_dim, arch.head_dim))
        if phase == "tokens":
            self.w = nn.Parameter(torch.zeros(arch.width))
            self.c = nn.Parameter(torch.tensor([step + math.log(-math.expm1(-step))]))

    def start(self, places: Places) -> Tensor:
        return places.positions[..., None]

    def rotate(
        self, q_BTHD: Tensor, k_BTHD: Tensor, x_BTC: Tensor, state: Any, places: Places
    ) -> Rotated:
        n_BT1 = state
        if self.phase == "tokens":
            steps_BT = F.softplus(x_BTC @ precise(self.w) + precise(self.c)) * x_BTC.any(-1)
            n_BT1 = (steps_BT.cumsum(1) - steps_BT)[..., None]
        if self.planes == "learned":
            skew = precise(self.skew)
            axes_KDD = torch.matrix_exp(skew - skew.mT)
            axes_HDD = for_heads(axes_KDD[None, None], q_BTHD.shape[2])[0, 0]
            q_BTHD = torch.einsum("bthd,hde->bthe", q_BTHD, axes_HDD)
            k_BTHD = torch.einsum("bthd,hde->bthe", k_BTHD, axes_KDD)
        return super().rotate(q_BTHD, k_BTHD, x_BTC, self.rotations(n_BT1), places)

    def frequencies(self, like: Tensor, lengths_B: Tensor | None = None) -> tuple[Tensor, float]:
        frequencies, magnitude = super().frequencies(like, lengths_B)
        return frequencies * precise(self.r).exp(), magnitude

    def matrices(self, state: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return RoPE's, at the learned frequencies; None where the planes are learned or tokens
        choose the phase: the index alone then does not say what turns a pair of channels.
        """
        if self.planes == "learned" or self.phase == "tokens":
            return None
        return super().matrices(self.rotations(state))
