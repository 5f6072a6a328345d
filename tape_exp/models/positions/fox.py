"""FoX: tokens fade by a forget gate, one for every head."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tape_exp.models.positions.base import Features, Past, PositionEncoding
from tape_exp.models.precision import full_precision, precise
from tape_exp.settings.schema import Arch


class FoX(PositionEncoding):
    """Forgetting attention (Lin et al., "Forgetting Transformer: Softmax Attention with a Forget
    Gate", 2025). Each token t lets what is before it fade by a gate per head::

        f_t = σ(w·x_t + b)
        logit = q_i·k_j / √d + c_i - c_j        c_t = Σ_{s<=t} log f_s

    x is what queries and keys are made of. c_i cancels in the softmax, so that this is a bias of
    keys, -c_j. With the same gate everywhere it is ALiBi with the slope -log f. Padding forgets
    nothing.

    As in the public code (zhixuan-lin/forgetting-transformer) w begins at N(0, 0.02) and b at 0, so
    that step 0 nearly halves what is before each token; its initial lengths of memory are only
    for gates that do not read x, which are left out. So is what the paper's "Pro" block adds:
    gates, norms and shifts of queries, keys and outputs.

    c is summed in fp64: at c = -10⁴ fp32 would round the logits of neighbours by 10⁻³.

    A class that inherits first from this one and then from another encoding is that encoding with a
    forget gate.

    Args:
        settings: of the other encoding.
    """

    def __init__(self, arch: Arch, **settings: Any) -> None:
        super().__init__(arch, **settings)
        self.w_forget = nn.Parameter(torch.empty(arch.heads, arch.width))
        self.b_forget = nn.Parameter(torch.zeros(arch.heads))

    def init_weights(self, generator: torch.Generator) -> None:
        """w N(0, 0.02), b 0."""
        super().init_weights(generator)
        nn.init.normal_(self.w_forget, std=0.02, generator=generator)

    def features(self, x_BTC: Tensor, state: Tensor | None, past: Past) -> Features:
        """``c``: (B, T, H), fp64. Later tokens need the last token's."""
        features = super().features(x_BTC, state, past)
        c_BTH = log_gates(x_BTC, self.w_forget, self.b_forget).double().cumsum(1)
        if "c" in past:
            c_BTH = c_BTH + past["c"]
        past["c"] = c_BTH[:, -1:].clone()
        return {**features, "c": c_BTH}

    def key_bias(self, features: Features) -> Tensor:
        """-c, (B, T, H), fp64."""
        return -features["c"]

    def counted_operations(self, length: int) -> tuple[int, int]:
        """MACs of w·x; FLOPs of gate, sum and difference."""
        macs, flops = super().counted_operations(length)
        H = self.arch.heads
        return macs + length * self.w_forget.numel(), flops + H * length * (3 + length)


def log_gates(x_BTC: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """log σ(w·x + b), at least fp32: (B, T, gates); 0 where x is, as it is for padding."""
    with full_precision(x_BTC):
        w, b = precise(w), precise(b)
        return F.logsigmoid(x_BTC.to(w.dtype) @ w.T + b) * x_BTC.any(-1, keepdim=True)
