"""TAPE with the update of theorem 1: a cumulative product of reflections that the tokens choose."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tape_exp.models.places import Places
from tape_exp.models.positions.base import LayerOutputs
from tape_exp.models.positions.parts import BLOCK
from tape_exp.models.positions.rope_scaling import Scaling, Theta
from tape_exp.models.positions.tape import TAPE, PsiInput
from tape_exp.models.positions.tape_tensor import TensorTAPE
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.schema import Arch, Count


class HouseholderTAPE(TensorTAPE):
    """TAPE whose state is turned by ∏_{j<=i} (I - ξ_j ξ_jᵀ), as in the proof of theorem 1 (Zhu et
    al., 2025).

    State E: (B, T, H, M, R, R) fp32, M = d/R blocks per head. A block begins with the rotations of
    R/2 pairs of RoPE. Each token brings two vectors per block, and one update is, per head and
    block::

        ξ_j  = √2 (a_jᵀ E_j) / |a_jᵀ E_j|                     a = U D x
        ξ'_j = √2 ((a_j + b_j)ᵀ E_j) / |(a_j + b_j)ᵀ E_j|     b = U' D x
        Ξ: the rows ξ_1, ξ'_1, ξ_2, ξ'_2, …                   η = (I + tril_-1(Ξ Ξᵀ))⁻¹ Ξ
        E_i ← E_i (I - Σ_{j<=i} (ξ_j η_jᵀ + ξ'_j η'_jᵀ))
            = E_i (∏_{j<=i} (I - ξ_j ξ_jᵀ)(I - ξ'_j ξ'_jᵀ))ᵀ
        E ← E + W2 diag(SiLU(W_x x̃)) W1ᵀ E                    as in TAPE

    which the next layer sees between query i and key j as the product over the tokens from j + 1 to
    i; the sum takes the place of P Ẽ. Any rotation of E from the right rotates ξ, η and the result
    likewise.

    Deliberately different from the proof: the mask is strict, without which its lemma does not
    hold; and its tokens bring one vector, of any norm. Two vectors of norm √2 make every factor a
    rotation, so that the product neither shrinks nor grows with the length; it begins as the
    identity, as U' is 0: step 0 is RoPE. A swap of two things is such a factor too, which also
    mirrors a spare dimension.

    Args:
        theta, scaling: of the initial rotations, as in RoPE.
        intermediate, psi_input, feed_forward: as in TAPE.
        R: size of a block, even; it divides d. The proof has 6 for S5.
        rank: of the maps from x to a and b.
    """

    cacheable = False  # the product runs over all tokens so far

    def __init__(
        self,
        arch: Arch,
        theta: Theta = 10_000.0,
        scaling: Scaling | None = None,
        intermediate: Count = 4,
        psi_input: PsiInput = "attention",
        feed_forward: bool = True,
        R: Count = 8,
        rank: Count = 32,
    ) -> None:
        if R % 2 or arch.head_dim % R:
            raise ConfigError(
                f"model.R={R} must be even and divide {arch.head_dim}; 2 always does."
            )
        of_tape: dict[str, Any] = {"theta": theta, "scaling": scaling, "intermediate": intermediate}
        of_tape |= {"psi_input": psi_input, "feed_forward": feed_forward}
        super().__init__(arch, attention=False, **of_tape)
        self.reflects = True  # without, the product is left out, to see what it does
        self.L = self.R = R
        self.M = arch.head_dim // R
        width = arch.heads * arch.head_dim
        self.update_net["down"] = torch.empty(rank, arch.width)
        self.update_net["up"] = torch.empty(width, rank)
        self.update_net["up_apart"] = torch.zeros(width, rank)

    def init_weights(self, generator: torch.Generator) -> None:
        """Let U D keep the size of x; U' is 0: every factor is the identity, and step 0 is RoPE."""
        super().init_weights(generator)
        for name in ("down", "up"):
            matrix = self.update_net[name]
            nn.init.normal_(matrix, std=matrix.shape[1] ** -0.5, generator=generator)

    def start(self, places: Places) -> Tensor:
        """Return the first blocks, (B, T, 1, M, R, R): pair l·M + m turns rows and columns l and l
        + R/2 of block m.
        """
        lengths_B = places.lengths if self.reads_length else None
        frequencies, magnitude = self.frequencies(places.positions, lengths_B)
        angles = (places.positions[:, :, None, None] * frequencies).unflatten(-1, (-1, self.M)).mT
        cos, sin = (torch.diag_embed(x) * magnitude for x in (angles.cos(), angles.sin()))
        return torch.cat([torch.cat([cos, sin], -1), torch.cat([-sin, cos], -1)], -2)

    def update(
        self, state: Any, averaged_BTHE: Tensor | None, tokens: LayerOutputs, places: Places
    ) -> Tensor:
        turned = state @ products(self.reflections(state, tokens.x)) if self.reflects else state
        return TAPE.update(self, turned, None, tokens, places)

    def reflections(self, state: Tensor, x_BTC: Tensor) -> Tensor:
        """Return ξ and ξ', (B, T, 2, H, M, R)."""
        names = ("down", "up", "up_apart")
        down, up, up_apart = (self.update_net[name].to(state.dtype) for name in names)
        inner = x_BTC.to(state.dtype) @ down.T
        a = inner @ up.T
        b = inner @ up_apart.T
        both = torch.stack([a, a + b], 2).unflatten(-1, (self.arch.heads, self.M, self.R))
        E = state.expand(*x_BTC.shape[:2], self.arch.heads, -1, -1, -1)
        rows = torch.einsum("btnhml,bthmlr->btnhmr", both, E)
        return 2**0.5 * F.normalize(rows, dim=-1)


def products(xi_BTNHMR: Tensor) -> Tensor:
    """Return I - Σ_{j<=i} (ξ_j η_jᵀ + ξ'_j η'_jᵀ): (B, T, H, M, R, R).

    In blocks of :data:`BLOCK` tokens: the product within each by the triangular inverse, times that
    of the blocks before, so that time and memory grow with T and not with its square.
    """
    B, T = xi_BTNHMR.shape[:2]
    if T <= BLOCK:
        return products_of_block(xi_BTNHMR)
    padded = F.pad(xi_BTNHMR, (0, 0) * 4 + (0, -T % BLOCK))  # a factor of 0 is I
    within = products_of_block(padded.unflatten(1, (-1, BLOCK)).flatten(0, 1))
    within_BnSHMRR = within.unflatten(0, (B, -1))
    before = [torch.eye(within.shape[-1], dtype=within.dtype, device=within.device)]
    for block_BHMRR in within_BnSHMRR[:, :-1, -1].unbind(1):
        before.append(block_BHMRR @ before[-1])
    starts = torch.stack([x.expand_as(before[-1]) for x in before], 1)[:, :, None]
    return (within_BnSHMRR @ starts).flatten(1, 2)[:, :T]


def products_of_block(xi_BSNHMR: Tensor) -> Tensor:
    """Return the same of at most a block of tokens, by a matrix of all pairs of vectors."""
    xi_BHMNR = xi_BSNHMR.flatten(1, 2).permute(0, 2, 3, 1, 4)  # N = 2 S vectors
    # The solve reads only what is below the diagonal, and takes the diagonal for 1.
    eta_BHMNR = torch.linalg.solve_triangular(
        xi_BHMNR @ xi_BHMNR.mT, xi_BHMNR, upper=False, unitriangular=True
    )
    pairs = (x.unflatten(3, (-1, 2)) for x in (xi_BHMNR, eta_BHMNR))
    sums_BHMSRR = torch.einsum("bhmsni,bhmsnj->bhmsij", *pairs).cumsum(3)
    identity = torch.eye(xi_BHMNR.shape[-1], dtype=xi_BHMNR.dtype, device=xi_BHMNR.device)
    return (identity - sums_BHMSRR).permute(0, 3, 1, 2, 4, 5)
