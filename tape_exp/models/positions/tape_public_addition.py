"""TAPE as the paper's public code for addition computes it: positions that nothing reads."""

import torch

from tape_exp.models.positions.nope import NoPE
from tape_exp.models.positions.tape import TAPE
from tape_exp.settings.schema import Arch, Count


class PublicAdditionTAPE(NoPE):
    """What the model named TAPE is in the public code for addition of Zhu et al. (2025).

    That code updates E from layer to layer, but its rotation of queries and keys discards the
    result, so that no position ever reaches a logit. What is left is NoPE, and the parameters of
    TAPE, which get no gradient. It exists so that a result of that code can be told from one of the
    paper's equations, which :class:`~tape_exp.models.positions.tape.TAPE` computes. E is not
    computed here, since nothing would read it.

    Args:
        intermediate: I as a multiple of H, as in TAPE.
    """

    def __init__(self, arch: Arch, intermediate: Count = 4) -> None:
        super().__init__(arch)
        self.unread = TAPE(arch, intermediate=intermediate).requires_grad_(False)

    def init_weights(self, generator: torch.Generator) -> None:
        """As TAPE's."""
        self.unread.init_weights(generator)
