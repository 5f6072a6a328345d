"""xPos: rotary encoding with an exponential decay."""

import math
from typing import Any

import torch
from torch import Tensor

from tape_exp.models.places import Places
from tape_exp.models.positions.base import Rotated
from tape_exp.models.positions.rope import RoPE, apply_rotary, as_matrices
from tape_exp.models.positions.rope_scaling import Theta
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.schema import Arch, Positive

LARGEST = 80.0  # e^88 is the end of fp32, and of bf16


class XPos(RoPE):
    """xPos (Sun et al., "A Length-Extrapolatable Transformer", 2022): RoPE whose pair m is also
    scaled, the query at position t by ζ_m^{(t-c)/B} and the key by ζ_m^{-(t-c)/B}, with ζ_m = (2m +
    0.4 d) / (1.4 d), so that the dot product decays with distance as ζ^{distance/B}. B is
    ``scale_base``, in tokens.

    Deliberately different: the centre c, which cancels in the dot product, is half the longest
    length of the task and not of the batch, so that a cache of keys stays valid. Left out: the
    paper's blockwise attention, on which its extrapolation rests too.
    """

    def __init__(self, arch: Arch, theta: Theta = 10_000.0, scale_base: Positive = 512.0) -> None:
        super().__init__(arch, theta)
        self.scale_base = scale_base
        exponent = arch.max_length / 2 * math.log(1.4 / 0.4)  # of 1/ζ_0 at either end, times B
        if exponent / scale_base > LARGEST:
            raise ConfigError(
                f"model.scale_base={scale_base:g}: over rows of {arch.max_length} tokens scales "
                f"leave fp32; model.scale_base={math.ceil(exponent / LARGEST)} or more would do."
            )

    def start(self, places: Places) -> Tensor:
        """Return cosines, sines and the scale of the queries: (B, T, 1, 3, d/2)."""
        d = self.arch.head_dim
        positions_BT = places.positions
        pairs = torch.arange(0, d, 2, device=positions_BT.device, dtype=positions_BT.dtype)
        zeta = (pairs + 0.4 * d) / (1.4 * d)
        exponent = (positions_BT - self.arch.max_length / 2)[:, :, None, None] / self.scale_base
        return torch.cat([super().start(places), (zeta**exponent)[..., None, :]], -2)

    def rotate(
        self, q_BTHD: Tensor, k_BTHD: Tensor, x_BTC: Tensor, state: Any, places: Places
    ) -> Rotated:
        rotation = state[..., :2, :]
        scale = state[..., 2:, :]
        return apply_rotary(q_BTHD, rotation * scale), apply_rotary(k_BTHD, rotation / scale)

    def matrices(self, state: Tensor) -> tuple[Tensor, Tensor]:
        rotation = state[..., :2, :]
        scale = state[..., 2:, :]
        return as_matrices(rotation * scale), as_matrices(rotation / scale)
