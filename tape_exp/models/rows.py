"""A bias of pairs of tokens that is made a block of rows at a time, and not kept for the backward
pass.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

Out = TypeVar("Out")


@dataclass(frozen=True)
class RowBias:
    """The bias of T queries, the last of S tokens, by blocks of queries.

    Args:
        size: queries of a block; the last block may be shorter.
        tensors: all that it is computed from. They are kept for the backward pass.
        compute: of ``first``, ``last`` and the tensors, what is added to the scaled logits of the
            queries ``first`` … ``last`` - 1 and the keys up to that of the last of them: (B, H,
            last - first, S - T + last).
    """

    size: int
    tensors: tuple[Tensor, ...]
    compute: Callable[..., Tensor]


def recomputed(function: Callable[..., Out], *given: Tensor) -> Out:
    """What the function makes of the tensors, which alone are kept for the backward pass: there it
    is called again.
    """
    if not torch.is_grad_enabled():
        return function(*given)
    return checkpoint(function, *given, use_reentrant=False, preserve_rng_state=False)
