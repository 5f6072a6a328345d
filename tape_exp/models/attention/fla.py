"""The backend ``fla``: PaTH and FoX by the kernels of flash-linear-attention (Yang and Zhang,
2024), where that is installed: they make no matrix of all pairs, forward or backward.

Head-major shapes: B batch, T tokens, H query heads, K heads of keys, values and paths, D head
dimension. Nothing else imports the package. Its kernels round w to fp16.
"""

import importlib.util
import math

import torch
from torch import Tensor

from tape_exp.models.attention.inputs import Inputs, Path
from tape_exp.models.kernels import runtime

PACKAGE = "fla-core"  # what pip calls the part of flash-linear-attention with the kernels
WIDTHS = (16, 32, 64, 128)
DTYPES = (torch.float16, torch.bfloat16)


def compute(inputs: Inputs) -> tuple[Tensor, Tensor | None]:
    """flash-linear-attention's kernels for PaTH and FoX, chosen only where they are named."""
    path = None if inputs.on_demand is None else inputs.on_demand.path
    return attention(inputs.q, inputs.k, inputs.v, path, inputs.key_bias), None


def refuses(inputs: Inputs) -> str | None:
    """Why it cannot serve this call; None: it can."""
    path = None if inputs.on_demand is None else inputs.on_demand.path
    known = (path is not None or inputs.on_demand is None) and (path or inputs.key_bias is not None)
    others = inputs.bias, inputs.by_distance, inputs.carried
    if not known or any(x is not None for x in others):
        return "flash-linear-attention serves only PaTH and FoX, in passes over whole sequences"
    if inputs.window is not None:
        return "flash-linear-attention knows no window here"
    q, k, v = inputs.q, inputs.k, inputs.v
    if not installed():
        return f"flash-linear-attention is not installed (pip install {PACKAGE})"
    if reason := runtime.cannot_run(q):
        return reason.rstrip(".")
    if q.dtype not in DTYPES:
        return "flash-linear-attention's kernels are for fp16 and bf16"
    if q.shape[2] != k.shape[2]:
        return "flash-linear-attention's kernels are for whole sequences"
    widths = q.shape[-1], v.shape[-1]
    if not set(widths) <= set(WIDTHS):
        return f"flash-linear-attention's heads are 16, 32, 64 or 128 wide, not {max(widths)}"
    return None


def attention(
    q_BHTD: Tensor, k_BKTD: Tensor, v_BKTD: Tensor, path: Path | None, key_bias_BHT: Tensor | None
) -> Tensor:
    """The attended values (B, H, T, D): logits q_iᵀ H_i ⋯ H_{j+1} k_j / √D + bias_j, with H_t = I
    - β_t w_t w_tᵀ, or I without a path. ``path`` are w (B, T, K, D) and β (B, T, K), in fp32.
    """
    q, k, v = (x.transpose(1, 2).contiguous() for x in (q_BHTD, k_BKTD, v_BKTD))
    gates = None
    if key_bias_BHT is not None:  # the kernels sum log gates up themselves
        steps = -key_bias_BHT.diff(dim=-1, prepend=key_bias_BHT[..., :1])
        gates = steps.float().expand(q.shape[0], -1, -1).transpose(1, 2).contiguous()
    if path is None:
        from fla.ops.forgetting_attn import parallel_forgetting_attn

        return parallel_forgetting_attn(q=q, k=k, v=v, g=gates).transpose(1, 2)
    from fla.ops.path_attn import parallel_path_attn

    if gates is not None:  # which this one multiplies by 1 / √D, as it does q·k
        gates = gates * math.sqrt(q.shape[-1])
    out, _ = parallel_path_attn(q=q, k=k, v=v, w=path[0], beta=path[1], g=gates)
    return out.transpose(1, 2)


def installed() -> bool:
    """Whether there is fla."""
    return importlib.util.find_spec("fla") is not None
