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
    """x in fp32, or in fp64 if it is: for what is computed of positions in a 16-bit model."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
