"""PaTH: between query and key is a product of Householder-like matrices that tokens choose.

Shape suffixes: B batch, T tokens, S keys, H heads, K heads of keys, D head dimension, C width; N
blocks of I (or J) tokens.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tape_exp.models.biases import Dense
from tape_exp.models.places import Places
from tape_exp.models.positions.base import Biases, PositionEncoding, for_heads
from tape_exp.models.positions.parts import BLOCK, convolved, in_blocks
from tape_exp.models.precision import precise
from tape_exp.settings.schema import Arch, Count


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
    between them, and K'. In the code Q' is ``passed_q``, K' is ``passed_k``.

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
        """Let W_up W_down keep the size of x, the convolution be the identity, and β near 1."""
        nn.init.normal_(self.down, std=self.down.shape[1] ** -0.5, generator=generator)
        nn.init.normal_(self.up, std=self.up.shape[1] ** -0.5, generator=generator)
        nn.init.normal_(self.b, std=0.02, generator=generator)
        with torch.no_grad():
            self.taps.copy_(torch.tensor([[1.0], [0.0], [0.0]]).expand_as(self.taps))

    def bias(
        self, q_BTHD: Tensor, k_BTHD: Tensor, x_BTC: Tensor, state: Any, places: Places
    ) -> Biases:
        """Return the subtrahend, (B, H, T, T), made of blocks of keys."""
        T, H, D = q_BTHD.shape[1:]
        size = min(BLOCK, T)
        w_BTKD, beta_BTK = self.path(x_BTC)
        q_BHNID = in_blocks(q_BTHD.transpose(1, 2), size)
        k_BHNID = in_blocks(k_BTHD.transpose(1, 2), size)
        w_BHNID = in_blocks(for_heads(w_BTKD, H).transpose(1, 2), size)
        beta_BHNI1 = in_blocks(for_heads(beta_BTK[..., None], H).transpose(1, 2), size)
        # The solve reads only what is below the diagonal, and takes the diagonal for 1.
        WW_D_BHNIJ = (w_BHNID @ w_BHNID.mT) * beta_BHNI1.mT
        D_BHNIJ = torch.diag_embed(beta_BHNI1[..., 0])
        U_BHNIJ = torch.linalg.solve_triangular(
            WW_D_BHNIJ, D_BHNIJ, upper=False, left=False, unitriangular=True
        )
        WK_BHNIJ = (w_BHNID @ k_BHNID.mT).tril(-1)
        QW_U_BHNIJ = (q_BHNID @ w_BHNID.mT).tril() @ U_BHNIJ
        bias_BHTS = joined(
            within_BHNIJ=-(QW_U_BHNIJ @ WK_BHNIJ),
            q_BHNID=q_BHNID,
            k_BHNID=k_BHNID,
            passed_q_BHNID=q_BHNID - QW_U_BHNIJ @ w_BHNID,
            passed_k_BHNID=k_BHNID - (U_BHNIJ @ WK_BHNIJ).mT @ w_BHNID,
            w_BHNID=w_BHNID,
            U_W_BHNID=U_BHNIJ @ w_BHNID,
        )
        return Dense(bias_BHTS[:, :, :T, :T] / math.sqrt(D))

    def path(self, x_BTC: Tensor) -> tuple[Tensor, Tensor]:
        """Return the unit vectors w, (B, T, K, D), 0 for padding, and β, (B, T, K)."""
        down, up, taps, b, c = map(precise, (self.down, self.up, self.taps, self.b, self.c))
        directions_BTE = convolved(x_BTC @ down.T @ up.T, taps)
        w_BTKD = F.normalize(directions_BTE.unflatten(-1, (self.arch.key_heads, -1)), dim=-1)
        return w_BTKD, 2 * torch.sigmoid(x_BTC @ b.T + c)


def joined(
    within_BHNIJ: Tensor,
    q_BHNID: Tensor,
    k_BHNID: Tensor,
    passed_q_BHNID: Tensor,
    passed_k_BHNID: Tensor,
    w_BHNID: Tensor,
    U_W_BHNID: Tensor,
) -> Tensor:
    """Return the bias of all queries and keys, (B, H, N I, N I), joined from that within blocks and
    that of queries and keys of an earlier block, V K'ᵀ - Q Kᵀ::

        keys of block    0             1            2
        queries of 0   within          0            0
        queries of 1   V K'ᵀ - Q Kᵀ  within         0        V is Q'
        queries of 2   V K'ᵀ - Q Kᵀ  V K'ᵀ - Q Kᵀ  within    V is Q', after block 1 for keys of 0

    V are the later queries' Q' that have passed every block between their own and that of the keys,
    and so columns are made from the last to the first.
    """
    size = q_BHNID.shape[3]
    columns: list[Tensor] = []
    later_q_BHTD = q_BHNID.new_empty(*q_BHNID.shape[:2], 0, q_BHNID.shape[-1])
    V_BHTD = later_q_BHTD
    for n in reversed(range(q_BHNID.shape[2])):
        q_BHID = q_BHNID[:, :, n]
        k_BHID = k_BHNID[:, :, n]
        w_BHID = w_BHNID[:, :, n]
        across_BHTJ = V_BHTD @ passed_k_BHNID[:, :, n].mT - later_q_BHTD @ k_BHID.mT
        column_BHTJ = torch.cat([within_BHNIJ[:, :, n], across_BHTJ], 2)
        columns.append(F.pad(column_BHTJ, (0, 0, n * size, 0)))
        V_BHTD = V_BHTD - (V_BHTD @ w_BHID.mT) @ U_W_BHNID[:, :, n]
        V_BHTD = torch.cat([passed_q_BHNID[:, :, n], V_BHTD], 2)
        later_q_BHTD = torch.cat([q_BHID, later_q_BHTD], 2)
    return torch.cat(columns[::-1], 3)
