"""The backends of attention by the names that ``trainer.attention`` gives them, a file each."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from tape_exp.models.attention import fla, flash, flex, reference, sdpa, triton
from tape_exp.models.attention.inputs import Inputs


@dataclass(frozen=True)
class Backend:
    """How a backend computes, and why it refuses (None: it can)."""

    compute: Callable[[Inputs], tuple[Tensor, Tensor | None]]
    refuses: Callable[[Inputs], str | None]


def _never(inputs: Inputs) -> str | None:
    return None


BACKENDS = {
    "reference": Backend(reference.compute, _never),
    "sdpa": Backend(sdpa.compute, _never),
    "flex": Backend(flex.compute, flex.refuses),
    "flash": Backend(flash.compute, flash.refuses),
    "triton": Backend(triton.compute, triton.refuses),
    "fla": Backend(fla.compute, fla.refuses),
}
