"""TAPE: positions that the content updates from layer to layer, one complex number a block."""

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tape_exp.models.places import Places
from tape_exp.models.positions.base import LayerOutputs
from tape_exp.models.positions.rope import RoPE
from tape_exp.models.positions.rope_scaling import Scaling, Theta
from tape_exp.settings.schema import Arch, Count

PsiInput = Literal["attention", "mlp"]
HeadMixing = Literal["linear", "scale"]


class TAPE(RoPE):
    """TAPE (Zhu et al., "Rethinking Addressing in Language Models via Contextualized Equivariant
    Positional Encoding", 2025).

    State E: (B, T, H, 2, d/2) fp32. Deliberately different: E begins as RoPE's rotations and is
    mixed only over heads, so every 2 × 2 block of the paper's E ∈ R^{H × M × L × R}, with M = d/2
    and L = R = 2, stays a scaled rotation: one complex number, kept as its real and imaginary part.
    The general layout, :class:`~tape_exp.models.positions.tape_tensor.TensorTAPE`, is its oracle.

    One block, with Ẽ the average of E by the attention probabilities (eq. g_attn) and x̃ the output
    of attention::

        E ← E + P Ẽ                            P: H × H over heads
        E ← E + W2 diag(SiLU(W_x x̃)) W1ᵀ E     W1, W2: H × I, W_x: I × C (eq. g_mlp)

    The two residuals are not in print but in the public code for language models; P is our reading
    of its linear layer after attention. P and W2 begin at zero, so that step 0 is exactly RoPE
    (section 3.3). With A = I + W2 diag(ψ) W1ᵀ the result is A E + A P Ẽ: two H × H matrices a
    token, applied in one pass. Any rotation of E from the right rotates it likewise, so logits
    depend only on distances (proposition 2).

    Args:
        theta, scaling: of the initial rotations, as in RoPE.
        intermediate: I as a multiple of H.
        psi_input: ψ reads the output of ``attention`` (the paper) or of the ``mlp`` (its public
            code).
        head_mixing: P as a ``linear`` map over heads, or ``scale``: each head times its row sum of
            P, as the paper's public language-model code has it.
        attention, feed_forward: update E from Ẽ, from x̃ (ablations).
        unit: bring every complex number back to size 1 after each update (ablation: E only turns).
    """

    grouped_keys = False  # heads turn by states of their own

    def __init__(
        self,
        arch: Arch,
        theta: Theta = 10_000.0,
        scaling: Scaling | None = None,
        intermediate: Count = 4,
        psi_input: PsiInput = "attention",
        head_mixing: HeadMixing = "linear",
        attention: bool = True,
        feed_forward: bool = True,
        unit: bool = False,
    ) -> None:
        super().__init__(arch, theta, scaling)
        self.unit = unit
        self.psi_input = psi_input
        self.head_mixing = head_mixing
        self.attention = attention
        self.feed_forward = feed_forward
        self.update_net = nn.ParameterDict()
        self._make_weights(arch.heads, intermediate * arch.heads)

    def _make_weights(self, rows: int, inner: int) -> None:
        """Make P over the heads, W1 and W2 over ``rows`` of the flattened E, and W_x."""
        if self.attention:
            self.update_net["p"] = torch.zeros(self.arch.heads, self.arch.heads)
        if self.feed_forward:
            self.update_net["wx"] = torch.zeros(inner, self.arch.width)
            self.update_net["w1"] = torch.zeros(inner, rows)  # transposed, as in linear layers
            self.update_net["w2"] = torch.zeros(rows, inner)

    def init_weights(self, generator: torch.Generator) -> None:
        """Draw W_x from N(0, 0.02), and W1 by 1/√rows, so that W1ᵀ E is of E's size; P = W2 = 0:
        step 0 is RoPE.
        """
        if self.feed_forward:
            w1 = self.update_net["w1"]
            nn.init.normal_(self.update_net["wx"], std=0.02, generator=generator)
            nn.init.normal_(w1, std=w1.shape[1] ** -0.5, generator=generator)

    def carry(self, state: Any, places: Places) -> Tensor | None:
        """Return E, its two parts side by side, (B, S, H, d); None if attention does not update it.

        Attention averages it in the values' dtype: under autocast Ẽ comes from a bf16 copy of E,
        with a relative error of 2⁻⁸ an entry, while E itself stays in fp32.
        """
        return state.flatten(3) if self.attention else None

    def update(
        self, state: Any, averaged_BTHE: Tensor | None, tokens: LayerOutputs, places: Places
    ) -> Tensor:
        """Return the next E: A E + A P Ẽ, in one batched product."""
        B, T = tokens.x.shape[:2]
        E = state.flatten(3).expand(B, T, -1, -1)
        mixing = torch.eye(self.arch.heads, dtype=E.dtype, device=E.device)
        if E.shape[2] == 1:  # E is the same for all heads, and A E sums the rows of A
            mixing = mixing.sum(1, keepdim=True)
        if averaged_BTHE is not None:
            E = torch.cat([E, averaged_BTHE.to(E.dtype)], 2)
            mixing = torch.cat([mixing, self.head_map(E.dtype)], 1)
        E = self.mapped(E, tokens, mixing).unflatten(-1, state.shape[3:])
        return F.normalize(E, dim=-2) if self.unit else E

    def mapped(self, E_BTGE: Tensor, tokens: LayerOutputs, mixing_HG: Tensor) -> Tensor:
        """Apply A ``mixing`` to the rows of E and Ẽ, flattened: (B, T, H, d)."""
        return self.token_maps(tokens, mixing_HG) @ E_BTGE

    def token_maps(self, tokens: LayerOutputs, mixing_HG: Tensor) -> Tensor:
        """Return A ``mixing``, (B, T, H, G), of each token, where A = I + W2 diag(ψ) W1ᵀ::

            A mixing = mixing + Σ_i ψ_i · (column i of W2) (row i of W1ᵀ mixing)

        All tokens share the products in brackets, :meth:`outer_products`, so that this is one
        matrix product with ψ.
        """
        if not self.feed_forward:
            return mixing_HG
        psi_NI = self.psi(tokens, self.update_net["wx"].to(mixing_HG.dtype)).flatten(0, 1)
        outer_IHG = self.outer_products(mixing_HG)
        maps = torch.addmm(mixing_HG.flatten(), psi_NI, outer_IHG.flatten(1))
        return maps.unflatten(-1, mixing_HG.shape).unflatten(0, tokens.x.shape[:2])

    def outer_products(self, mixing_HG: Tensor) -> Tensor:
        """Return what each number of ψ adds to a token's map: a column of W2 times a row of W1ᵀ
        ``mixing``, (I, H, G).
        """
        w1, w2 = (self.update_net[name].to(mixing_HG.dtype) for name in ("w1", "w2"))
        return w2.T[:, :, None] * (w1 @ mixing_HG)[:, None, :]

    def psi(self, tokens: LayerOutputs, wx: Tensor) -> Tensor:
        x_BTC = tokens.attention if self.psi_input == "attention" else tokens.mlp
        return F.silu(x_BTC.to(wx.dtype) @ wx.T)

    def head_map(self, dtype: torch.dtype) -> Tensor:
        p = self.update_net["p"].to(dtype)
        return torch.diag(p.sum(-1)) if self.head_mixing == "scale" else p
