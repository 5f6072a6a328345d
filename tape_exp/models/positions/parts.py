"""What several encodings are made of: linear maps, convolutions, forget gates, blocks of tokens.

Shape suffixes: B batch, T tokens, H heads, D head dimension, C width, E any width; N blocks of I
tokens.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tape_exp.models.precision import precise

BLOCK = 64  # tokens, a power of two, whose pairs are computed at once


def uniform(layer: nn.Linear, generator: torch.Generator) -> None:
    """Draw weights and biases uniformly in ± 1/√inputs."""
    bound = layer.in_features**-0.5
    nn.init.uniform_(layer.weight, -bound, bound, generator=generator)
    nn.init.uniform_(layer.bias, -bound, bound, generator=generator)


def linear(layer: nn.Linear, x: Tensor) -> Tensor:
    """Return the layer's map in x's dtype."""
    return F.linear(x, layer.weight.to(x.dtype), layer.bias.to(x.dtype))


def convolved(x_BTE: Tensor, taps_NE: Tensor) -> Tensor:
    """Return Σ_n taps_n · what the token n before each one brings, (B, T, E)."""
    T = x_BTE.shape[1]
    reach = len(taps_NE) - 1
    padded = F.pad(x_BTE, (0, 0, reach, 0))
    total = x_BTE.new_zeros(())
    for n, tap_E in enumerate(taps_NE):
        total = total + padded[:, reach - n : reach - n + T] * tap_E
    return total


def log_gates(x_BTC: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """Return log σ(w·x + b), at least fp32: (B, T, gates); 0 where x is, as it is for padding."""
    return F.logsigmoid(x_BTC @ precise(w).T + precise(b)) * x_BTC.any(-1, keepdim=True)


def in_blocks(x_BHTD: Tensor, size: int) -> Tensor:
    """Cut tokens into blocks of ``size``, the last filled up with zeros: (B, H, N, I, D)."""
    T = x_BHTD.shape[2]
    return F.pad(x_BHTD, (0, 0, 0, -T % size)).unflatten(2, (-1, size))
