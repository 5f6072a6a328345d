"""GRAPE: positions as powers of one rotation, whose frequencies and planes are learned."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tape_exp.models.positions.base import Features, Past, for_heads
from tape_exp.models.positions.rope import RoPE, Scaling, as_matrices, rotations, turn_both
from tape_exp.models.precision import full_precision, precise
from tape_exp.settings.errors import one_of, positive
from tape_exp.settings.schema import Arch


class GRAPE(RoPE):
    """Multiplicative GRAPE (Zhang et al., "Group Representational Position Encoding", 2025).

    Position n multiplies queries and keys by a rotation of the whole head::

        G(n) = exp(n Σ_m ω_m L_m)        L_m = b_m a_mᵀ - a_m b_mᵀ        ω_m = θ_m exp(r_m)
        logit(i, j) = q_iᵀ G(i)ᵀ G(j) k_j / √d = q_iᵀ G(j - i) k_j / √d

    θ_m are RoPE's frequencies and r is learned. The d/2 planes of a_m and b_m are orthogonal to
    each other, so that the L_m commute: the axes m and m + d/2, or the axes turned by exp(S), S
    learned and skew-symmetric, of each key head. (The second gives no logits that other W_q and W_k
    would not give to the first, but learns differently.) r = S = 0 at first: step 0 is RoPE.

    n is the index, or a phase that earlier tokens choose (public code: model-architectures/GRAPE)::

        n_t = Σ_{s<t} softplus(w·x_s + c)

    Left out: planes that do not commute, a frequency per head. The unipotent form: grape_additive.

    Args:
        theta, scaling: as in RoPE.
        planes, phase: ``axes`` (the public code) or ``learned``; ``index`` or ``tokens``.
        step: softplus(c) at first, with w = 0; at 1 step 0 is RoPE, 0.001 is the public code's.
    """

    def __init__(
        self,
        arch: Arch,
        theta: float = 10_000.0,
        scaling: Scaling | None = None,
        planes: str = "axes",
        phase: str = "index",
        step: float = 1.0,
    ) -> None:
        one_of("model.planes", planes, ("axes", "learned"))
        one_of("model.phase", phase, ("index", "tokens"))
        positive("model", step=step)
        super().__init__(arch, theta, scaling)
        self.scaling.refuse_lengths()
        self.planes, self.phase = planes, phase
        self.unlike_rope = None if step == 1 else "only model.step=1 begins as RoPE"
        self.r = nn.Parameter(torch.zeros(arch.head_dim // 2))
        if planes == "learned":
            self.skew = nn.Parameter(torch.zeros(arch.key_heads, arch.head_dim, arch.head_dim))
        if phase == "tokens":
            self.w = nn.Parameter(torch.zeros(arch.width))
            self.c = nn.Parameter(torch.tensor([step + math.log(-math.expm1(-step))]))

    def init_weights(self, generator: torch.Generator) -> None:
        """All as constructed."""

    def initial_state(self, positions_BT: Tensor) -> Tensor:
        """The index, (B, T, 1, 1): every layer has its own frequencies."""
        return positions_BT[..., None, None]

    def features(self, x_BTC: Tensor, state: Tensor | None, past: Past) -> Features:
        """``phase``: n where tokens choose it, (B, T, 1, 1), fp32; padding adds nothing."""
        if self.phase == "index":
            return {}
        with full_precision(x_BTC):
            w, c = precise(self.w), precise(self.c)
            steps_BT = F.softplus(x_BTC.to(w.dtype) @ w + c) * x_BTC.any(-1)
            after_BT = steps_BT.cumsum(1) + past.get("phase", steps_BT.new_zeros(1, 1))
            past["phase"] = after_BT[:, -1:].clone()
            return {"phase": (after_BT - steps_BT)[..., None, None]}

    def rotate(
        self, q_BTHD: Tensor, k_BTKD: Tensor, state: Tensor | None, features: Features | None = None
    ) -> tuple[Tensor, Tensor]:
        """G(n) q and G(n) k, seen from the planes."""
        n = features["phase"] if features else state
        assert n is not None
        with full_precision(q_BTHD):
            if self.planes == "learned":
                skew = precise(self.skew)
                axes_KDD = torch.matrix_exp(skew - skew.mT)
                q_BTHD, k_BTKD = (self._seen_from(axes_KDD, x) for x in (q_BTHD, k_BTKD))
            return turn_both(q_BTHD, k_BTKD, self._rotations(n))

    def matrices(self, state: Tensor | None) -> tuple[Tensor, Tensor] | None:
        """RoPE's, at the learned frequencies; None where the planes are learned or tokens choose
        the phase: the index alone then does not say what turns a pair of channels.
        """
        if self.planes == "learned" or self.phase == "tokens":
            return None
        assert state is not None
        matrices = as_matrices(self._rotations(state))
        return matrices, matrices

    def counted_operations(self, length: int) -> tuple[int, int]:
        """MACs of the map to the planes and of the phase."""
        H, K, d = self.arch.heads, self.arch.key_heads, self.arch.head_dim
        planes = (H + K) * d**2 if self.planes == "learned" else 0
        return length * (planes + (self.arch.width if self.phase == "tokens" else 0)), 0

    def _rotations(self, n: Tensor) -> Tensor:
        """Cosines and sines of n ω_m, (B, T, 1, 2, d/2), times YaRN's factor where it applies."""
        frequencies, magnitude = self.frequencies(n)
        return rotations(n * frequencies * precise(self.r).exp()) * magnitude

    def _seen_from(self, axes_KDD: Tensor, x_BTHD: Tensor) -> Tensor:
        axes_HDD = for_heads(axes_KDD[None, None], x_BTHD.shape[2])[0, 0]
        turned = torch.einsum("bthd,hde->bthe", x_BTHD.to(axes_HDD.dtype), axes_HDD)
        return turned.to(x_BTHD.dtype)
