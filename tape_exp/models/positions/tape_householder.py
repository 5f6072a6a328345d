"""TAPE with the update of theorem 1: a cumulative product of reflections that the tokens choose."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tape_exp.models.positions.base import Past
from tape_exp.models.positions.rope import Scaling
from tape_exp.models.positions.tape_tensor import TensorTAPE
from tape_exp.models.precision import full_precision
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.schema import Arch

BLOCK = 64  # tokens


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
    i. The sum with the triangular inverse takes the place of P Ẽ. Any rotation of E from the right
    rotates ξ, η and the result likewise.

    Deliberately different from the proof: it prints its mask with the diagonal, but its lemma holds
    only for the strict mask; and its tokens bring one vector, of any norm. Two vectors of norm √2
    make every factor a rotation: the product neither shrinks nor grows with the length, and as U'
    begins at 0 it begins as the identity, so step 0 is RoPE. A swap of two things is such a factor
    too, which also mirrors a spare dimension.

    Args:
        theta, scaling: of the initial rotations, as in RoPE.
        intermediate, psi_input, feed_forward: as in TAPE.
        R: size of a block, even; it divides d. The proof has 6 for S5.
        rank: of the maps from x to a and b.
    """

    update_parameters = ("wx", "w1", "w2", "down", "up", "up_apart")
    maps_tokens = True

    def __init__(
        self,
        arch: Arch,
        theta: float = 10_000.0,
        scaling: Scaling | None = None,
        intermediate: int = 4,
        psi_input: str = "attention",
        feed_forward: bool = True,
        R: int = 8,
        rank: int = 32,
    ) -> None:
        if R < 2 or R % 2 or arch.head_dim % R:
            raise ConfigError(
                f"model.R={R} must be even and divide the head dimension task.arch.width / "
                f"task.arch.heads = {arch.head_dim}; model.R=2 always does."
            )
        if rank < 1:
            raise ConfigError(f"model.rank={rank} must be at least 1, as model.rank=32 is.")
        super().__init__(
            arch, theta, scaling, intermediate, psi_input, "linear", False, feed_forward
        )
        self.L = self.R = R
        self.M = arch.head_dim // R
        self.down = nn.Parameter(torch.empty(rank, arch.width))
        self.up = nn.Parameter(torch.empty(arch.heads * arch.head_dim, rank))
        self.up_apart = nn.Parameter(torch.zeros(arch.heads * arch.head_dim, rank))

    def init_weights(self, generator: torch.Generator) -> None:
        """U D keeps the size of x, U' is zero: every factor is the identity, and step 0 is RoPE."""
        super().init_weights(generator)
        nn.init.normal_(self.down, std=self.down.shape[1] ** -0.5, generator=generator)
        nn.init.normal_(self.up, std=self.up.shape[1] ** -0.5, generator=generator)

    def initial_state(self, positions_BT: Tensor) -> Tensor:
        """(B, T, 1, M, R, R): pair l·M + m turns rows and columns l and l + R/2 of block m."""
        frequencies, magnitude = self.frequencies(positions_BT)
        angles = (
            (positions_BT[:, :, None, None] * frequencies)
            .unflatten(-1, (-1, self.M))
            .transpose(-1, -2)
        )
        cos, sin = (torch.diag_embed(x) * magnitude for x in (angles.cos(), angles.sin()))
        return torch.cat([torch.cat([cos, sin], -1), torch.cat([-sin, cos], -1)], -2)

    def features(self, x_BTC: Tensor, state: Tensor | None, past: Past) -> dict[str, Tensor]:
        """``xi``: ξ and ξ', (B, T, 2, H, M, R), fp32."""
        assert state is not None
        with full_precision(x_BTC):
            inner = x_BTC.to(state.dtype) @ self.down.to(state.dtype).T
            a, b = (inner @ up.to(state.dtype).T for up in (self.up, self.up_apart))
            both = torch.stack([a, a + b], 2).unflatten(-1, (self.arch.heads, self.M, self.R))
            rows = torch.einsum(
                "btnhml,bthmlr->btnhmr",
                both,
                state.expand(*x_BTC.shape[:2], *both.shape[3:4], -1, -1, -1),
            )
            return {"xi": 2**0.5 * F.normalize(rows, dim=-1)}

    def accumulated(self, features: dict[str, Tensor], past: Past) -> Tensor:
        """I - Σ_{j<=i} (ξ_j η_jᵀ + ξ'_j η'_jᵀ), the sum over the tokens before these as well: (B,
        T, H, M, R, R).

        What later tokens need of all so far is the last of these products, R d numbers a head. More
        than :data:`BLOCK` tokens are taken in blocks: the product within each by the triangular
        inverse, and what it begins with as the product of the blocks before. So time and memory
        grow with T, and not with its square.
        """
        xi_BTNHMR = features["xi"]
        with full_precision(xi_BTNHMR):
            products = self._within_blocks(xi_BTNHMR)
            if "product" in past:
                products = products @ past["product"]
            past["product"] = products[:, -1:].clone()
            return products

    def _within_blocks(self, xi_BTNHMR: Tensor) -> Tensor:
        """The same as if no token came before."""
        B, T = xi_BTNHMR.shape[:2]
        if T <= BLOCK:
            return self._products(xi_BTNHMR)
        padded = F.pad(xi_BTNHMR, (0, 0) * 4 + (0, -T % BLOCK))  # a factor of 0 is I
        within = self._products(padded.unflatten(1, (-1, BLOCK)).flatten(0, 1))
        within_BnSHMRR = within.unflatten(0, (B, -1))
        before = [torch.eye(self.R, dtype=within.dtype, device=within.device)]
        for block_BHMRR in within_BnSHMRR[:, :-1, -1].unbind(1):
            before.append(block_BHMRR @ before[-1])
        starts = torch.stack([x.expand_as(before[-1]) for x in before], 1)[:, :, None]
        return (within_BnSHMRR @ starts).flatten(1, 2)[:, :T]

    def _products(self, xi_BSNHMR: Tensor) -> Tensor:
        """The same of at most a block of tokens, by a matrix of all pairs of vectors."""
        xi_BHMNR = xi_BSNHMR.flatten(1, 2).permute(0, 2, 3, 1, 4)  # N = 2 S vectors
        # The solve reads only what is below the diagonal, and takes the diagonal for 1.
        mixed_BHMNN = xi_BHMNR @ xi_BHMNR.transpose(-1, -2)
        eta_BHMNR = torch.linalg.solve_triangular(
            mixed_BHMNN, xi_BHMNR, upper=False, unitriangular=True
        )
        pairs = (x.unflatten(3, (-1, 2)) for x in (xi_BHMNR, eta_BHMNR))
        sums_BHMSRR = torch.einsum("bhmsni,bhmsnj->bhmsij", *pairs).cumsum(3)
        identity = torch.eye(self.R, dtype=xi_BHMNR.dtype, device=xi_BHMNR.device)
        return (identity - sums_BHMSRR).permute(0, 3, 1, 2, 4, 5)

    def update(self, state: Tensor | None, attended: Tensor | None, x_BTC: Tensor) -> Tensor:
        """A E times what :meth:`accumulated` gives, with A = I + W2 diag(ψ) W1ᵀ, in fp32."""
        assert state is not None
        with full_precision(x_BTC):
            turned = state if attended is None else state @ attended
            if not self.feed_forward:
                return turned
            A_BTHH = self._token_maps(x_BTC.to(turned.dtype))
            rows = turned.expand(*x_BTC.shape[:2], self.arch.heads, -1, -1, -1).flatten(3)
            return (A_BTHH @ rows).unflatten(-1, turned.shape[3:])

    def counted_operations(self, length: int) -> tuple[int, int]:
        """The maps, Ξ Ξᵀ of a block, the solve for η and the sums, not halved by causality; ψ as in
        TAPE.
        """
        macs, flops = super().counted_operations(length)
        H, d, R = self.arch.heads, self.arch.head_dim, self.R
        maps = self.down.numel() + self.up.numel() + self.up_apart.numel()
        return macs + length * (maps + H * d * R * 5) + H * d * 8 * length * min(
            length, BLOCK
        ), flops
