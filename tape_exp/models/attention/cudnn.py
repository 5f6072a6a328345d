"""cuDNN's attention: where it comes first, and whether it takes values wider than q and k."""

import functools
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.backends.cuda import SDPAParams, can_use_cudnn_attention
from torch.nn.attention import SDPBackend, sdpa_kernel

from tape_exp.models.timing import apart

LOST = 0.05  # of the norm of an output or a gradient, which bf16 and fp16 may lose in a trial


def comes_first(device: torch.device) -> bool:
    """Whether cuDNN is the fastest of torch's kernels: on Hopper and later."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


def priority(device: torch.device) -> AbstractContextManager[None]:
    """Where scaled_dot_product_attention asks cuDNN before flash, if cuDNN is to come first."""
    if not comes_first(device):
        return nullcontext()
    order = [
        SDPBackend.CUDNN_ATTENTION,
        SDPBackend.FLASH_ATTENTION,
        SDPBackend.EFFICIENT_ATTENTION,
        SDPBackend.MATH,
    ]
    return sdpa_kernel(order, set_priority=True)


def takes_wide_values(
    device: torch.device, dtype: torch.dtype, width: int, value_width: int
) -> bool:
    """Whether cuDNN comes first and attends to values of ``value_width`` by q and k of ``width``,
    causally, forward and backward; flash would need q and k padded with zeros to that width.
    """
    # Its backward pass adds up in any order, so that torch leaves it out where that is forbidden.
    if not comes_first(device) or torch.are_deterministic_algorithms_enabled():
        return False
    return _agrees(device, dtype, width, value_width)


@functools.cache
def _agrees(device: torch.device, dtype: torch.dtype, width: int, value_width: int) -> bool:
    """Whether a small call gives what the explicit softmax gives, and the same gradients.

    PyTorch asks of each width by itself whether it is a multiple of 8 and at most 128 (256 on some
    GPUs), forward and backward alike (check_cudnn_tensor_shapes in its sdp_utils.cpp). Whether this
    cuDNN has kernels for the pair is not known before it is asked for them: so that is tried.
    """
    generator = torch.Generator(device).manual_seed(0)

    def make(columns: int) -> Tensor:
        shape = (2, 128, 2, columns)  # laid out as projections leave heads
        return torch.randn(shape, generator=generator, device=device, dtype=dtype).transpose(1, 2)

    def results(backend: SDPBackend, dtype: torch.dtype) -> tuple[Tensor, ...]:
        a, b, c = (x.to(dtype).detach().requires_grad_() for x in (q, k, v))
        with sdpa_kernel(backend):
            out = F.scaled_dot_product_attention(a, b, c, is_causal=True)
        return out, *torch.autograd.grad(out, (a, b, c), weights.to(dtype))

    plain = torch.autocast(device.type, enabled=False)
    with apart(), plain:
        q, k = make(width), make(width)
        v, weights = make(value_width).contiguous(), make(value_width).contiguous()
        if not can_use_cudnn_attention(SDPAParams(q, k, v, None, 0.0, True, False)):
            return False
        try:
            found = results(SDPBackend.CUDNN_ATTENTION, dtype)
        except RuntimeError:  # it has no plan for these widths
            return False
        exact = results(SDPBackend.MATH, torch.float32)
    pairs = zip(found, exact, strict=True)
    return all(bool((a.float() - b).norm() <= LOST * b.norm()) for a, b in pairs)
