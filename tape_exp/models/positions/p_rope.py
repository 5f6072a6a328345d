"""p-RoPE: RoPE without its lowest frequencies."""

import torch
from torch import Tensor

from tape_exp.models.positions.rope import RoPE, Scaling
from tape_exp.settings.errors import between
from tape_exp.settings.schema import Arch


class PRoPE(RoPE):
    """p-RoPE (Barbero et al., "Round and Round We Go! What makes Rotary Positional Encodings
    useful?", 2024): the ⌊p d/2⌋ highest frequencies of RoPE turn their pairs as ever, the others
    become 0, so that their pairs carry content alone at any distance.

    p = 1 is RoPE, p = 0 is NoPE. It is not partial RoPE, which lets the frequencies fall to the
    lowest within fewer pairs.

    Args:
        theta, scaling: as in RoPE, of all frequencies before the lowest are dropped.
        p: the fraction of the frequencies that stay.
    """

    def __init__(
        self,
        arch: Arch,
        theta: float = 10_000.0,
        scaling: Scaling | None = None,
        p: float = 0.75,
    ) -> None:
        between("model", 0, 1, p=p)
        super().__init__(arch, theta, scaling)
        self.p = p
        kept = int(p * (arch.head_dim // 2))
        if kept < arch.head_dim // 2:
            self.unlike_rope = f"model.p={p} drops frequencies; model.p=1 drops none"

    def frequencies(self, like: Tensor) -> tuple[Tensor, float]:
        """RoPE's θ_m, 0 from m = ⌊p d/2⌋ on; its factor on q and k."""
        frequencies, magnitude = super().frequencies(like)
        pairs = frequencies.shape[-1]
        index = torch.arange(pairs, device=like.device)
        return frequencies * (index < int(self.p * pairs)), magnitude
