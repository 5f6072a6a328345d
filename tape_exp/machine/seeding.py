"""Randomness without global state: a generator per (seed, purpose), and numbers per row."""

import hashlib
import math

import numpy as np
import torch
from torch import Tensor

from tape_exp.machine.hardware import to_device_async


def seed_for(seed: int, *purpose: object) -> int:
    """A 63-bit seed that depends on ``seed`` and all of ``purpose``, the same on every machine."""
    text = "/".join(map(str, (seed, *purpose)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator_for(seed: int, *purpose: object) -> torch.Generator:
    """A CPU generator for (seed, purpose), such as ``0, "init", "layers.0.q"``."""
    return torch.Generator().manual_seed(seed_for(seed, *purpose))


def lanes(key: int, first: int, count: int, width: int) -> np.ndarray:
    """(count, width) random uint32; row r is a pure function of (key, first + r), by Philox."""
    blocks = math.ceil(width / 8)  # Philox makes 4 × 64 bits a count
    words = np.random.Philox(key=key, counter=first * blocks).random_raw(4 * blocks * count)
    return words.view(np.uint32).reshape(count, 8 * blocks)[:, :width]


def uniform_ints(limit: int, lane: np.ndarray) -> np.ndarray:
    """A uniform integer in 0 … limit - 1 for each lane; the bias is under limit / 2³²."""
    return (lane.astype(np.uint64) * np.uint64(limit)) >> np.uint64(32)


class RowSampler:
    """Random numbers for the rows of a batch; row r depends only on (seed, purpose, first + r).

    What a model samples for sample k of a stream is then the same whatever the batch, the step or
    the device it falls on.
    """

    def __init__(self, seed: int, *purpose: object, first: int = 0) -> None:
        self.key = seed_for(seed, *purpose)
        self.first = first

    def integers(self, rows: int, width: int, device: torch.device | None = None) -> Tensor:
        """(rows, width) int64, uniform in 0 … 2³² - 1, on the CPU or ``device``."""
        numbers = torch.from_numpy(lanes(self.key, self.first, rows, width).astype(np.int64))
        return numbers if device is None else to_device_async(numbers, device)
