"""Randomness without global state: a generator per (seed, purpose), and numbers per row."""

import hashlib
import math

import numpy as np
import torch
from torch import Tensor

from tape_exp.machine.hardware import to_device_async


def seed_for(seed: int, *purpose: object) -> int:
    """Hash ``seed`` and all of ``purpose`` to a 63-bit seed, the same on every machine."""
    text = "/".join(map(str, (seed, *purpose)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator_for(seed: int, *purpose: object) -> torch.Generator:
    """Return a CPU generator for (seed, purpose), such as ``0, "init", "layers.0.q"``."""
    return torch.Generator().manual_seed(seed_for(seed, *purpose))


def random_rows(key: int, first: int, count: int, width: int) -> np.ndarray:
    """Draw (count, width) uint32 by Philox; row r is a pure function of (key, first + r)."""
    blocks = math.ceil(width / 8)  # Philox makes 4 × 64 bits a count
    raw = np.random.Philox(key=key, counter=first * blocks).random_raw(4 * blocks * count)
    return raw.view(np.uint32).reshape(count, 8 * blocks)[:, :width]


def uniform_ints(limit: int, random: np.ndarray) -> np.ndarray:
    """Turn each random uint32 into an integer in 0 … limit - 1, uniform but for limit / 2³²."""
    return (random.astype(np.uint64) * np.uint64(limit)) >> np.uint64(32)


class RowSampler:
    """Random numbers for the rows of a batch; row r depends only on (seed, purpose, first + r).

    What a model samples for sample k of a stream is then the same whatever the batch, the step or
    the device it falls on.
    """

    def __init__(self, seed: int, *purpose: object, first: int = 0) -> None:
        self.key = seed_for(seed, *purpose)
        self.first = first

    def integers(self, rows: int, width: int, device: torch.device | None = None) -> Tensor:
        """Draw (rows, width) int64, uniform in 0 … 2³² - 1, on the CPU or ``device``."""
        numbers = torch.from_numpy(random_rows(self.key, self.first, rows, width).astype(np.int64))
        return numbers if device is None else to_device_async(numbers, device)
