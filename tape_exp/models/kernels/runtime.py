"""Where Triton's programs can run: which GPUs, and Triton's interpreter."""

import importlib.util
import os
from typing import Any

import torch
from torch import Tensor

SHARED = 160  # KiB of shared memory that wide heads in fp32 need


def cannot_run(x: Tensor) -> str | None:
    """None if Triton's programs can run where x is, else a sentence why not."""
    if x.device.type != "cuda" and not (
        x.device.type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1"
    ):
        return f"Triton's programs run on a CUDA GPU, not on {x.device.type}."
    if not installed():
        return "triton is not installed."
    if x.device.type == "cpu" and not interpreted():
        return "TRITON_INTERPRET=1 was set after triton had been imported."
    if x.device.type == "cuda" and interpreted():
        return "TRITON_INTERPRET=1 is set, which computes on the CPU; unset it."
    if x.device.type == "cuda" and (gpu := too_old(x.device)):
        return f"The {gpu} is older than compute capability 8.0 (A100)."
    return None


def padded(rows: int) -> int:
    """The rows of a matrix in a program: a power of two, at least the 16 of a tensor core."""
    return max(16, 1 << (rows - 1).bit_length())


def installed() -> bool:
    """Whether there is triton."""
    return importlib.util.find_spec("triton") is not None


def interpreted() -> bool:
    """Whether triton's interpreter runs the programs, which then need no GPU."""
    from tape_exp.models.kernels import tiles_triton

    return tiles_triton.INTERPRETED.value


def too_old(device: torch.device) -> str:
    """The name of a GPU that the programs cannot run on; empty for others."""
    gpu = torch.cuda.get_device_properties(device)
    return gpu.name if gpu.major < 8 else ""


def too_small(device: torch.device) -> str:
    """The name of a GPU with less than SHARED KiB for a block, as an RTX 4090; empty for others."""
    gpu: Any = torch.cuda.get_device_properties(device)
    return gpu.name if gpu.shared_memory_per_block_optin < SHARED * 2**10 else ""
