"""Wall: every channel of a head fades by a forget gate of its own."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tape_exp.models.places import Places
from tape_exp.models.positions.base import PositionEncoding
from tape_exp.models.positions.fox import log_gates
from tape_exp.models.positions.path import in_blocks
from tape_exp.models.scores import Dense
from tape_exp.settings.schema import Arch

BLOCK = 64  # tokens, a power of two


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
        """The logit less that of q and k as they are, (B, H, T, T)."""
        T, H = q_BTHD.shape[1:3]
        log_f_BTHD = log_gates(x_BTC, self.w, self.b).unflatten(-1, (H, -1))
        size = min(BLOCK, 1 << (T - 1).bit_length())
        q_BHTD = q_BTHD.transpose(1, 2)
        k_BHSD = k_BSHD.transpose(1, 2)
        # Of each of N blocks of c tokens: (B, H, N, c, D).
        q = in_blocks(q_BHTD, size)
        k = in_blocks(k_BHSD, size)
        log_f = in_blocks(log_f_BTHD.transpose(1, 2), size)
        within = _within(q, k, log_f)
        length = q.shape[2] * size
        earlier_k = k[:, :, 0, :0]  # of earlier blocks, as faded as they are before this one
        rows = []
        blocks = (q.unbind(2), k.unbind(2), log_f.unbind(2), within.unbind(2))
        for q_n, k_n, log_f_n, within_n in zip(*blocks, strict=True):
            fading = log_f_n.cumsum(2)
            row = torch.cat([(q_n * fading.exp()) @ earlier_k.mT, within_n], -1)
            rows.append(F.pad(row, (0, length - row.shape[-1])))
            own_k = k_n * _after(log_f_n).exp()
            earlier_k = torch.cat([earlier_k * fading[:, :, -1:].exp(), own_k], 2)
        logits = torch.cat(rows, 2)[:, :, :T, :T]
        return Dense((logits - q_BHTD @ k_BHSD.mT) / math.sqrt(q.shape[-1]))


def _after(log_f: Tensor) -> Tensor:
    """The sum over the tokens after each one, (…, T, D)."""
    return F.pad(log_f[..., 1:, :], (0, 0, 0, 1)).flip(-2).cumsum(-2).flip(-2)


def _within(q: Tensor, k: Tensor, log_f: Tensor) -> Tensor:
    """The logits times √d of each block, 0 above the diagonal: (B, H, N, c, c) of (B, H, N, c, D).

    Blocks of 1, 2, 4 … tokens are joined in pairs, until there is one::

        early | 0           early, late: the logits of each half, which are there already
        ------+-----        corner: queries of the late half, faded from its beginning on, and keys
        corner| late                of the early half, faded up to its end
    """
    logits = (q * k).sum(-1)[..., None, None]
    size = 1
    while size < q.shape[3]:
        late_q = q.unflatten(3, (-1, 2, size))[..., 1, :, :]
        early_k = k.unflatten(3, (-1, 2, size))[..., 0, :, :]
        log_f_2 = log_f.unflatten(3, (-1, 2, size))
        faded_q = late_q * log_f_2[..., 1, :, :].cumsum(-2).exp()
        faded_k = early_k * _after(log_f_2[..., 0, :, :]).exp()
        early, late = logits.unflatten(3, (-1, 2)).unbind(4)
        corner = torch.cat([faded_q @ faded_k.mT, late], -1)
        logits = torch.cat([F.pad(early, (0, size)), corner], -2)
        size *= 2
    return logits[:, :, :, 0]
