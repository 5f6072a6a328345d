"""TAPE in its general layout: E as a tensor (M, L, R) per token and head, as in the paper."""

from typing import Any, Literal

import torch
from torch import Tensor

from tape_exp.machine.seeding import generator_for
from tape_exp.models.places import Places
from tape_exp.models.positions.base import LayerOutputs, Rotated
from tape_exp.models.positions.rope import as_matrices
from tape_exp.models.positions.tape import TAPE
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.schema import Arch, Count

LAYOUTS = {(2, 2), (1, 4), (4, 1)}  # (L, R) that hold the four numbers of a rotation matrix


class TensorTAPE(TAPE):
    """TAPE with E: (B, T, H, M, L, R) fp32, M blocks of L vectors in R dimensions, updated
    literally.

    - logits: q̃[m, r] = Σ_l q[m, l] E[m, l, r], k likewise, q̃·k̃ / √d: eq. (f_attn) with φ the
      identity;
    - update: E + P Ẽ, widened to I rows by W1ᵀ, scaled by ψ, brought back by W2: eq. (g_mlp).

    With the defaults it equals :class:`TAPE`, more slowly. Block m holds the B = d/M channels m, m
    + M, m + 2M, …, with M = d/2 the pairs of Llama's RoPE, whose E[m] is [[cos, sin], [-sin, cos]],
    the paper's matrix with its (negative) θ. The ablations flatten it to (cos, sin, -sin, cos); φ
    for them is our reading:

    - L = 1, R = 4, M = d/2: φ is the scalar ⟨e_i, e_j⟩ times the identity on B = 2 channels, that
      is I_{B/L} ⊗ e_i e_jᵀ; E is divided by √2 to norm 1. Step 0: Σ_m (q_m·k_m) cos θ_m(i - j) /
      √d.
    - L = 4, R = 1, M = d/4: φ is the identity on B = 4 channels; θ is every second one of RoPE's. A
      shift mixes the components along L, which no O(R) does: logits depend on absolute positions
      from step 0 on, as they do once ``weights`` or ``equivariant`` mix what turns differently.

    Args:
        initial: ``rope``, or ``fourier``: E[m, l] = √(2/R) [w_{mlr} cos(θ_{mr} i), w_{mlr}
            sin(θ_{mr} i)]_r (appendix C), θ spread quasi-randomly over RoPE's range, w ~ N(0, 1),
            both fixed.
        L, R: vectors per block and their dimension: 2 and 2, 1 and 4, or 4 and 1; with ``fourier``
            2 and any even R.
        weights: W1, W2 over the ``heads`` (H × I, shared over m and l) or ``full`` (HML × I).
            Mixing blocks m of different frequency satisfies the paper's equivariance equation with
            one O(R) for all m, and still breaks shift invariance from a RoPE start, where a shift
            turns each m by an angle of its own.
        equivariant: false mixes over heads and R > 1 together (HR × I): the ablation that breaks
            O(R)-equivariance.
        settings: of :class:`TAPE`, but for ``unit``.
    """

    def __init__(
        self,
        arch: Arch,
        initial: Literal["rope", "fourier"] = "rope",
        L: Count = 2,
        R: Count = 2,
        weights: Literal["heads", "full"] = "heads",
        equivariant: bool = True,
        **settings: Any,
    ) -> None:
        if initial == "rope":
            fits = (L, R) in LAYOUTS
            needed = "L and R of 2 and 2, 1 and 4, or 4 and 1"
        else:
            fits = L == 2 and R % 2 == 0
            needed = "L=2 and an even R"
        if not fits:
            raise ConfigError(f"model.L={L} model.R={R}: model.initial={initial} needs {needed}.")
        if L == 4 and arch.head_dim % 4:
            raise ConfigError(f"model.L=4 needs heads of 4, 8, … channels, not {arch.head_dim}.")
        if not equivariant and (weights == "full" or R == 1):
            raise ConfigError("model.equivariant=false needs model.weights=heads and R above 1.")
        self.initial = initial
        self.weights = weights
        self.equivariant = equivariant
        # A block has the two channels of a rotation, or one for each of its L vectors.
        self.L = L
        self.R = R
        self.M = arch.head_dim // max(L, 2)
        super().__init__(arch, **settings)
        if self.unit:
            raise ConfigError("model.unit=true is for model=tape.")
        if initial == "fourier" and self.scaling.method != "none":
            raise ConfigError(
                f"model.scaling.method={self.scaling.method} stretches RoPE's angles, which "
                "model.initial=fourier does not have."
            )

    def _make_weights(self, rows: int, inner: int) -> None:
        if self.weights == "full":
            rows *= self.M * self.L
        elif not self.equivariant:
            rows *= self.R
        super()._make_weights(rows, inner)

    def start(self, places: Places) -> Tensor:
        """Return the first E, (B, T, 1, M, L, R), the same for every head."""
        if self.initial == "fourier":
            return self._fourier_features(places.positions)
        interval = self.arch.head_dim // 2 // self.M
        matrices = as_matrices(super().start(places)[..., ::interval])
        size = min(self.L / 2, 1) ** 0.5  # one vector of all four numbers has norm √2
        return size * matrices.flatten(-2).unflatten(-1, (self.L, self.R))

    def _fourier_features(self, positions_BT: Tensor) -> Tensor:
        """Return E[m, l] = √(2/R) [w_{mlr} cos(θ_{mr} i), w_{mlr} sin(θ_{mr} i)]_r."""
        M = self.M
        pairs = self.R // 2
        # Multiples of the golden ratio modulo 1 spread evenly, however many are taken.
        spread = (torch.arange(1, M * pairs + 1, dtype=torch.float64) * 0.6180339887498949) % 1
        theta_Mr = (self.theta**-spread).view(M, pairs).to(positions_BT)
        w_MLr = torch.randn(
            M, self.L, pairs, generator=generator_for(0, "fourier features", M, self.R)
        ).to(positions_BT)
        angles = positions_BT[:, :, None, None, None, None] * theta_Mr[:, None]
        waves = torch.stack([w_MLr * angles.cos(), w_MLr * angles.sin()], -1)
        return (2 / self.R) ** 0.5 * waves.flatten(-2)

    def rotate(
        self, q_BTHD: Tensor, k_BTHD: Tensor, x_BTC: Tensor, state: Any, places: Places
    ) -> Rotated:
        """Return q̃ and k̃, d·R/L wide, scaled to keep the factor 1/√d of the logits."""
        restore = (self.R / self.L) ** 0.25
        return contract(q_BTHD, state) * restore, contract(k_BTHD, state) * restore

    def matrices(self, state: Tensor) -> tuple[Tensor, Tensor]:
        return state, state

    def update(
        self, state: Any, averaged_BTHE: Tensor | None, tokens: LayerOutputs, places: Places
    ) -> Tensor:
        E = state.expand(*tokens.x.shape[:2], self.arch.heads, *state.shape[3:])
        if averaged_BTHE is not None:
            averaged = averaged_BTHE.to(E.dtype).unflatten(-1, state.shape[3:])
            E = E + torch.einsum("hg,btgmlr->bthmlr", self.head_map(E.dtype), averaged)
        if self.feed_forward:
            wx, w1, w2 = (self.update_net[name].to(E.dtype) for name in ("wx", "w1", "w2"))
            # W1 and W2 mix the rows and share weights over the columns: of H rows and M·L·R
            # columns, H·M·L and R, or, where heads and R are mixed, H·R and M·L.
            moved = E if self.equivariant else E.movedim(-1, 3)
            rows = moved.reshape(*E.shape[:2], w1.shape[1], -1)
            wide = torch.einsum("in,btnc->btic", w1, rows) * self.psi(tokens, wx)[..., None]
            mixed = torch.einsum("ni,btic->btnc", w2, wide).reshape(moved.shape)
            E = E + (mixed if self.equivariant else mixed.movedim(3, -1))
        return E


def contract(x_BTHD: Tensor, state: Tensor) -> Tensor:
    """Return x̃[m, r] = Σ_l x[m, l] E[m, l, r] with E: (B, T, H, M, L, R), so that q̃·k̃ = Σ_m q_mᵀ
    e_{i,m} e_{j,m}ᵀ k_m: eq. (f_attn).

    D is a multiple of M·L; each of the D / (M·L) groups of channels is multiplied by the same E.
    Returns (B, T, H, D·R/L).
    """
    M, L = state.shape[3:5]
    x_BTHGLM = x_BTHD.to(state.dtype).unflatten(-1, (-1, L, M))
    state = state.expand(*x_BTHD.shape[:3], -1, -1, -1)
    # R before M, so that with R = 2 the two halves are in the order of q's own halves.
    return torch.einsum("bthglm,bthmlr->bthgrm", x_BTHGLM, state).flatten(3)
