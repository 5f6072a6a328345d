"""The backend ``sdpa``: torch's scaled_dot_product_attention, and the explicit softmax in blocks of
rows on a CPU, and where a bias is made of them.
"""

import math
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tape_exp.models.attention import cudnn
from tape_exp.models.attention.inputs import Inputs, causal_mask, products
from tape_exp.models.precision import full_precision, precise
from tape_exp.models.rows import recomputed

ROWS = 128  # of queries that a CPU takes at once
LEARNED = ("q", "k", "v", "carried", "key_bias")  # the inputs of a row that may have gradients
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

    A bias that is made of blocks of rows is made so on every device.
    """
    if inputs.in_rows is not None:
        return _row_blocks(inputs, inputs.in_rows.size)
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
    # One query sees every key. Without a mask for that, all kernels may serve it.
    mask = None if T == 1 and inputs.window is None else inputs.mask()
    on_cpu = q.device.type == "cpu"
    if bias is not None:
        bias = bias if on_cpu else bias.to(q.dtype)
        bias = bias if mask is None else torch.where(mask, bias, float("-inf"))
        mask = bias.expand(*q.shape[:2], T, S)
    # Autocast would round the mask, which a CPU's kernel takes in fp32.
    with full_precision(q) if on_cpu else nullcontext():
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
    return inputs.split(out[..., : D + padding])


def _row_blocks(inputs: Inputs, rows: int = ROWS) -> tuple[Tensor, Tensor | None]:
    """The explicit softmax for ``rows`` queries at a time, over only the keys that they may see."""
    k, v = replace(inputs, carried=None).per_query_head()
    q = precise(inputs.q) if inputs.q.device.type == "cpu" else inputs.q
    q = q / math.sqrt(q.shape[-1])
    T, S = q.shape[2], k.shape[2]
    carried = inputs.carried
    if carried is not None:
        carried = carried.to(v.dtype).expand(*v.shape[:3], -1)
    bias = replace(inputs, key_bias=None).dense_bias()
    if bias is not None:
        bias = bias.expand(*q.shape[:2], T, S)
    given = replace(inputs, q=q, k=k, v=v, carried=carried, bias=bias)
    blocks = [(first, min(first + rows, T)) for first in range(0, T, rows)]
    if inputs.in_rows is None:
        averages = [_row(given, *block) for block in blocks]
    else:  # the longest first: the memory that it frees has room for every other
        averages = [_recomputed_row(given, *block) for block in reversed(blocks)][::-1]
    values, *attended = (torch.cat(parts, 2) for parts in zip(*averages, strict=True))
    return values, attended[0] if attended else None


def _row(inputs: Inputs, first: int, last: int) -> list[Tensor]:
    """For the queries ``first`` … ``last`` - 1, which are scaled already, the values and what is
    carried, both of query heads.
    """
    q, k, device = inputs.q[:, :, first:last], inputs.k, inputs.q.device
    S = k.shape[2]
    begin = S - inputs.q.shape[2]
    seen = begin + last
    keys: slice | list[int] = slice(seen)
    if inputs.window is None:
        visible = causal_mask(last - first, seen, device)
    else:
        places = torch.arange(S, device=device)
        keys = inputs.window.keys(begin + first, seen, inputs.padding)
        visible = inputs.window.mask(places[begin + first : seen], places[keys], inputs.padding)
    k = k[:, :, keys]
    # A GPU's fast products are of 16 bits, and their sums are rounded to as many.
    logits = products(q, k) if device.type == "cpu" else q @ k.transpose(-1, -2)
    if inputs.bias is not None:
        logits = logits + inputs.bias[:, :, first:last, keys]
    if (of_rows := inputs.in_rows) is not None:
        logits = logits + of_rows.compute(first, last, *of_rows.tensors)[..., keys]
    if inputs.key_bias is not None:
        logits = logits + inputs.at_keys(first, last)[..., keys]
    wide = torch.promote_types(logits.dtype, torch.float32)
    logits = logits.masked_fill_(~visible, float("-inf"))
    probabilities = logits.softmax(-1, wide).to(inputs.v.dtype)
    averaged = [inputs.v] if inputs.carried is None else [inputs.v, inputs.carried]
    return [probabilities @ x[:, :, keys] for x in averaged]


def _recomputed_row(inputs: Inputs, first: int, last: int) -> list[Tensor]:
    """The same, of which nothing is kept for the backward pass but what goes in."""
    lazy, rows = inputs.on_demand, inputs.in_rows
    assert lazy is not None and rows is not None  # noqa: PT018
    names = [name for name in LEARNED if getattr(inputs, name) is not None]

    def row(*given: Tensor) -> list[Tensor]:
        fields: dict[str, Any] = dict(zip(names, given, strict=False))
        again = replace(rows, tensors=given[len(names) :])
        return _row(replace(inputs, on_demand=replace(lazy, rows=again), **fields), first, last)

    return recomputed(row, *(getattr(inputs, name) for name in names), *rows.tensors)
