"""FoX: tokens fade by a forget gate, one for every head; alone, and beside PaTH."""

from typing import Any

import torch
from torch import Tensor, nn

from tape_exp.models.biases import ByKey
from tape_exp.models.places import Places
from tape_exp.models.positions.base import Biases, PositionEncoding
from tape_exp.models.positions.parts import log_gates
from tape_exp.models.positions.path import PaTH
from tape_exp.settings.schema import Arch, Count


class FoX(PositionEncoding):
    """Forgetting attention (Lin et al., "Forgetting Transformer: Softmax Attention with a Forget
    Gate", 2025). Each token t lets what is before it fade by a gate per head::

        f_t = σ(w·x_t + b)
        logit = q_i·k_j / √d + c_i - c_j        c_t = Σ_{s<=t} log f_s

    Padding forgets nothing. With the same gate everywhere it is ALiBi with the slope -log f. c_i
    cancels in the softmax: this is a bias of keys, -c_j, summed in fp64, since at c = -10⁴ fp32
    would round the logits of neighbours by 10⁻³. As in the public code
    (zhixuan-lin/forgetting-transformer) b begins at 0, so that step 0 nearly halves what is before
    each token. Left out are gates that do not read x, and the norms, gates and shifts of the
    paper's "Pro" block.

    Cable (Veisi et al., "Context-aware Biases for Length Extrapolation", 2025) is this bias too,
    and begins alike: its -softplus(v·x + a) is log σ(w·x + b) with w = -v and b = -a.
    """

    cacheable = False  # c is a sum over all tokens so far

    def __init__(self, arch: Arch) -> None:
        super().__init__(arch)
        self.w_forget = nn.Parameter(torch.empty(arch.heads, arch.width))
        self.b_forget = nn.Parameter(torch.zeros(arch.heads))

    def init_weights(self, generator: torch.Generator) -> None:
        """Draw w from N(0, 0.02); of two draws the second counts, since recorded runs began so. b
        is 0.
        """
        for _ in range(2):
            nn.init.normal_(self.w_forget, std=0.02, generator=generator)

    def bias(
        self, q_BTHD: Tensor, k_BSHD: Tensor, x_BTC: Tensor, state: Any, places: Places
    ) -> ByKey:
        return ByKey(-log_gates(x_BTC, self.w_forget, self.b_forget).double().cumsum(1))


class PaTHFoX(PaTH):
    """PaTH-FoX (Yang et al., 2025): PaTH's products of reflections and FoX's forget gate, one per
    query head. As in the paper, where the gates multiply the exponential, c_i - c_j is added after
    the scale 1/√d; fla's kernel adds it before.
    """

    def __init__(self, arch: Arch, rank: Count = 32) -> None:
        super().__init__(arch, rank)
        self.w_forget = nn.Parameter(torch.empty(arch.heads, arch.width))
        self.b_forget = nn.Parameter(torch.zeros(arch.heads))

    def init_weights(self, generator: torch.Generator) -> None:
        super().init_weights(generator)
        nn.init.normal_(self.w_forget, std=0.02, generator=generator)

    def bias(
        self, q_BTHD: Tensor, k_BSHD: Tensor, x_BTC: Tensor, state: Any, places: Places
    ) -> Biases:
        c_BTH = log_gates(x_BTC, self.w_forget, self.b_forget).double().cumsum(1)
        path = super().bias(q_BTHD, k_BSHD, x_BTC, state, places)
        return [path, ByKey(-c_BTH)]  # type: ignore[list-item]
