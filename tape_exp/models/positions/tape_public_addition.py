"""TAPE as the paper's public code for addition computes it: positions that nothing reads."""

import torch

from tape_exp.models.positions.nope import NoPE
from tape_exp.models.positions.tape import TAPE
from tape_exp.settings.schema import Arch, Count


class PublicAdditionTAPE(NoPE):
    """What the public code for addition of Zhu et al. (2025) computes as TAPE: it updates E from
    layer to layer, but its rotation of queries and keys discards the result. What is left is NoPE,
    and the parameters of :class:`~tape_exp.models.positions.tape.TAPE`, which get no gradient.
    """

    def __init__(self, arch: Arch, intermediate: Count = 4) -> None:
        super().__init__(arch)
        self.unread = TAPE(arch, intermediate=intermediate).requires_grad_(False)

    def init_weights(self, generator: torch.Generator) -> None:
        self.unread.init_weights(generator)
