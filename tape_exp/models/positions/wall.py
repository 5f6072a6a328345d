"""Wall: every channel of a head fades by a forget gate of its own.

Shape suffixes: B batch, T tokens, S keys, H heads, D head dimension, C width; N blocks of I (or J)
tokens.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tape_exp.models.biases import Dense
from tape_exp.models.places import Places
from tape_exp.models.positions.base import PositionEncoding
from tape_exp.models.positions.parts import BLOCK, in_blocks, log_gates
from tape_exp.settings.schema import Arch


class Wall(PositionEncoding):
    """Wall attention (Pai et al., "Wall Attention: Length Generalization With Diagonal Gates",
    2026, a blog post; this follows its authors' layer in fla-org/flash-linear-attention)::

        logit = Σ_n q_in k_jn exp(P_in - P_jn) / √d        P_tn = Σ_{s<=t} log σ(w_n·x_s + b_n)

    for each channel n of each query head; padding forgets nothing. b begins at 8, ``start``, so
    that step 0 is nearly NoPE. Where all channels of a head have one gate, its product multiplies
    the logit: that is not FoX, which adds its logarithm. Left out are the layer's scalar gate, sink
    and window.

    exp(P_i) and exp(-P_j) apart would leave the range of fp32, but for any token r from j to i both
    exp(P_i - P_r) and exp(P_r - P_j) are at most 1. Such an r divides the pairs of tokens: the one
    before a block of queries, and within the block its middle, then that of each half, of each
    quarter … Each exponent is a sum from r on, which loses no bits. What this adds to q·k / √d is a
    bias.
    """

    cacheable = False  # keys fade with every later token

    def __init__(self, arch: Arch, start: float = 8.0) -> None:
        super().__init__(arch)
        self.w = nn.Parameter(torch.empty(arch.heads * arch.head_dim, arch.width))
        self.b = nn.Parameter(torch.full((arch.heads * arch.head_dim,), start))

    def bias(
        self, q_BTHD: Tensor, k_BSHD: Tensor, x_BTC: Tensor, state: Any, places: Places
    ) -> Dense:
        """Return the logit less that of q and k as they are, (B, H, T, T)."""
        T, H = q_BTHD.shape[1:3]
        log_f_BTHD = log_gates(x_BTC, self.w, self.b).unflatten(-1, (H, -1))
        power_of_two = 1 << (T - 1).bit_length()
        size = min(BLOCK, power_of_two)
        q_BHTD = q_BTHD.transpose(1, 2)
        k_BHSD = k_BSHD.transpose(1, 2)
        logits_BHTS = _faded_logits(
            in_blocks(q_BHTD, size),
            in_blocks(k_BHSD, size),
            in_blocks(log_f_BTHD.transpose(1, 2), size),
        )
        added_BHTS = logits_BHTS[:, :, :T, :T] - q_BHTD @ k_BHSD.mT
        return Dense(added_BHTS / math.sqrt(q_BHTD.shape[-1]))


def _faded_logits(q_BHNID: Tensor, k_BHNID: Tensor, log_f_BHNID: Tensor) -> Tensor:
    """Return the logits times √d, (B, H, N I, N I), block after block of queries::

        keys of block     0        1        2
        queries of 0    within     0        0
        queries of 1    earlier  within     0
        queries of 2    earlier  earlier  within

    ``earlier`` are queries faded from the beginning of their block on, and keys faded up to there.
    """
    within_BHNIJ = _within(q_BHNID, k_BHNID, log_f_BHNID)
    length = q_BHNID.shape[2] * q_BHNID.shape[3]
    rows = []
    earlier_k_BHSD = k_BHNID[:, :, 0, :0]  # as faded as they are before this block
    by_block = (x.unbind(2) for x in (q_BHNID, k_BHNID, log_f_BHNID, within_BHNIJ))
    for q_BHID, k_BHID, log_f_BHID, within_BHIJ in zip(*by_block, strict=True):
        fading_BHID = log_f_BHID.cumsum(2)
        faded_q_BHID = q_BHID * fading_BHID.exp()
        row_BHIS = torch.cat([faded_q_BHID @ earlier_k_BHSD.mT, within_BHIJ], -1)
        rows.append(F.pad(row_BHIS, (0, length - row_BHIS.shape[-1])))
        own_k_BHID = k_BHID * _after(log_f_BHID).exp()
        faded_k_BHSD = earlier_k_BHSD * fading_BHID[:, :, -1:].exp()
        earlier_k_BHSD = torch.cat([faded_k_BHSD, own_k_BHID], 2)
    return torch.cat(rows, 2)


def _after(log_f: Tensor) -> Tensor:
    """Return the sum over the tokens after each one, (…, I, D)."""
    return F.pad(log_f[..., 1:, :], (0, 0, 0, 1)).flip(-2).cumsum(-2).flip(-2)


def _within(q_BHNID: Tensor, k_BHNID: Tensor, log_f_BHNID: Tensor) -> Tensor:
    """Return the logits times √d of each block, 0 above the diagonal: (B, H, N, I, I).

    Blocks of 1, 2, 4 … tokens are joined in pairs, until there is one::

        early | 0           early, late: the logits of each half, which are there already
        ------+-----        corner: queries of the late half, faded from its beginning on, and keys
        corner| late                of the early half, faded up to its end

    P pairs of halves of I tokens, which become P blocks of 2 I.
    """
    logits_BHNPII = (q_BHNID * k_BHNID).sum(-1)[..., None, None]  # of blocks of one token
    size = 1
    while size < q_BHNID.shape[3]:
        halves = (-1, 2, size)
        late_q_BHNPID = q_BHNID.unflatten(3, halves)[..., 1, :, :]
        early_k_BHNPID = k_BHNID.unflatten(3, halves)[..., 0, :, :]
        early_log_f, late_log_f = log_f_BHNID.unflatten(3, halves).unbind(-3)
        faded_q_BHNPID = late_q_BHNPID * late_log_f.cumsum(-2).exp()
        faded_k_BHNPID = early_k_BHNPID * _after(early_log_f).exp()
        corner_BHNPII = faded_q_BHNPID @ faded_k_BHNPID.mT
        early_BHNPII, late_BHNPII = logits_BHNPII.unflatten(3, (-1, 2)).unbind(4)
        upper = F.pad(early_BHNPII, (0, size))
        lower = torch.cat([corner_BHNPII, late_BHNPII], -1)
        logits_BHNPII = torch.cat([upper, lower], -2)
        size *= 2
    return logits_BHNPII[:, :, :, 0]
