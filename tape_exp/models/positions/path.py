"""PaTH: between query and key is a product of Householder-like matrices that tokens choose."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tape_exp.models.places import Places
from tape_exp.models.positions.base import Biases, PositionEncoding, for_heads
from tape_exp.models.scores import Dense, precise
from tape_exp.settings.schema import Arch, Count

BLOCK = 64  # tokens


class PaTH(PositionEncoding):
    """PaTH attention (Yang et al., "PaTH Attention: Position Encoding via Accumulating Householder
    Transformations", 2025). The logit of query i and key j, per head, with a matrix for each token
    on the way from j to i::

        k_jᵀ H_{j+1} H_{j+2} ⋯ H_i q_i / √d        H_t = I - β_t w_t w_tᵀ
        w_t = v_t / |v_t|              v: causal convolution of W_up W_down x over 3 tokens
        β_t = 2 sigmoid(b·x_t + c)     in (0, 2): H_t keeps, shrinks or mirrors the part along w_t

    All products at once (the paper's UT transform), with D = diag(β), W the rows w_t, and tril_k
    the entries on or below the k-th diagonal::

        logits √d = tril_0(Q Kᵀ) - tril_0(Q Wᵀ) D (I + tril_-1(W Wᵀ) D)⁻¹ tril_-1(W Kᵀ)

    The subtrahend is a bias, made in blocks of :data:`BLOCK` tokens, so that no inverse is larger.
    With U = D (I + tril_-1(W Wᵀ) D)⁻¹ of a block, its queries, its keys and what passes all of it
    become::

        Q' = Q - tril_0(Q Wᵀ) U W        K' = K - (U tril_-1(W Kᵀ))ᵀ W        V ← V - V Wᵀ U W

    The logit of a query and a key of an earlier block is that of Q', which has passed all blocks
    between them, and K'.

    Each key head has one path. Deliberately different from fla-org/flash-linear-attention: W_up
    W_down also where keys have fewer heads; no SiLU after the convolution.

    Args:
        rank: of W_up W_down.
    """

    cacheable = False  # every token changes all keys before it

    def __init__(self, arch: Arch, rank: Count = 32) -> None:
        super().__init__(arch)
        self.down = nn.Parameter(torch.empty(rank, arch.width))
        self.up = nn.Parameter(torch.empty(arch.key_heads * arch.head_dim, rank))
        # a row for this token, for the one before it, and for the one before that
        self.taps = nn.Parameter(torch.empty(3, arch.key_heads * arch.head_dim))
        self.b = nn.Parameter(torch.empty(arch.key_heads, arch.width))
        self.c = nn.Parameter(torch.zeros(arch.key_heads))

    def init_weights(self, generator: torch.Generator) -> None:
        """W_up W_down keeps the size of x, the convolution begins as the identity, β near 1."""
        nn.init.normal_(self.down, std=self.down.shape[1] ** -0.5, generator=generator)
        nn.init.normal_(self.up, std=self.up.shape[1] ** -0.5, generator=generator)
        nn.init.normal_(self.b, std=0.02, generator=generator)
        with torch.no_grad():
            self.taps.copy_(torch.tensor([[1.0], [0.0], [0.0]]).expand_as(self.taps))

    def bias(
        self, q_BTHD: Tensor, k_BTHD: Tensor, x_BTC: Tensor, state: Any, places: Places
    ) -> Biases:
        T, H, D = q_BTHD.shape[1:]
        size = min(BLOCK, T)
        w_BTKD, beta_BTK = self.path(x_BTC)
        # Of each of N blocks of c tokens: (B, H, N, c, D), β (B, H, N, c, 1).
        q = in_blocks(q_BTHD.transpose(1, 2), size)
        k = in_blocks(k_BTHD.transpose(1, 2), size)
        w = in_blocks(for_heads(w_BTKD, H).transpose(1, 2), size)
        beta = in_blocks(for_heads(beta_BTK[..., None], H).transpose(1, 2), size)
        # The solve reads only what is below the diagonal, and takes the diagonal for 1.
        mixed = (w @ w.mT) * beta.mT
        U = torch.linalg.solve_triangular(
            mixed, torch.diag_embed(beta[..., 0]), upper=False, left=False, unitriangular=True
        )
        W_K = (w @ k.mT).tril(-1)
        QW_U = (q @ w.mT).tril() @ U
        within = -(QW_U @ W_K)  # the bias of queries and keys of one block, (B, H, N, c, c)
        q_prime = q - QW_U @ w
        k_prime = k - (U @ W_K).mT @ w
        U_W = U @ w
        # The columns of the bias, (B, H, T, c), from the last block of keys to the first: those of
        # block n are 0 for earlier queries, ``within`` for its own, and Q' K'ᵀ - Q Kᵀ for later
        # ones. V are the later queries' Q', which have passed every block between n and their own.
        columns: list[Tensor] = []
        V = later_q = q.new_empty(*q.shape[:2], 0, D)
        for n in reversed(range(q.shape[2])):
            across = V @ k_prime[:, :, n].mT - later_q @ k[:, :, n].mT
            column = torch.cat([within[:, :, n], across], 2)
            columns.append(F.pad(column, (0, 0, n * size, 0)))
            V = torch.cat([q_prime[:, :, n], V - (V @ w[:, :, n].mT) @ U_W[:, :, n]], 2)
            later_q = torch.cat([q[:, :, n], later_q], 2)
        return Dense(torch.cat(columns[::-1], 3)[:, :, :T, :T] / math.sqrt(D))

    def path(self, x_BTC: Tensor) -> tuple[Tensor, Tensor]:
        """The unit vectors w, (B, T, K, D), 0 for padding, and β, (B, T, K)."""
        down, up, taps, b, c = map(precise, (self.down, self.up, self.taps, self.b, self.c))
        directions_BTE = convolved(x_BTC @ down.T @ up.T, taps)
        w_BTKD = F.normalize(directions_BTE.unflatten(-1, (self.arch.key_heads, -1)), dim=-1)
        return w_BTKD, 2 * torch.sigmoid(x_BTC @ b.T + c)


def in_blocks(x_BHTD: Tensor, size: int) -> Tensor:
    """Tokens in blocks, the last filled up with zeros: (B, H, N, c, D), c being ``size``."""
    T = x_BHTD.shape[2]
    return F.pad(x_BHTD, (0, 0, 0, -T % size)).unflatten(2, (-1, size))


def convolved(x_BTE: Tensor, taps_NE: Tensor) -> Tensor:
    """Σ_n taps_n · what the token n before each one brings, (B, T, E)."""
    T = x_BTE.shape[1]
    reach = len(taps_NE) - 1
    padded = F.pad(x_BTE, (0, 0, reach, 0))
    total = x_BTE.new_zeros(())
    for n, tap_E in enumerate(taps_NE):
        total = total + padded[:, reach - n : reach - n + T] * tap_E
    return total
