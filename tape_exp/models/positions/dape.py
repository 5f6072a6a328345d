"""DAPE: a static bias that a small network adapts to the logits."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tape_exp.models.positions.base import for_heads
from tape_exp.models.positions.kerple import Kerple
from tape_exp.models.precision import full_precision, precise
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.schema import Arch


class DAPE(Kerple):
    """DAPE on Kerple (Zheng et al., "DAPE: Data-Adaptive Positional Encoding for Length
    Extrapolation", 2024).

    For every pair (i, j), with A the scaled logits of all H heads and B Kerple's logarithmic bias::

        logits = A + B + f([A, B])        f: 2H → hidden, LeakyReLU, hidden → H, an MLP a layer

    so that heads see each other's logits. B + f is a contextual bias, in fp32. Of the static biases
    that the paper adapts (ALiBi, Kerple, FIRE) this is the one that its tables report most.

    Args:
        hidden: inner size of f.
    """

    def __init__(self, arch: Arch, hidden: int = 32) -> None:
        super().__init__(arch, "log")
        if hidden < 1:
            raise ConfigError(f"model.hidden={hidden} must be at least 1; 32 is the paper's.")
        self.inner = nn.Linear(2 * arch.heads, hidden)
        self.outer = nn.Linear(hidden, arch.heads)

    def init_weights(self, generator: torch.Generator) -> None:
        """Kerple's, and both linear maps uniform in ± 1/√inputs."""
        super().init_weights(generator)
        for linear in (self.inner, self.outer):
            bound = linear.in_features**-0.5
            nn.init.uniform_(linear.weight, -bound, bound, generator=generator)
            nn.init.uniform_(linear.bias, -bound, bound, generator=generator)

    def bias_by_distance(self, length: int, device: torch.device) -> None:  # type: ignore[override]
        """None: Kerple's bias is only a part of this one."""

    def contextual_bias(
        self, q_BTHD: Tensor, k_BSKD: Tensor, features: dict[str, Tensor], bias: Tensor | None
    ) -> Tensor | None:
        """B + f([A, B]): (B, H, T, S)."""
        assert bias is not None
        H, D = q_BTHD.shape[2:]
        with full_precision(q_BTHD):
            q_BTHD, k_BSHD = q_BTHD.to(bias.dtype), for_heads(k_BSKD, H).to(bias.dtype)
            logits_BTSH = torch.einsum("bthd,bshd->btsh", q_BTHD, k_BSHD) / math.sqrt(D)
            bias_BTSH = bias.permute(0, 2, 3, 1).expand_as(logits_BTSH)
            inner, outer = (
                [precise(parameter) for parameter in (linear.weight, linear.bias)]
                for linear in (self.inner, self.outer)
            )
            both_BTSE = torch.cat([logits_BTSH, bias_BTSH], -1)
            adapted_BTSH = F.linear(F.leaky_relu(F.linear(both_BTSE, *inner)), *outer)
            return bias + adapted_BTSH.permute(0, 3, 1, 2)

    def counted_operations(self, length: int) -> tuple[int, int]:
        """The logits once more and f on every pair as MACs; its LeakyReLU as FLOPs."""
        H, hidden = self.arch.heads, self.inner.out_features
        return length**2 * H * (self.arch.head_dim + 3 * hidden), length**2 * hidden
