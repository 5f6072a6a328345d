"""Which numbers stay in 32 bits where a model computes in 16."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def full_precision(device: torch.device) -> AbstractContextManager:
    """Turn autocast off on a device: what is computed inside stays in its own dtype."""
    kind = device.type
    if kind == "meta" or not torch.is_autocast_enabled(kind):
        return nullcontext()
    return torch.autocast(kind, enabled=False)


def precise(x: Tensor) -> Tensor:
    """Return x in fp32, or fp64 if it is: for what a 16-bit model must not round to its dtype."""
    if x.dtype == torch.float32:  # as nearly always: asking is cheaper than a conversion to itself
        return x
    return x.to(torch.promote_types(x.dtype, torch.float32))


def cast_for_matmul(x: Tensor) -> Tensor:
    """Return x in the dtype in which autocast multiplies, so that the matrices that read it share
    one copy; x itself without autocast.
    """
    device = x.device.type
    if device == "meta" or x.dtype == torch.float64 or not torch.is_autocast_enabled(device):
        return x
    return x.to(torch.get_autocast_dtype(device))
