"""What devices this machine has: their names for records, their peak speed, and copies to them."""

import platform
import re
from pathlib import Path

import torch

CPUINFO = Path("/proc/cpuinfo")

# Peaks of one device in FLOP/s, by a part of its name (vendors' data sheets): dense bf16, and fp32
# without tensor cores, which is how torch multiplies fp32 by default. Fabric's get_available_flops
# does not know "NVIDIA H200" and "NVIDIA A10", takes an L40S for an L4, and gives RTX 4090 and
# A6000 the peak of fp32 and an H100 NVL that of sparse matrices.
PEAKS = {
    "H200 NVL": (835e12, 60e12),
    "H200": (989e12, 67e12),
    "H100 PCIe": (756e12, 51e12),
    "H100 NVL": (835e12, 60e12),
    "H100": (989e12, 67e12),
    "A100": (312e12, 19.5e12),
    "L40S": (362e12, 91.6e12),
    "RTX 4090": (165e12, 82.6e12),
    "A6000": (155e12, 38.7e12),
    "A10G": (70e12, 35e12),
    "A10": (125e12, 31.2e12),
}


def peak_flops(device: torch.device, fp32: bool = False) -> float:
    """Return the peak FLOP/s of a device in bf16, or in fp32; 0 where it is not known."""
    if device.type != "cuda":
        return 0.0
    name = torch.cuda.get_device_name(device)
    for part, peaks in PEAKS.items():
        if re.search(rf"\b{part}\b", name):  # an RTX A1000 is no A100
            return peaks[fp32]
    return 0.0


def cpu_name() -> str:
    """Return the processor's name, family, model and stepping as the system gives them, and the
    highest vector extension that torch uses on it.
    """
    lines = CPUINFO.read_text(encoding="utf-8").splitlines() if CPUINFO.exists() else []
    facts = {}
    for line in lines:
        key, _, value = line.partition(":")
        facts[key.strip()] = value.strip()
    name = facts.get("model name") or platform.processor() or platform.machine()
    numbers = [f"{key} {facts[key]}" for key in ("cpu family", "model", "stepping") if key in facts]
    return ", ".join([name, *numbers, torch.backends.cpu.get_cpu_capability()])


def to_device_async(x: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copy a tensor of the CPU to a device, without waiting for what that has still to do.

    A GPU takes it from pinned memory when its queue comes to it. From other memory it would take it
    at once, with the queue empty, and this process would wait for that.
    """
    if device.type == "cuda" and x.device.type == "cpu":
        return x.pin_memory().to(device, non_blocking=True)
    return x.to(device)


def machine_name(device: torch.device) -> str:
    """Return the GPU's name, or the processor's with its threads."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{cpu_name()}, {torch.get_num_threads()} threads"
