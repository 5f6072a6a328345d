"""PaTH: between query and key is a product of Householder-like matrices that tokens choose."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tape_exp.models.positions.base import Past, PositionEncoding, for_heads
from tape_exp.models.precision import full_precision, precise
from tape_exp.models.rows import RowBias, recomputed
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.schema import Arch

BLOCK = 64  # tokens
LONG = 512  # tokens, beyond which the bias is made for ROWS of queries at a time
ROWS = 128


class PaTH(PositionEncoding):
    """PaTH attention (Yang et al., "PaTH Attention: Position Encoding via Accumulating Householder
    Transformations", 2025).

    The logit of query i and key j, per head, and the matrices on the way from j to i::

        k_jᵀ H_{j+1} H_{j+2} ⋯ H_i q_i / √d        H_t = I - β_t w_t w_tᵀ
        w_t = v_t / |v_t|              v: causal convolution of W_up W_down x over 3 tokens
        β_t = 2 sigmoid(b·x_t + c)     in (0, 2): H_t keeps, shrinks or mirrors the part along w_t

    All products at once (the paper's UT transform), with D = diag(β), W the rows w_t, and tril_k
    the entries on or below the k-th diagonal::

        logits √d = tril_0(Q Kᵀ) - tril_0(Q Wᵀ) D (I + tril_-1(W Wᵀ) D)⁻¹ tril_-1(W Kᵀ)

    The subtrahend is a contextual bias, in fp32. x is what queries and keys are made of. Where keys
    have fewer heads than queries, each key head has one path.

    From a cache, k_j comes as H_i ⋯ H_{j+1} k_j after token i, and each new token multiplies all
    keys by its own H, as the paper does: O(S d) per head and token, as much as the logits
    themselves, and nothing is kept but the keys. A product of all factors so far, d × d, would not
    do instead: it would have to be divided by the factors up to j, and β = 1 makes H singular.

    Of up to :data:`LONG` tokens the bias is a matrix of all pairs. Of more it is made for
    :data:`ROWS` queries at a time, and again in the backward pass: what is kept grows with the
    length, the time with its square. That is what ``sdpa`` does, which ``auto`` takes there; in
    other backends, in traces, and where the logits are multiplied (``model.ssmax``), it is the
    matrix.

    Deliberately different: W_up W_down also where keys have fewer heads; no SiLU
    after the convolution, which the public code has (fla-org/flash-linear-attention); no forget
    gate (the paper's PaTH-FoX).

    Args:
        rank: of W_up W_down.
    """

    changes_keys = True

    def __init__(self, arch: Arch, rank: int = 32) -> None:
        super().__init__(arch)
        if rank < 1:
            raise ConfigError(f"model.rank={rank} must be at least 1; 32 is the paper's.")
        self.down = nn.Parameter(torch.empty(rank, arch.width))
        self.up = nn.Parameter(torch.empty(arch.key_heads * arch.head_dim, rank))
        # One row for this token, one for the token before it, one for the token before that.
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

    def features(self, x_BTC: Tensor, state: Tensor | None, past: Past) -> dict[str, Tensor]:
        """``w``: the unit vectors, (B, T, K, D), 0 for padding; ``beta``: (B, T, K); both fp32. The
        next tokens' convolution needs W_up W_down x of the last two.
        """
        with full_precision(x_BTC):
            down, up, b, c = map(precise, (self.down, self.up, self.b, self.c))
            x_BTC = x_BTC.to(down.dtype)
            beta = 2 * torch.sigmoid(x_BTC @ b.T + c)
            raw_BTE = x_BTC @ down.T @ up.T
            before = past.get("w", raw_BTE.new_zeros(len(raw_BTE), 2, raw_BTE.shape[2]))
            raw_BTE = torch.cat([before, raw_BTE], 1)
            past["w"] = raw_BTE[:, -2:].clone()
            return {"w": self._unit_vectors(raw_BTE), "beta": beta}

    def contextual_bias(
        self, q_BTHD: Tensor, k_BSKD: Tensor, features: dict[str, Tensor], bias: Tensor | None
    ) -> Tensor | None:
        """-tril_0(Q Wᵀ) D (I + tril_-1(W Wᵀ) D)⁻¹ tril(W Kᵀ) / √d, where the last tril leaves to
        each w the keys of earlier tokens; of more than :data:`BLOCK` tokens by :meth:`_blockwise`.
        """
        (T, H, D), S = q_BTHD.shape[1:], k_BSKD.shape[1]
        with full_precision(q_BTHD):
            w_BHTD = for_heads(features["w"], H).transpose(1, 2)
            beta_BH1T = for_heads(features["beta"][..., None], H).permute(0, 2, 3, 1)
            q_BHTD, k_BHSD = (
                x.to(w_BHTD.dtype).transpose(1, 2) for x in (q_BTHD, for_heads(k_BSKD, H))
            )
            if T > BLOCK:
                beta_BHT = beta_BH1T[:, :, 0]
                return self._blockwise(q_BHTD, k_BHSD, w_BHTD, beta_BHT) / math.sqrt(D)
            along_BHTT = (q_BHTD @ w_BHTD.mT).tril() * beta_BH1T
            # The solve reads only what is below the diagonal, and takes the diagonal for 1.
            mixed_BHTT = (w_BHTD @ w_BHTD.mT) * beta_BH1T
            solved_BHTT = torch.linalg.solve_triangular(
                mixed_BHTT, along_BHTT, upper=False, left=False, unitriangular=True
            )
            reached_BHTS = (w_BHTD @ k_BHSD.mT).tril(S - T - 1)
            return -(solved_BHTT @ reached_BHTS) / math.sqrt(D)

    def rows_at_once(self, length: int) -> int:
        """:data:`ROWS` of more than :data:`LONG`."""
        return ROWS if length > LONG else length

    def contextual_rows(
        self, q_BTHD: Tensor, k_BSKD: Tensor, features: dict[str, Tensor]
    ) -> RowBias:
        """The same bias by blocks of :data:`ROWS` queries: see :func:`_of_rows`."""
        (T, H), S = q_BTHD.shape[1:3], k_BSKD.shape[1]
        q, k, w, beta = (
            for_heads(x, H).transpose(1, 2)
            for x in (q_BTHD, k_BSKD, features["w"], features["beta"][..., None])
        )
        seen = slice((T - 1) // ROWS * ROWS)  # blocks that others come after
        blocks = recomputed(_blocks, k[:, :, S - T :][:, :, seen], w[:, :, seen], beta[:, :, seen])
        return RowBias(ROWS, (q, k, w, beta, *blocks), _of_rows)

    def path(self, features: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """w and β."""
        return features["w"], features["beta"]

    def later_keys(self, k_BSKD: Tensor, features: dict[str, Tensor]) -> Tensor:
        """K - (U tril(W Kᵀ))ᵀ W in fp32, block after block: see :meth:`_blockwise`."""
        earlier = k_BSKD.shape[1] - features["w"].shape[1]
        with full_precision(k_BSKD):
            w_BKTD, beta_BKT = features["w"].transpose(1, 2), features["beta"].transpose(1, 2)
            keys = k_BSKD.to(w_BKTD.dtype).transpose(1, 2)
            for first in range(0, w_BKTD.shape[2], BLOCK):
                w, beta = (x[:, :, first : first + BLOCK] for x in (w_BKTD, beta_BKT))
                seen = earlier + first + w.shape[2]
                reached = (w @ keys[:, :, :seen].mT).tril(earlier + first - 1)
                moved = (_inverse(w, beta) @ reached).mT @ w
                keys = torch.cat([keys[:, :, :seen] - moved, keys[:, :, seen:]], 2)
            return keys.transpose(1, 2)

    def _blockwise(
        self, q_BHTD: Tensor, k_BHSD: Tensor, w_BHTD: Tensor, beta_BHT: Tensor
    ) -> Tensor:
        """The bias times √d, in blocks of c tokens, so that no inverse is larger than c × c.

        With W, D, Q and K of one block and U = D (I + tril_-1(W Wᵀ) D)⁻¹, in its queries, its keys
        and whatever passes all of it, the block's product of matrices leaves::

            Q' = Q - tril_0(Q Wᵀ) U W        K' = K - (U tril_-1(W Kᵀ))ᵀ W        V ← V - V Wᵀ U W

        The logit of a query and a key of an earlier block is that of Q' and K', where Q' has passed
        all blocks between them; the bias is what that differs by from q·k.
        """
        T, S = q_BHTD.shape[2], k_BHSD.shape[2]
        end = -T % BLOCK
        before, k_BHTD = k_BHSD.split([S - T, T], 2)
        q, k, w = (
            F.pad(x, (0, 0, 0, end)).unflatten(2, (-1, BLOCK)) for x in (q_BHTD, k_BHTD, w_BHTD)
        )
        U = _inverse(w, F.pad(beta_BHT, (0, end)).unflatten(2, (-1, BLOCK)))
        reached = (w @ k.mT).tril(-1)
        along = (q @ w.mT).tril() @ U
        own = -(along @ reached)  # of queries and keys of one block
        passed, keys = q - along @ w, k - (U @ reached).mT @ w
        columns: list[Tensor] = []
        v = q_later = q.new_empty(*q.shape[:2], 0, q.shape[-1])
        for block in reversed(range(k.shape[2])):
            later = v @ keys[:, :, block].mT - q_later @ k[:, :, block].mT
            W, U_W = w[:, :, block], U[:, :, block] @ w[:, :, block]
            v = torch.cat([passed[:, :, block], v - (v @ W.mT) @ U_W], 2)
            q_later = torch.cat([q[:, :, block], q_later], 2)
            column = torch.cat([own[:, :, block], later], 2)
            hidden = q.shape[2] * BLOCK - column.shape[2]
            columns.append(F.pad(column, (0, 0, hidden, 0)))
        columns.append(v @ before.mT - q_later @ before.mT)  # of the keys from a cache
        return torch.cat(columns[::-1], 3)[:, :, :T, :S]

    def _unit_vectors(self, raw_BSE: Tensor) -> Tensor:
        """Convolve over three tokens and scale to norm 1: (B, S - 2, K, D), all but the first two;
        of padding 0.
        """
        T = raw_BSE.shape[1] - 2
        shifted = (
            raw_BSE[:, 2 - back : 2 - back + T] * tap
            for back, tap in enumerate(self.taps.to(raw_BSE.dtype))
        )
        return F.normalize(
            sum(shifted, raw_BSE.new_zeros(())).unflatten(-1, (self.arch.key_heads, -1)), dim=-1
        )

    def counted_operations(self, length: int) -> tuple[int, int]:
        """MACs of W, β, the products and solves within blocks, and four products of two blocks."""
        H, d, c = self.arch.heads, self.arch.head_dim, min(length, BLOCK)
        maps = self.down.numel() + self.up.numel() + self.taps.numel() + self.b.numel()
        blocks = -(-length // c)
        within = blocks * (3 * c**2 * d + 2 * c**3) * (1 if blocks == 1 else 2)
        return length * maps + H * (within + 2 * blocks * (blocks - 1) * c**2 * d), 0


def _blocks(k: Tensor, w: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """Of blocks of :data:`ROWS` tokens, the keys as they leave theirs, K' = K - (U tril_-1(W Kᵀ))ᵀ
    W, (B, H, N, c, D), and what turns all that passes one, M = I - Wᵀ U W, (B, H, N, D, D).
    """
    with full_precision(k):
        k, w, beta = (x.to(w.dtype).unflatten(2, (-1, ROWS)) for x in (k, w, beta))
        U = _inverse(w, beta[..., 0])
        keys = k - (U @ (w @ k.mT).tril(-1)).mT @ w
        return keys, _identity(w) - w.mT @ (U @ w)


def _of_rows(
    first: int, last: int, q: Tensor, k: Tensor, w: Tensor, beta: Tensor, keys: Tensor, M: Tensor
) -> Tensor:
    """The bias of a block of queries and all keys up to its own, (B, H, last - first, S - T +
    last), fp32.

    As in :meth:`PaTH._blockwise` the logit of a query and a key of an earlier block is that of Q'
    and K'. Here Q' passes the N blocks before it by products of their matrices M, which are d × d
    and made for all of them in about log N steps.
    """
    with full_precision(q):
        own, before = slice(first, last), k.shape[2] - q.shape[2] + first
        q_c, w_c, beta_c = q[:, :, own].to(w.dtype), w[:, :, own], beta[:, :, own, 0]
        k = k[:, :, : before + last - first].to(w.dtype)
        U = _inverse(w_c, beta_c)
        along = (q_c @ w_c.mT).tril() @ U
        inside = -(along @ (w_c @ k[:, :, before:].mT).tril(-1))
        v, columns = q_c - along @ w_c, []
        if N := first // ROWS:
            M = M[:, :, :N]
            after = _after(M)
            passed = v[:, :, None] @ after  # as they find each block
            columns.append((passed @ keys[:, :, :N].mT).transpose(2, 3).flatten(3))
            v = v @ (after[:, :, 0] @ M[:, :, 0])
        columns.insert(0, v @ k[:, :, : before - first].mT)  # of the keys from a cache
        outside = torch.cat(columns, 3) - q_c @ k[:, :, :before].mT
        return torch.cat([outside, inside], 3) / math.sqrt(q.shape[-1])


def _after(M: Tensor) -> Tensor:
    """For each of N matrices the product of all after it, the last one leftmost: (…, N, D, D)."""
    if M.shape[-3] == 1:
        return _identity(M).expand_as(M)
    if odd := M.shape[-3] % 2:
        M = torch.cat([_identity(M).expand_as(M[..., :1, :, :]), M], -3)
    early, late = M.unflatten(-3, (-1, 2)).unbind(-3)
    after = _after(late @ early)  # pairs
    return torch.stack([after @ late, after], -3).flatten(-4, -3)[..., odd:, :, :]


def _identity(x: Tensor) -> Tensor:
    """(D, D) like the last dimension of x."""
    return torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)


def _inverse(w: Tensor, beta: Tensor) -> Tensor:
    """U = D (I + tril_-1(W Wᵀ) D)⁻¹ of blocks of c tokens: (…, c, c) of (…, c, D) and (…, c)."""
    mixed = (w @ w.mT) * beta[..., None, :]  # the solve reads what is below the diagonal
    return torch.linalg.solve_triangular(
        mixed, torch.diag_embed(beta), upper=False, left=False, unitriangular=True
    )
