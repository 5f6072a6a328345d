"""TAPE in its general layout: E as a tensor (M, L, R) per token and head, computed as the paper writes it."""

import torch
import torch.nn.functional as F
from torch import Tensor

from tape_exp.config import Arch, ConfigError, one_of
from tape_exp.models.positions.base import full_precision
from tape_exp.models.positions.rope import Scaling
from tape_exp.models.positions.tape import TAPE
from tape_exp.seeding import generator_for


class TensorTAPE(TAPE):
    """TAPE with E: (B, T, H, M, L, R) fp32, M = d/2 blocks of L = 2 vectors in R dimensions, updated literally.

    - logits: q̃[m, r] = Σ_l q[m, l] E[m, l, r], k likewise, q̃·k̃ / √d: eq. (f_attn) with φ the identity;
    - update: E + P Ẽ, widened to I rows by W1ᵀ, scaled by ψ, brought back by W2: eq. (g_mlp).

    With the defaults it equals :class:`TAPE`, more slowly. Block m pairs the channels m and m + d/2, as Llama's RoPE does;
    RoPE's E[m] is [[cos, sin], [-sin, cos]], which is the paper's matrix with its (negative) θ.

    Args:
        initial: ``rope``, or ``fourier``: E[m, l] = √(2/R) [w_{mlr} cos(θ_{mr} i), w_{mlr} sin(θ_{mr} i)]_r (appendix C),
            θ spread quasi-randomly over RoPE's range, w ~ N(0, 1), both fixed.
        R: dimension of each vector; 2 with ``initial=rope``.
        weights: W1, W2 over the ``heads`` (H × I, shared over m and l) or ``full`` (HML × I). Mixing blocks m of different
            frequency satisfies the paper's equivariance equation with one O(R) for all m, and still breaks shift
            invariance from a RoPE start, where a shift turns each m by an angle of its own.
        equivariant: false mixes over heads and R together (HR × I): the ablation that breaks O(R)-equivariance.
        theta, scaling, intermediate, psi_input, head_mixing, attention, feed_forward: as in :class:`TAPE`.
    """

    L = 2

    def __init__(
        self,
        arch: Arch,
        theta: float = 10_000.0,
        scaling: Scaling | None = None,
        intermediate: int = 4,
        psi_input: str = "attention",
        head_mixing: str = "linear",
        attention: bool = True,
        feed_forward: bool = True,
        initial: str = "rope",
        R: int = 2,
        weights: str = "heads",
        equivariant: bool = True,
    ) -> None:
        one_of("model.initial", initial, ("rope", "fourier"))
        one_of("model.weights", weights, ("heads", "full"))
        if R < 2 or R % 2 or (initial == "rope" and R != 2):
            raise ConfigError(f"model.R={R} must be even, and 2 with model.initial=rope.")
        if weights == "full" and not equivariant:
            raise ConfigError("model.equivariant=false mixes over heads and R; it goes with model.weights=heads.")
        self.initial, self.R, self.weights, self.equivariant = initial, R, weights, equivariant
        super().__init__(arch, theta, scaling, intermediate, psi_input, head_mixing, attention, feed_forward)

    def _make_weights(self, rows: int, attended_rows: int, inner: int) -> None:
        if self.weights == "full":
            rows *= self.arch.head_dim
        elif not self.equivariant:
            rows *= self.R
        super()._make_weights(rows, attended_rows, inner)

    def initial_state(self, positions_BT: Tensor) -> Tensor:
        """(B, T, 1, M, L, R), the same for every head."""
        if self.initial == "rope":
            cos, sin = super().initial_state(positions_BT).unbind(-2)
            return torch.stack([torch.stack([cos, sin], -1), torch.stack([-sin, cos], -1)], -2)
        M, pairs = self.arch.head_dim // 2, self.R // 2
        spread = (torch.arange(1, M * pairs + 1, dtype=torch.float64) * 0.6180339887498949) % 1  # golden ratio sequence
        theta_Mr = (self.theta**-spread).view(M, pairs).to(positions_BT)
        w_MLr = torch.randn(M, self.L, pairs, generator=generator_for(0, "fourier features", M, self.R)).to(positions_BT)
        angles = positions_BT[:, :, None, None, None, None] * theta_Mr[:, None]
        waves = torch.stack([w_MLr * angles.cos(), w_MLr * angles.sin()], -1)
        return (2 / self.R) ** 0.5 * waves.flatten(-2)

    def rotate(self, q_BTHD: Tensor, k_BTHD: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        """q̃ and k̃, (B, T, H, M·R) wide. Where that differs from d, the factor 1/√d of the logits is restored."""
        assert state is not None
        restore = (state.shape[-1] / self.L) ** 0.25
        return self._contract(q_BTHD, state) * restore, self._contract(k_BTHD, state) * restore

    def _contract(self, x_BTHD: Tensor, state: Tensor) -> Tensor:
        x_BTHLM = x_BTHD.to(state.dtype).unflatten(-1, (self.L, -1))
        state = state.expand(*x_BTHD.shape[:3], -1, -1, -1)
        # R before M, so that with R = 2 the halves lie as q's own halves do.
        return torch.einsum("bthlm,bthmlr->bthrm", x_BTHLM, state).flatten(3).to(x_BTHD.dtype)

    def update(self, state: Tensor | None, attended: Tensor | None, x_BTC: Tensor) -> Tensor:
        """E + P Ẽ, then E + W2 diag(ψ) W1ᵀ E, step by step in fp32."""
        assert state is not None
        B, T = x_BTC.shape[:2]
        E = state.expand(B, T, self.arch.heads, *state.shape[3:])
        with full_precision(x_BTC):
            if attended is not None:
                averaged = attended.to(E.dtype).unflatten(-1, state.shape[3:])
                E = E + torch.einsum("hg,btgmlr->bthmlr", self._p(E.dtype), averaged)
            if self.feed_forward:
                psi_BTI = F.silu(x_BTC.to(E.dtype) @ self.wx.to(E.dtype).T)
                rows = self._to_rows(E)
                wide = torch.einsum("in,btnc->btic", self.w1.to(E.dtype), rows) * psi_BTI[..., None]
                E = E + self._from_rows(torch.einsum("ni,btic->btnc", self.w2.to(E.dtype), wide), E)
        return E

    def _to_rows(self, E: Tensor) -> Tensor:
        """(B, T, rows, columns): W1 and W2 mix the rows and share their weights over the columns."""
        if self.weights == "full":
            return E.flatten(2, 4)  # H·M·L rows, R columns
        if self.equivariant:
            return E.flatten(3)  # H rows, M·L·R columns
        return E.movedim(-1, 3).flatten(2, 3).flatten(3)  # H·R rows, M·L columns

    def _from_rows(self, rows: Tensor, E: Tensor) -> Tensor:
        if self.weights == "full" or self.equivariant:
            return rows.reshape(E.shape)
        B, T, H, M, L, R = E.shape
        return rows.reshape(B, T, H, R, M, L).movedim(3, -1)
