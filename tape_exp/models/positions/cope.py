"""CoPE: positions that count the tokens which a query chooses to count."""

import math

import torch
from torch import Tensor, nn

from tape_exp.models.attention import causal_mask
from tape_exp.models.positions.base import PositionEncoding, for_heads
from tape_exp.models.precision import full_precision, precise
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.schema import Arch


class CoPE(PositionEncoding):
    """CoPE (Golovneva et al., "Contextual Position Encoding: Learning to Count What's Important",
    2024). Clipped RoPE (Li et al., "CoPE: Clipped RoPE as A Scalable Free Lunch for Long Context
    LLMs", 2026), which fades out the lowest frequencies, has the same short name and is another
    encoding.

    Query i counts from itself back to key j, each token by a gate, and adds the vector of the count
    to the key::

        g_it = sigmoid(q_i·k_t / √d)
        p_ij = min(Σ_{t=j}^{i} g_it, P - 1)
        logit = q_i·k_j / √d + (1 - f) q_i·e[⌊p_ij⌋] + f q_i·e[⌈p_ij⌉]        f = p_ij - ⌊p_ij⌋

    e: (P, d), vectors of a layer that its heads share, beginning at zero: step 0 is NoPE. As in the
    paper's listing, the gates see the scaled logits and e the unscaled query. The added term is a
    contextual bias, in fp32.

    Args:
        vectors: P, the highest count plus one.
    """

    def __init__(self, arch: Arch, vectors: int = 64) -> None:
        super().__init__(arch)
        if vectors < 2:
            raise ConfigError(
                f"model.vectors={vectors} must be at least 2, so that there is a count to tell "
                "from another."
            )
        self.e = nn.Parameter(torch.zeros(vectors, arch.head_dim))

    def init_weights(self, generator: torch.Generator) -> None:
        """e stays zero."""

    def contextual_bias(
        self, q_BTHD: Tensor, k_BSKD: Tensor, features: dict[str, Tensor], bias: Tensor | None
    ) -> Tensor | None:
        """q_i·e[p_ij], interpolated between whole counts: (B, H, T, S)."""
        (T, H, D), S = q_BTHD.shape[1:], k_BSKD.shape[1]
        with full_precision(q_BTHD):
            e_PD = precise(self.e)
            q_BHTD, k_BHSD = (
                x.to(e_PD.dtype).transpose(1, 2) for x in (q_BTHD, for_heads(k_BSKD, H))
            )
            gates_BHTS = torch.sigmoid(q_BHTD @ k_BHSD.transpose(-1, -2) / math.sqrt(D))
            gates_BHTS = gates_BHTS * causal_mask(T, S, q_BTHD.device)
            counts_BHTS = gates_BHTS.flip(-1).cumsum(-1).flip(-1).clamp(max=len(e_PD) - 1)
            below_BHTS = counts_BHTS.detach().floor()
            f_BHTS = counts_BHTS - below_BHTS
            by_count_BHTP = q_BHTD @ e_PD.T
            lower_BHTS = by_count_BHTP.gather(-1, below_BHTS.long())
            above_BHTS = (below_BHTS.long() + 1).clamp(max=len(e_PD) - 1)
            upper_BHTS = by_count_BHTP.gather(-1, above_BHTS)
            return torch.lerp(lower_BHTS, upper_BHTS, f_BHTS)

    def counted_operations(self, length: int) -> tuple[int, int]:
        """MACs of the gates' logits and q·e; FLOPs of sigmoid, count and interpolation."""
        H, d = self.arch.heads, self.arch.head_dim
        return H * length * d * (length + len(self.e)), 5 * H * length**2
