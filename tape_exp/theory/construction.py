"""Theorem 1 of the TAPE paper as a model: four layers that solve the word problem of the
permutations of five things.

Shape suffixes: B batch, T tokens, C channels of a token (11, then 12), L rows of a token's position
state, R = 6 its columns.
"""

from dataclasses import dataclass
from itertools import combinations, product

import torch
from torch import Tensor, nn

from tape_exp.models.positions.tape_tensor import contract
from tape_exp.theory.topology import Causal, Topology

SWAPS = tuple(combinations(range(5), 2))  # token n exchanges the two things SWAPS[n]
BOS = len(SWAPS)
# Σ_v v π(v) is 55 for the identity and at most 54 for every other permutation of 1 … 5
LOGIT = 54.5


@dataclass(frozen=True)
class Form:
    """How the construction is read where the printed one is not exact; the defaults are the
    repaired one.

    Args:
        strict: the mask of the triangular inverse leaves the diagonal out; printed with it.
        scale: ψ⁽³⁾ from x = 1/i. ``repaired`` [-x⁻² I, x⁻¹ I]: the state is i Π_j S_j, so that
            logits grow with i; ``printed`` [-x⁻¹ I, I]: Π_j S_j; ``remark``, that of the paper's
            remark on precision, [-x⁻² I, I].
        readout: ``repaired`` HardSigmoid(-10 x̃₁ + 3 x̃_bos - 1), or ``printed`` HardSigmoid(-x̃₁),
            which is 0 at i = 1 and reaches no label exactly. With the repaired scale -x̃₁ is at
            least 0.35 where i > 1 and the product is the identity, and below 0 where it is not: the
            repaired argument then clears 1 or 0 by at least 1 at every length.
    """

    strict: bool = True
    scale: str = "repaired"
    readout: str = "repaired"


class Theorem1(nn.Module):
    """The construction of the paper's proof: label i is 1 where the first i tokens multiply to the
    identity, else 0.

    A token n < 10 stands for the swap S_n = I - ξ_n ξ_nᵀ, ξ_n = δ_src - δ_dst ∈ R⁶; token
    :data:`BOS` comes first and only there, with ξ = 0. x ∈ R^C are a token's channels, e ∈ R^{L ×
    6} its position state (H = M = 1, R = 6):

    1. e = [ξ; 0; I]: the token writes itself into its state, ψ⁽¹⁾.
    2. η_i = Σ_j [(I + M ⊙ Ξ Ξᵀ)⁻¹]_ij ξ_j, then e = [ξ ηᵀ; I]: the WY form of a product of
       Householder matrices.
    3. Attention with equal weights: x̃₁ = 1/i, ẽ = [1/i Σ_j ξ_j η_jᵀ; I]; then e = i (I - Σ_j ξ_j
        η_jᵀ) = i (S_1 … S_i)ᵀ.
    4. Attention whose logit for BOS is i (Σ_v v π_i(v) - 54.5), and 0 for every other token: x̃₁ =
       1/i - A_{i,bos}, which the read-out turns to a label.

    Attention, its average of the state and the logits qᵀ e_i e_jᵀ k are the project's own; ψ reads
    x̃, the output of attention, as in eq. (g_mlp). All weights are fp64 constants; nothing depends
    on the length.
    """

    xi: Tensor

    def __init__(self, form: Form | None = None) -> None:
        super().__init__()
        self.form = form or Form()
        xi = torch.zeros(BOS + 1, 6, dtype=torch.float64)
        for token, (source, target) in enumerate(SWAPS):
            xi[token, source] = 1
            xi[token, target] = -1
        self.register_buffer("xi", xi)

    def forward(self, tokens_BT: Tensor, topology: Topology | None = None) -> Tensor:
        """Return labels, (B, T) fp64 in [0, 1]."""
        return self.argument(tokens_BT, topology).clamp(0, 1)

    def argument(self, tokens_BT: Tensor, topology: Topology | None = None) -> Tensor:
        """Return the read-out's argument, (B, T): >= 1 or <= 0 where a label is exact."""
        topology = topology or Causal(self.form.strict)
        x = self.layers(*self.embed(tokens_BT), topology)[0]
        if self.form.readout == "repaired":
            return -10 * x[..., 0] + 3 * x[..., 1 + BOS] - 1
        return -x[..., 0]

    def embed(self, tokens_BT: Tensor) -> tuple[Tensor, Tensor]:
        """Return X⁽⁰⁾: (B, T, 11) one-hot, and E⁽⁰⁾: (B, T, 17, 6), [Ξ; I] for every token."""
        x = nn.functional.one_hot(tokens_BT, BOS + 1).to(self.xi.dtype)
        e = torch.cat([self.xi, eye(6)])
        return x, e.expand(*tokens_BT.shape, -1, -1)

    def layers(self, x: Tensor, e: Tensor, topology: Topology) -> tuple[Tensor, Tensor]:
        """Run all four: the attention output x̃⁽⁴⁾ (B, T, 12) and the state (B, T, 6, 6)."""
        x, e = self.first(x, e)
        x, e = self.second(x, e, topology)
        x, e = self.third(x, e, topology)
        return self.fourth(x, e, topology)

    def first(self, x: Tensor, e: Tensor) -> tuple[Tensor, Tensor]:
        """Apply layer 1: ψ⁽¹⁾(x) = [xᵀ 0; 0 0; 0 I], (B, T, 8, 17), turns e; x stays."""
        psi = x.new_zeros(*x.shape[:2], 8, 17)
        psi[..., 0, : BOS + 1] = x
        psi[..., 2:, BOS + 1 :] = eye(6)
        return x, psi @ e

    def second(self, x: Tensor, e: Tensor, topology: Topology) -> tuple[Tensor, Tensor]:
        """Apply layer 2: U_Q = U_K = δ_1ᵀ, U_V: row 1 to 2, residual; ψ⁽²⁾ = [ξ δ_2ᵀ; δ_3 … δ_8]; x
        ← [0; x].
        """
        U_K = eye(8)[0]
        U_V = torch.outer(eye(8)[1], eye(8)[0])
        keys_BTR = torch.einsum("l,btlr->btr", U_K, e)
        e = e + topology.invert(keys_BTR, (U_V @ e).flatten(2)).unflatten(-1, e.shape[2:])
        psi = x.new_zeros(*x.shape[:2], 12, 8)
        psi[..., :6, 1] = x @ self.xi
        psi[..., 6:, 2:] = eye(6)
        return nn.functional.pad(x, (1, 0)), psi @ e

    def third(self, x: Tensor, e: Tensor, topology: Topology) -> tuple[Tensor, Tensor]:
        """Apply layer 3: W_Q = W_K = 0, W_V = δ_1 δ_bosᵀ, shared with e; residual only for x; ψ⁽³⁾
        of Form.
        """
        W_QK = x.new_zeros(e.shape[2], 12)
        W_V = torch.outer(eye(12)[0], eye(12)[1 + BOS])
        x, e = self._attention(x, e, W_QK, W_QK, W_V, topology)
        return x, self.psi3(x) @ e

    def psi3(self, x: Tensor) -> Tensor:
        """Return ψ⁽³⁾(x), from x's first channel: (B, T, 6, 12)."""
        i = 1 / x[..., :1, None]
        product_scale, identity_scale = {
            "printed": (i, i**0),
            "remark": (i**2, i**0),
            "repaired": (i**2, i),
        }[self.form.scale]
        return torch.cat([-product_scale * eye(6), identity_scale * eye(6)], -1)

    def fourth(self, x: Tensor, e: Tensor, topology: Topology) -> tuple[Tensor, Tensor]:
        """Apply layer 4: W_Q x = (1…5, 54.5), W_K x = (1…5, -1) at BOS, else 0; W_V = -δ_1 δ_bosᵀ;
        residual.
        """
        ramp = torch.arange(1.0, 7.0, dtype=x.dtype)
        bos = eye(12)[1 + BOS]
        W_Q = torch.outer(
            ramp.index_fill(0, torch.tensor(5), LOGIT),
            torch.tensor([0.0] + [1.0] * (BOS + 1), dtype=x.dtype),
        )
        W_K = torch.outer(ramp.index_fill(0, torch.tensor(5), -1.0), bos)
        x, _ = self._attention(x, e, W_Q, W_K, torch.outer(-eye(12)[0], bos), topology)
        return x, e

    def _attention(
        self, x: Tensor, e: Tensor, W_Q: Tensor, W_K: Tensor, W_V: Tensor, topology: Topology
    ) -> tuple[Tensor, Tensor]:
        """Return x + A W_V x and A e: eq. (f_attn) without its 1/√D, and eq. (g_attn), from one map
        A.
        """
        state = e[:, :, None, None]  # (B, T, H, M, L, R)
        q, k = (contract((x @ W.T)[:, :, None], state) for W in (W_Q, W_K))
        values, averaged = topology.attend(
            q * q.shape[-1] ** 0.5, k, (x @ W_V.T)[:, :, None], state.flatten(3)
        )
        assert averaged is not None
        return x + values.squeeze(2), averaged.squeeze(2).unflatten(-1, e.shape[2:])


def eye(n: int) -> Tensor:
    """Return I in fp64; its rows are δ_1 … δ_n."""
    return torch.eye(n, dtype=torch.float64)


def labels(tokens_BT: Tensor) -> Tensor:
    """Say whether the first i tokens give the identity, by composing swaps: (B, T) booleans."""
    exchange = torch.arange(5).repeat(BOS + 1, 1)
    for token, (source, target) in enumerate(SWAPS):
        exchange[token, source] = target
        exchange[token, target] = source
    state = torch.arange(5).expand(len(tokens_BT), 5)
    same = []
    for token_B in tokens_BT.T:
        state = state.gather(1, exchange[token_B])
        same.append((state == torch.arange(5)).all(-1))
    return torch.stack(same, 1)


def random_words(rows: int, length: int, generator: torch.Generator) -> Tensor:
    """Draw BOS and length - 1 uniform swaps: (rows, length)."""
    return nn.functional.pad(
        torch.randint(0, BOS, (rows, length - 1), generator=generator), (1, 0), value=BOS
    )


def every_word(swaps: int) -> Tensor:
    """Return BOS and every sequence of that many swaps: (10^swaps, swaps + 1)."""
    words = torch.tensor(list(product(range(BOS), repeat=swaps)), dtype=torch.long).view(
        BOS**swaps, swaps
    )
    return nn.functional.pad(words, (1, 0), value=BOS)
