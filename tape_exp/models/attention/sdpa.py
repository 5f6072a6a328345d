"""The backend ``sdpa``: torch's scaled_dot_product_attention, and on a CPU the explicit softmax in
blocks of rows.
"""

import math
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from tape_exp.models.attention import cudnn
from tape_exp.models.attention.inputs import Inputs, causal_mask

ROWS = 128  # of queries that a CPU takes at once
# On a CPU the fused kernel wants values as wide as queries, with zeros to make them so: twice as
# fast as its unfused one at 1024 tokens, slower below this many.
CPU_PADS_FROM = 256


def compute(inputs: Inputs) -> tuple[Tensor, Tensor | None]:
    """torch's scaled_dot_product_attention.

    With something carried, a GPU does both in one call. Its kernels want values as wide as queries,
    so that q and k are padded with zeros to the joint width, but for cuDNN's where it takes them as
    they are, and values to the width of q and k. On a CPU the fused kernel gains less than
    computing the probabilities once for both saves, or leaving out the keys that a window hides
    (:func:`_row_blocks`), and it has no gradients for a mask that learns. Narrower values are
    padded there where that pays off.
    """
    keys_learn = inputs.key_bias is not None and torch.is_grad_enabled()
    in_blocks = inputs.carried is not None or keys_learn or inputs.narrow(ROWS)
    if in_blocks and inputs.q.device.type == "cpu":
        return _row_blocks(inputs)
    q, (k, v) = inputs.q, inputs.per_query_head()
    scale = 1 / math.sqrt(q.shape[-1])
    T, S, D, padding = q.shape[2], k.shape[2], q.shape[-1], v.shape[-1] - q.shape[-1]
    bias = inputs.dense_bias()
    plain = bias is None and T == S and inputs.window is None
    # With a mask it was not tried.
    if padding > 0 and not (plain and cudnn.takes_wide_values(q.device, q.dtype, D, D + padding)):
        q, k = F.pad(q, (0, padding)), F.pad(k, (0, padding))
    if padding < 0 and (q.device.type != "cpu" or (plain and T >= CPU_PADS_FROM)):
        v = F.pad(v, (0, -padding))
    if plain:
        with cudnn.priority(q.device):
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)
            return inputs.split(out[..., : D + padding])
    mask = inputs.mask()
    if bias is not None:
        mask = torch.where(mask, bias.to(q.dtype), float("-inf")).expand(*q.shape[:2], T, S)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
    return inputs.split(out[..., : D + padding])


def _row_blocks(inputs: Inputs, rows: int = ROWS) -> tuple[Tensor, Tensor | None]:
    """The explicit softmax for ``rows`` queries at a time, over only the keys that they may see."""
    k, v = replace(inputs, carried=None).per_query_head()
    averaged = [v]
    if inputs.carried is not None:
        averaged.append(inputs.carried.to(v.dtype).expand(*v.shape[:3], -1))
    q = inputs.q / math.sqrt(inputs.q.shape[-1])
    bias = replace(inputs, key_bias=None).dense_bias()
    T, S = q.shape[2], k.shape[2]
    places = torch.arange(S, device=q.device)
    averages: list[list[Tensor]] = [[] for _ in averaged]
    for first in range(0, T, rows):
        last = min(first + rows, T)
        seen = last + S - T
        keys: slice | list[int] = slice(seen)
        if inputs.window is None:
            visible = causal_mask(last - first, seen, q.device)
        else:
            keys = inputs.window.keys(first + S - T, seen, inputs.padding)
            visible = inputs.window.mask(places[first + S - T : seen], places[keys], inputs.padding)
        logits = q[:, :, first:last] @ k[:, :, keys].transpose(-1, -2)
        if bias is not None:
            logits = logits + bias.expand(*q.shape[:2], T, S)[:, :, first:last, keys]
        if inputs.key_bias is not None:
            logits = logits + inputs.at_keys(first, last)[..., keys]
        precise = torch.promote_types(logits.dtype, torch.float32)
        logits = logits.masked_fill_(~visible, float("-inf"))
        probabilities = logits.softmax(-1, precise).to(v.dtype)
        for parts, x in zip(averages, averaged, strict=True):
            parts.append(probabilities @ x[:, :, keys])
    values, *attended = (torch.cat(parts, 2) for parts in averages)
    return values, attended[0] if attended else None
