"""CoPE: positions that count the tokens which a query chooses to count."""

import math
from typing import Annotated, Any

import torch
from annotated_types import Ge
from torch import Tensor, nn

from tape_exp.models.biases import Dense
from tape_exp.models.places import Places
from tape_exp.models.positions.base import PositionEncoding
from tape_exp.models.precision import precise
from tape_exp.settings.schema import Arch


class CoPE(PositionEncoding):
    """CoPE (Golovneva et al., "Contextual Position Encoding: Learning to Count What's Important",
    2024); not Clipped RoPE (Li et al., 2026), which has the same short name.

    Query i counts tokens, each by a gate, from itself back to key j and adds the vector of the
    count::

        g_it = sigmoid(q_i·k_t / √d)
        p_ij = min(Σ_{t=j}^{i} g_it, P - 1)
        logit = q_i·k_j / √d + (1 - f) q_i·e[⌊p_ij⌋] + f q_i·e[⌈p_ij⌉]        f = p_ij - ⌊p_ij⌋

    e: (P, d), shared by the heads of a layer, begins at zero: step 0 is NoPE. As in the paper's
    listing, the gates see the scaled logits and e the unscaled query.

    Args:
        vectors: P, the highest count plus one.
    """

    def __init__(self, arch: Arch, vectors: Annotated[int, Ge(2)] = 64) -> None:
        super().__init__(arch)
        self.e = nn.Parameter(torch.zeros(vectors, arch.head_dim))

    def bias(
        self, q_BTHD: Tensor, k_BSHD: Tensor, x_BTC: Tensor, state: Any, places: Places
    ) -> Dense:
        """Return q_i·e[p_ij], interpolated between whole counts: (B, H, T, S)."""
        q_BHTD = q_BTHD.transpose(1, 2)
        k_BHSD = k_BSHD.transpose(1, 2)
        e_PD = precise(self.e)
        logits_BHTS = q_BHTD @ k_BHSD.mT / math.sqrt(q_BHTD.shape[-1])
        gates_BHTS = logits_BHTS.sigmoid().tril(k_BHSD.shape[2] - q_BHTD.shape[2])
        counts_BHTS = gates_BHTS.flip(-1).cumsum(-1).flip(-1).clamp(max=len(e_PD) - 1)
        below_BHTS = counts_BHTS.detach().long()
        above_BHTS = (below_BHTS + 1).clamp(max=len(e_PD) - 1)
        by_count_BHTP = q_BHTD @ e_PD.T
        lower_BHTS = by_count_BHTP.gather(-1, below_BHTS)
        upper_BHTS = by_count_BHTP.gather(-1, above_BHTS)
        return Dense(torch.lerp(lower_BHTS, upper_BHTS, counts_BHTS - below_BHTS))
