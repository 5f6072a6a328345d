"""The backend ``reference``: the explicit softmax, the oracle of all others."""

import math
from dataclasses import replace

from torch import Tensor

from tape_exp.models.attention.inputs import Inputs, products
from tape_exp.models.attention.window import Window
from tape_exp.models.precision import full_precision, precise


def compute(inputs: Inputs) -> tuple[Tensor, Tensor | None]:
    """The explicit softmax with fp32 logits and probabilities: the oracle of all others."""
    k, v = inputs.per_query_head()
    return inputs.split(_probabilities(inputs, k).to(v.dtype) @ v)


def probabilities(
    q_BTHD: Tensor,
    k_BSKD: Tensor,
    *,
    bias: Tensor | None = None,
    by_distance: Tensor | None = None,
    slopes: Tensor | None = None,
    key_bias: Tensor | None = None,
    padding: Tensor | None = None,
    window: Window | None = None,
    scale: Tensor | None = None,
) -> Tensor:
    """(B, H, T, S), at least fp32: what :func:`~tape_exp.models.attention.attend` averages with,
    from the same arguments.

    The logits are added up in at least fp32 whatever the dtype of q and k, as fused kernels do.
    """
    q, k = (precise(x.transpose(1, 2)) for x in (q_BTHD, k_BSKD))
    key_bias = None if key_bias is None else key_bias.transpose(1, 2)
    inputs = Inputs(q, k, k[..., :0], None, bias, by_distance, slopes, padding, None, key_bias)
    inputs = replace(inputs, window=window)
    if scale is not None:
        inputs = inputs.scaled(scale.transpose(1, 2))
    with full_precision(q):
        return _probabilities(inputs, inputs.per_query_head()[0])


def _probabilities(inputs: Inputs, k_BHSD: Tensor) -> Tensor:
    """The explicit softmax, with a key head for each query head: (B, H, T, S), at least fp32."""
    logits = products(inputs.q, k_BHSD) / math.sqrt(k_BHSD.shape[-1])
    bias = inputs.dense_bias()
    if bias is not None:
        logits = logits + bias
    logits = logits.masked_fill(~inputs.mask(), float("-inf"))
    return logits.softmax(-1)
