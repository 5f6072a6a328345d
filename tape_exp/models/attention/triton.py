"""The backend ``triton``: our fused kernel, :mod:`tape_exp.models.kernels.causal`."""

from torch import Tensor

from tape_exp.models.attention.inputs import Inputs
from tape_exp.models.kernels import causal


def compute(inputs: Inputs) -> tuple[Tensor, Tensor | None]:
    """Our fused kernel: one q kᵀ, whose probabilities average both the values and the state."""
    carried = None if inputs.carried is None else inputs.carried.to(inputs.v.dtype).transpose(1, 2)
    q, k, v = (x.transpose(1, 2) for x in (inputs.q, inputs.k, inputs.v))
    table = inputs.by_distance if inputs.slopes is None else None
    pieces = None if inputs.on_demand is None else inputs.on_demand.piecewise()
    keys = None if inputs.key_bias is None else inputs.key_bias.transpose(1, 2)
    out, attended = causal.fused_attention(
        q, k, v, carried, inputs.slopes, table, pieces, key_bias=keys
    )
    return out.transpose(1, 2), None if attended is None else attended.transpose(1, 2)


def refuses(inputs: Inputs) -> str | None:
    """Why it cannot serve this call; None: it can."""
    lazy = inputs.on_demand
    if inputs.bias is not None or (lazy is not None and (lazy.path or lazy.rows)):
        return "the Triton kernel knows no bias of single pairs"
    if inputs.window is not None:
        return "the Triton kernel knows no window"
    carried = None if inputs.carried is None else inputs.carried.transpose(1, 2)
    reason = causal.supports(
        inputs.q.transpose(1, 2), inputs.k.transpose(1, 2), inputs.v.transpose(1, 2), carried
    )
    return None if reason is None else reason.rstrip(".")
