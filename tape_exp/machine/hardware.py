"""What machine this is."""

import os
import platform
from collections.abc import Mapping
from pathlib import Path

import torch

CPUINFO = Path("/proc/cpuinfo")

# Dense bf16 peak of one device, FLOP/s, by a part of its name (vendors' data sheets). Fabric's
# get_available_flops does not know "NVIDIA H200" and "NVIDIA A10", takes an L40S for an L4, and
# gives RTX 4090 and A6000 the peak of fp32 and an H100 NVL that of sparse matrices.
PEAK_FLOPS = {
    "H200 NVL": 835e12,
    "H200": 989e12,
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H100": 989e12,
    "A100": 312e12,
    "L40S": 362e12,
    "RTX 4090": 165e12,
    "A6000": 155e12,
    "A10G": 70e12,
    "A10": 125e12,
}


# In fp32 without tensor cores, which is how torch multiplies fp32 unless it is told to round.
PEAK_FP32 = {
    "H200 NVL": 60e12,
    "H200": 67e12,
    "H100 PCIe": 51e12,
    "H100 NVL": 60e12,
    "H100": 67e12,
    "A100": 19.5e12,
    "L40S": 91.6e12,
    "RTX 4090": 82.6e12,
    "A6000": 38.7e12,
    "A10G": 35e12,
    "A10": 31.2e12,
}


def peak_flops(device: torch.device, peaks: Mapping[str, float] = PEAK_FLOPS) -> float:
    """Peak FLOP/s of a device in bf16, or of another table; 0 where it is not known."""
    if device.type != "cuda":
        return 0.0
    name = torch.cuda.get_device_name(device)
    return next((peak for part, peak in peaks.items() if part in name), 0.0)


def machine_memory() -> int:
    """Bytes of this machine's memory, without that of its GPUs."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def device_memory(device: torch.device) -> int:
    """Bytes of a GPU's memory, 0 for another device."""
    return torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else 0


def cpu_name() -> str:
    """The processor's name as the system gives it."""
    return _of_cpu("model name") or platform.processor() or platform.machine()


def emulates_bf16() -> bool:
    """Whether the processor is known to have no instructions for bf16, so that torch rounds every
    number by itself: a step of training then takes several times one in fp32.
    """
    flags = _of_cpu("flags").split()  # x86 on Linux; elsewhere there is no such line
    return bool(flags) and not {"avx512_bf16", "amx_bf16"} & {*flags}


def _of_cpu(key: str) -> str:
    """A line of what Linux tells about the first processor; empty where there is none."""
    try:
        lines = CPUINFO.read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(key)), "")


def sent(x: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A tensor of the CPU on a device, without waiting for what that has still to do."""
    if device.type == "cuda" and x.device.type == "cpu":
        return x.pin_memory().to(device, non_blocking=True)
    return x.to(device)


def machine_name(device: torch.device) -> str:
    """The GPU's name, or the processor's with its threads."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{cpu_name()}, {torch.get_num_threads()} threads"


def file_name(machine: str) -> str:
    """A machine's name as a part of a file's name."""
    return "".join(c if c.isalnum() else "-" for c in machine.lower()).strip("-")
