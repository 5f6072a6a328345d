"""TAPE: positions that the content updates from layer to layer, one complex number a block."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tape_exp.models.kernels import maps, update
from tape_exp.models.kernels.update import Update
from tape_exp.models.positions.base import Features, State
from tape_exp.models.positions.rope import RoPE, Scaling
from tape_exp.models.precision import full_precision
from tape_exp.settings.errors import ConfigError, one_of
from tape_exp.settings.schema import Arch


class TAPE(RoPE):
    """TAPE (Zhu et al., "Rethinking Addressing in Language Models via Contextualized Equivariant
    Positional Encoding", 2025).

    State E: (B, T, H, 2, d/2) fp32. Deliberately different: E begins as RoPE's rotations and is
    mixed only over heads, so every 2 × 2 block of the paper's E ∈ R^{H × M × L × R}, with M = d/2
    and L = R = 2, stays a scaled rotation: one complex number, kept as its real and imaginary part.
    The general layout is :class:`~tape_exp.models.positions.tape_tensor.TensorTAPE`, the oracle of
    this one.

    One block, with Ẽ the average of E by the attention probabilities (eq. g_attn) and x̃ the output
    of attention::

        E ← E + P Ẽ                            P: H × H over heads
        E ← E + W2 diag(SiLU(W_x x̃)) W1ᵀ E     W1, W2: H × I, W_x: I × C (eq. g_mlp)

    The paper prints neither the two residuals nor P; they are those of its public code for language
    models, and P is our reading of its linear layer after attention. P and W2 begin at zero, so
    that the model at step 0 is exactly RoPE (section 3.3). Both lines are linear in E and are
    composed into two H × H matrices per token, A = I + W2 diag(ψ) W1ᵀ for E and A P for Ẽ, applied
    in one pass. Any rotation of E from the right rotates the result
    likewise, so logits depend only on distances (proposition 2).

    Args:
        theta, scaling: of the initial rotations, as in RoPE.
        intermediate: I as a multiple of H.
        psi_input: ψ reads the output of ``attention`` (the paper) or of the ``mlp`` (its public
            code).
        head_mixing: P as a ``linear`` map over heads, or ``scale``: each head times its row sum of
            P, as the paper's public language-model code has it.
        attention: update E from Ẽ (ablation).
        feed_forward: update E from x̃ (ablation).
    """

    update_parameters: tuple[str, ...] = ("p", "wx", "w1", "w2")
    maps_tokens = False  # whether its update reads tokens for more than ψ

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
    ) -> None:
        super().__init__(arch, theta, scaling)
        one_of("model.psi_input", psi_input, ("attention", "mlp"))
        one_of("model.head_mixing", head_mixing, ("linear", "scale"))
        if intermediate < 1:
            raise ConfigError(
                f"model.intermediate={intermediate} must be at least 1: it is I as a multiple of "
                "the heads."
            )
        self.context = psi_input
        self.head_mixing = head_mixing
        self.attention = attention
        self.feed_forward = feed_forward
        self._make_weights(
            rows=arch.heads, attended_rows=arch.heads, inner=intermediate * arch.heads
        )

    def _make_weights(self, rows: int, attended_rows: int, inner: int) -> None:
        """Make P over ``attended_rows``, W1 and W2 over ``rows`` of the flattened E, and W_x."""
        if self.attention:
            self.p = nn.Parameter(torch.zeros(attended_rows, attended_rows))
        if self.feed_forward:
            self.wx = nn.Parameter(torch.zeros(inner, self.arch.width))
            self.w1 = nn.Parameter(torch.zeros(inner, rows))  # transposed, as in linear layers
            self.w2 = nn.Parameter(torch.zeros(rows, inner))

    def init_weights(self, generator: torch.Generator) -> None:
        """N(0, 0.02); W1 by 1/√rows, so that W1ᵀ E is of E's size; P = W2 = 0: step 0 is RoPE."""
        if self.feed_forward:
            nn.init.normal_(self.wx, std=0.02, generator=generator)
            nn.init.normal_(self.w1, std=self.w1.shape[1] ** -0.5, generator=generator)

    def carried(self, state: Tensor | None) -> Tensor | None:
        """E, its two parts side by side, (B, S, H, d); None if attention does not update it.

        Attention averages it in the values' dtype: under autocast Ẽ comes from a bf16 copy of E,
        with a relative error of 2⁻⁸ an entry, while E itself stays in fp32.
        """
        assert state is not None
        return state.flatten(3) if self.attention else None

    def update(self, state: Tensor | None, attended: Tensor | None, x_BTC: Tensor) -> State:
        """The next E from E, Ẽ and x̃, in fp32. On a GPU the next layer makes it, by the kernel that
        rotates its queries and keys: :meth:`enter`.
        """
        assert state is not None
        B, T = x_BTC.shape[:2]
        with full_precision(x_BTC):
            E_BTHd = state.flatten(3).expand(B, T, self.arch.heads, -1)
            F_BTHH = self._changes(x_BTC, state.dtype) if self.feed_forward else None
            P = self._p(state.dtype) if attended is not None else None
            if self.fuses("TAPE's update", update.supports, E_BTHd, attended, P, F_BTHH):
                # Where parameters are sharded, this layer's are not whole in the next one's pass.
                return Update(E_BTHd, attended, None if P is None else P.clone(), F_BTHH)
            return self._made(Update(E_BTHd, attended, P, F_BTHH))

    def enter(
        self, q_BTHD: Tensor, k_BTKD: Tensor, state: State, features: Features, keeps: bool
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """The same of an update that the layer before left, in one kernel where it can."""
        if not isinstance(state, Update):
            return super().enter(q_BTHD, k_BTKD, state, features, keeps)
        if not self.fuses("update with rotation", update.turns, q_BTHD, k_BTKD, state.E):
            with full_precision(q_BTHD):
                made = self._made(state)
            return super().enter(q_BTHD, k_BTKD, made, features, keeps)
        copies = keeps and self.attention and q_BTHD.dtype != state.E.dtype
        q, k, E_BTHd, copy = update.updated(q_BTHD, k_BTKD, state, keeps, copies)
        E = None if E_BTHd is None else E_BTHd.unflatten(-1, (2, -1))
        return q, k, E, self.carried(E) if copy is None and E is not None else copy

    def _made(self, pending: Update) -> Tensor:
        """E', by one batched product that reads E and Ẽ once."""
        E_BTHd: Tensor = pending.E
        _, attended, P, F_BTHH = pending
        A = None if F_BTHH is None else self._identity(F_BTHH) + F_BTHH
        if attended is not None and P is not None:
            B, T = E_BTHd.shape[:2]
            maps_NHH = (P.expand(B * T, -1, -1) if A is None else A @ P).flatten(0, -3)
            kept_NHd = (E_BTHd if A is None else A @ E_BTHd).flatten(0, 1)
            E_BTHd = torch.baddbmm(
                kept_NHd, maps_NHH, attended.to(E_BTHd.dtype).flatten(0, 1)
            ).unflatten(0, (B, T))
        elif A is not None:
            E_BTHd = A @ E_BTHd
        return E_BTHd.unflatten(-1, (2, -1))

    def _token_maps(self, x_BTC: Tensor) -> Tensor:
        """A = I + W2 diag(ψ(x)) W1ᵀ of every token, (B, T, H, H)."""
        return self._identity(x_BTC) + self._changes(x_BTC, x_BTC.dtype)

    def _identity(self, like: Tensor) -> Tensor:
        return torch.eye(self.arch.heads, dtype=like.dtype, device=like.device)

    def _changes(self, x_BTC: Tensor, dtype: torch.dtype) -> Tensor:
        """A - I of every token, (B, T, H, H) in this dtype, by one matrix product for all."""
        wx_IC = self.wx.to(dtype)
        outer_IJ = (self.w2.T[:, :, None] * self.w1[:, None, :]).flatten(1).to(dtype)
        if self.fuses("TAPE's maps", maps.supports, x_BTC, wx_IC, outer_IJ):
            F_BTJ = maps.maps(x_BTC, wx_IC, outer_IJ)
        else:
            F_BTJ = F.silu(x_BTC.to(dtype) @ wx_IC.T) @ outer_IJ
        return F_BTJ.unflatten(-1, (self.arch.heads, self.arch.heads))

    def counted_operations(self, length: int) -> tuple[int, int]:
        """MACs of attention and ψ, for cosines and for sines; FLOPs of the einsums over heads."""
        H, d, C = self.arch.heads, self.arch.head_dim, self.arch.width
        inner = self.wx.shape[0] if self.feed_forward else 0
        macs = (2 * H * d * length**2 if self.attention else 0) + 2 * length * inner * C
        einsums = 2 * length * inner * H * 2 * d + (length * H * H * 2 * d if self.attention else 0)
        return macs, 2 * einsums + 2 * length * inner

    def _p(self, dtype: torch.dtype) -> Tensor:
        p = self.p.to(dtype)
        return torch.diag(p.sum(-1)) if self.head_mixing == "scale" else p
