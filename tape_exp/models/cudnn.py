"""cuDNN's kernels of attention: where they come first, and which widths of values they take.

torch takes flash's kernels for values of another width than the queries only after padding; cuDNN's
take them as they are, which serves what positions carry beside the values.
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
    """Find out, once, whether cuDNN attends to values of ``value_width`` by q and k of ``width``,
    forward and backward: a small call must give what the explicit softmax gives.

    Its backward pass adds up in any order, so torch leaves it out where that is forbidden.
    """
    case = (device, dtype, width, value_width)
    possible = dtype in (torch.float16, torch.bfloat16) and comes_first(device)
    if case in _tried or not possible or torch.are_deterministic_algorithms_enabled():
        return
    generator = torch.Generator(device).manual_seed(0)

    def made(columns: int) -> Tensor:
        shape = (2, 128, 2, columns)  # laid out as projections leave heads
        return torch.randn(shape, generator=generator, device=device, dtype=dtype).transpose(1, 2)

    def results(backend: SDPBackend, dtype: torch.dtype) -> tuple[Tensor, ...]:
        a, b, c = (x.to(dtype).detach().requires_grad_() for x in (q, k, v))
        with sdpa_kernel(backend):
            out = F.scaled_dot_product_attention(a, b, c, is_causal=True)
        return out, *torch.autograd.grad(out, (a, b, c), weights.to(dtype))

    plain = torch.autocast(device.type, enabled=False)
    with torch.inference_mode(False), torch.enable_grad(), plain:
        q, k, v, weights = made(width), made(width), made(value_width), made(value_width)
        try:
            found = results(SDPBackend.CUDNN_ATTENTION, dtype)
        except RuntimeError:  # it has no plan for these widths
            _tried[case] = False
            return
        exact = results(SDPBackend.MATH, torch.float32)
    pairs = zip(found, exact, strict=True)
    _tried[case] = all(bool((a.float() - b).norm() <= LOST * b.norm()) for a, b in pairs)
