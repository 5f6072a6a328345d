"""Where autocast must not reach: positions, and what attention adds up."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def full_precision(x: Tensor) -> AbstractContextManager:
    """No autocast on x's device: what is computed inside stays in its own dtype."""
    return (
        nullcontext() if x.device.type == "meta" else torch.autocast(x.device.type, enabled=False)
    )


def precise(x: Tensor) -> Tensor:
    """x in fp32, or in fp64 if it is: for what a 16-bit model must not round to its dtype."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
