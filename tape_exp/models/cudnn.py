"""cuDNN's attention takes values wider than the queries as they are, which serves what positions
carry beside the values; for flash's kernels torch would pad queries and keys.
"""

from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

LOST = 0.05  # of the norm of an output or a gradient, which bf16 and fp16 may lose in a trial
_tried: dict[tuple[torch.device, torch.dtype, int, int], bool] = {}


def comes_first(device: torch.device) -> bool:
    """Whether cuDNN is the fastest of torch's kernels: on Hopper and later."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


def priority(device: torch.device) -> AbstractContextManager[None]:
    """Where scaled_dot_product_attention asks cuDNN before flash, if cuDNN is to come first."""
    names = ("CUDNN_ATTENTION", "FLASH_ATTENTION", "EFFICIENT_ATTENTION", "MATH")
    order = [getattr(SDPBackend, name) for name in names]
    return sdpa_kernel(order, set_priority=True) if comes_first(device) else nullcontext()


def takes(device: torch.device, dtype: torch.dtype, width: int, value_width: int) -> bool:
    """Whether a :func:`trial` has shown that it attends to such values."""
    return _tried.get((device, dtype, width, value_width), False)


def trial(device: torch.device, dtype: torch.dtype, width: int, value_width: int) -> None:
    """Find out, once, whether cuDNN attends to values of ``value_width`` by q and k of ``width``: a
    small call must give the output and the gradients of the explicit softmax.

    Its backward pass adds up in any order, so torch leaves it out where that is forbidden.
    """
    case = (device, dtype, width, value_width)
    possible = dtype in (torch.float16, torch.bfloat16) and comes_first(device)
    if case in _tried or not possible or torch.are_deterministic_algorithms_enabled():
        return
    generator = torch.Generator(device).manual_seed(0)

    def results(backend: SDPBackend, dtype: torch.dtype) -> list[Tensor]:
        *qkv, weights = (x.to(dtype) for x in given)
        q, k, v = (x.detach().requires_grad_() for x in qkv)
        with sdpa_kernel(backend):
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return [out, *torch.autograd.grad(out, (q, k, v), weights)]

    plain = torch.autocast(device.type, enabled=False)
    with torch.inference_mode(False), torch.enable_grad(), plain:
        shapes = ((2, 128, 2, columns) for columns in (width, width, value_width, value_width))
        numbers = (torch.randn(x, generator=generator, device=device) for x in shapes)
        given = [x.to(dtype).transpose(1, 2) for x in numbers]  # as projections leave heads
        try:
            found = results(SDPBackend.CUDNN_ATTENTION, dtype)
        except RuntimeError:  # it has no plan for these widths
            _tried[case] = False
            return
        exact = results(SDPBackend.MATH, torch.float32)
    pairs = zip(found, exact, strict=True)
    _tried[case] = all(bool((a.float() - b).norm() <= LOST * b.norm()) for a, b in pairs)
