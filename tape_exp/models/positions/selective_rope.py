"""Selective RoPE: rotations whose angles are summed from what tokens choose."""

import math
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tape_exp.models.places import Places
from tape_exp.models.positions.base import PositionEncoding, Rotated
from tape_exp.models.positions.parts import convolved
from tape_exp.models.positions.rope import RoPE, apply_rotary, rotations
from tape_exp.models.positions.rope_scaling import Scaling, Theta
from tape_exp.models.precision import precise
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.schema import Arch, Count


class SelectiveRoPE(PositionEncoding):
    """Selective RoPE (Movahedi et al., "Selective Rotary Position Embedding", 2025), in softmax
    attention: pair m of each key head is turned by an angle that all tokens so far have summed::

        angle_t = θ_m Σ_{s<=t} φ_s                        θ_m = θ^(-2m/d)
        φ_t = σ(w·u_t + c) (SiLU(u'_t) + exp(b))          u = x / |x|
        u': causal convolution of W_up W_down u over ``taps`` tokens

    u', b and φ have K d/2 entries, σ has K; padding adds nothing. φ = 1 is RoPE.

    Map, convolution, θ and unit vectors are those of the public code (package selective_rope); the
    paper's results have some of the three additions SiLU, bias exp(b) and gate σ. Without them and
    with ``taps=1`` the angles sum a linear map of the tokens, as in Godavarti, "Why Do Accumulated
    Transformations Extrapolate?" (2026; only its abstract could be read).

    Args:
        theta, scaling: of the temperatures θ_m, as in RoPE.
        rank, taps: of W_up W_down; tokens of the convolution, 1: none but a factor.
        silu, bias, gate: the three additions.
        start: ``random``, as torch's layers begin, or ``rope``: φ = 1, so that step 0 is RoPE.
    """

    cacheable = False  # the angles are sums over all tokens so far
    grouped_keys = True

    def __init__(
        self,
        arch: Arch,
        theta: Theta = 500_000.0,
        rank: Count = 16,
        taps: Count = 4,
        silu: bool = True,
        bias: bool = True,
        gate: bool = True,
        start: Literal["random", "rope"] = "random",
        scaling: Scaling | None = None,
    ) -> None:
        if start == "rope" and not bias:
            raise ConfigError("model.start=rope needs model.bias=true: exp(b) is RoPE's step.")
        super().__init__(arch)
        self.rope = RoPE(arch, theta, scaling)  # for θ_m
        self.rope.scaling.refuse_lengths()
        self.silu = silu
        self.begins_as_rope = start == "rope"
        K = arch.key_heads
        pairs = arch.head_dim // 2
        self.down = nn.Parameter(torch.empty(rank, arch.width))
        self.up = nn.Parameter(torch.empty(K * pairs, rank))
        self.taps = nn.Parameter(torch.empty(taps, K * pairs))  # of this token, the one before, …
        self.b = nn.Parameter(torch.zeros(K, pairs)) if bias else None
        self.w = nn.Parameter(torch.empty(K, arch.width)) if gate else None
        self.c = nn.Parameter(torch.zeros(K)) if gate else None

    def init_weights(self, generator: torch.Generator) -> None:
        """Draw all maps uniformly within 1/√inputs, as torch's layers; b = c = 0. To start as RoPE
        W_up = w = 0, and b = log 2 where the gate halves it.
        """
        for matrix in (self.down, self.up, self.taps.mT, self.w):
            if matrix is not None:
                bound = matrix.shape[1] ** -0.5
                nn.init.uniform_(matrix, -bound, bound, generator=generator)
        if self.begins_as_rope:
            nn.init.zeros_(self.up)
            if self.w is not None and self.b is not None:
                nn.init.zeros_(self.w)
                nn.init.constant_(self.b, math.log(2))

    def rotate(
        self, q_BTHD: Tensor, k_BTHD: Tensor, x_BTC: Tensor, state: Any, places: Places
    ) -> Rotated:
        down, up, taps = map(precise, (self.down, self.up, self.taps))
        u_BTC = F.normalize(x_BTC, dim=-1)
        phi_BTKM = convolved(u_BTC @ down.T @ up.T, taps).unflatten(-1, (self.arch.key_heads, -1))
        phi_BTKM = F.silu(phi_BTKM) if self.silu else phi_BTKM
        if self.b is not None:
            phi_BTKM = phi_BTKM + precise(self.b).exp()
        if self.w is not None and self.c is not None:
            gate_BTK = torch.sigmoid(u_BTC @ precise(self.w).T + precise(self.c))
            phi_BTKM = phi_BTKM * gate_BTK[..., None]
        phi_BTKM = phi_BTKM * x_BTC.any(-1)[..., None, None]  # of padding x is 0
        frequencies, magnitude = self.rope.frequencies(down)
        state = rotations((phi_BTKM * frequencies).cumsum(1)) * magnitude
        return apply_rotary(q_BTHD, state), apply_rotary(k_BTHD, state)
