"""Randomness without global state: one generator per (seed, purpose)."""

import hashlib

import torch


def seed_for(seed: int, *purpose: object) -> int:
    """A 63-bit seed that depends on ``seed`` and every part of ``purpose``, the same on every machine."""
    text = "/".join(map(str, (seed, *purpose)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator_for(seed: int, *purpose: object) -> torch.Generator:
    """A CPU generator of its own for (seed, purpose): ``generator_for(0, "init", "layers.0.attention.q.weight")``."""
    return torch.Generator().manual_seed(seed_for(seed, *purpose))
