"""RePo: RoPE at real positions that tokens give themselves."""

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tape_exp.models.places import Places
from tape_exp.models.positions.base import Rotated
from tape_exp.models.positions.rope import RoPE
from tape_exp.models.precision import precise
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.schema import Arch, Count


class RePo(RoPE):
    """RePo (Li et al., "RePo: Language Models with Context Re-Positioning", 2025): RoPE whose index
    is a real position z that each token takes, one per key head; the causal mask stays::

        z = W_z (SiLU(W_g x) ⊙ W_c x)        W_g, W_c: r × C, W_z: K × r

    r = C/8 and all maps begin as N(0, 0.02), as in the public code (SakanaAI/repo). That gives z a
    standard deviation of 0.5 at C = 4096 and of 0.0008 at C = 64: so narrow a model begins as NoPE,
    and may still be NoPE after a short training. Deliberately different: every layer has this,
    where the public code can keep RoPE in the first ones and mix z with the index by a scheduled
    weight.

    Args:
        reduction: C/r.
        settings: of RoPE.
        start: ``content``: z, near 0 at first; or ``rope``: z is an offset from the index and W_z =
            0 at first, so that step 0 is RoPE.
    """

    def __init__(
        self,
        arch: Arch,
        reduction: Count = 8,
        start: Literal["content", "rope"] = "content",
        **settings: Any,
    ) -> None:
        super().__init__(arch, **settings)
        self.scaling.refuse_lengths()
        if reduction > arch.width:
            raise ConfigError(
                f"model.reduction={reduction} must be from 1 to task.arch.width={arch.width}."
            )
        self.from_index = start == "rope"
        inner = arch.width // reduction
        self.wg = nn.Parameter(torch.empty(inner, arch.width))
        self.wc = nn.Parameter(torch.empty(inner, arch.width))
        self.wz = nn.Parameter(torch.empty(arch.key_heads, inner))

    def init_weights(self, generator: torch.Generator) -> None:
        super().init_weights(generator)
        if self.from_index:
            nn.init.zeros_(self.wz)

    def start(self, places: Places) -> Tensor:
        return places.positions[..., None]

    def rotate(
        self, q_BTHD: Tensor, k_BTHD: Tensor, x_BTC: Tensor, state: Any, places: Places
    ) -> Rotated:
        wg, wc, wz = map(precise, (self.wg, self.wc, self.wz))
        z_BTK = (F.silu(x_BTC @ wg.T) * (x_BTC @ wc.T)) @ wz.T
        z_BTK = z_BTK + state if self.from_index else z_BTK
        return super().rotate(q_BTHD, k_BTHD, x_BTC, self.rotations(z_BTK), places)

    def matrices(self, state: Tensor) -> None:
        return None
