"""The backend ``flash``: flash-attn's own kernels, where that is installed."""

import functools
import importlib.util
import math

import torch
import torch.nn.functional as F
from torch import Tensor

from tape_exp.models.attention.inputs import Inputs

# What is absent is looked for in every folder: too slow for every call of attention.
_find_spec = functools.cache(importlib.util.find_spec)


def compute(inputs: Inputs) -> tuple[Tensor, Tensor | None]:
    """flash-attn with native ALiBi; q and k are padded to the width of values and state."""
    from flash_attn import flash_attn_func

    scale = 1 / math.sqrt(inputs.q.shape[-1])
    k, v = (inputs.k, inputs.v) if inputs.carried is None else inputs.per_query_head()
    padding = v.shape[-1] - inputs.q.shape[-1]
    q, k = F.pad(inputs.q, (0, padding)), F.pad(k, (0, padding))
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    slopes = None if inputs.slopes is None else inputs.slopes.float()
    before = -1 if inputs.window is None else inputs.window.size - 1
    out = flash_attn_func(
        q, k, v, softmax_scale=scale, causal=True, window_size=(before, -1), alibi_slopes=slopes
    )
    return inputs.split(out.transpose(1, 2))


def refuses(inputs: Inputs) -> str | None:
    """Why it cannot serve this call; None: it can."""
    width = inputs.v.shape[-1] + (0 if inputs.carried is None else inputs.carried.shape[-1])
    if not installed():
        return "flash-attn is not installed (docs/faq.md says how)"
    if inputs.q.shape[-1] > width:
        return "flash-attn needs values and state together as wide as the queries"
    if inputs.q.device.type != "cuda" or inputs.q.dtype not in (torch.float16, torch.bfloat16):
        return "flash-attn computes only in fp16 and bf16, on a GPU"
    if inputs.key_bias is not None or (inputs.biased and inputs.slopes is None):
        return "flash-attn knows no bias but ALiBi's slopes"
    if inputs.window is not None and inputs.window.sinks:
        return "flash-attn knows no attention sinks"
    return "flash-attn's heads are at most 256 wide" if width > 256 else None


def installed() -> bool:
    """Whether there is flash-attn."""
    return _find_spec("flash_attn") is not None
