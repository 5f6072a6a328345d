"""Rotary positional encoding.

Shape suffixes: B batch, T tokens, H heads, K key heads, D head dimension, C = 2 the real and the
imaginary part, M = D/2 pairs of channels.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from tape_exp.models.places import Places
from tape_exp.models.positions.base import PositionEncoding, Rotated, for_heads
from tape_exp.models.positions.rope_scaling import BY_LENGTH, Frequencies, Scaling, Stretch, Theta
from tape_exp.settings.schema import Arch, Fraction


class RoPE(PositionEncoding):
    """RoPE: the pair (q_m, q_{m+d/2}) is a complex number and is turned by the angle θ_m ·
    position, θ_m = θ^(-2m/d), so that dot products depend on distances (Su et al., "RoFormer:
    Enhanced Transformer with Rotary Position Embedding", 2021). Deliberately different from the
    paper: pairs are half-split, as in Llama, not adjacent. The state is the same for every layer.

    Args:
        theta: base of the frequencies, θ.
        scaling: how they are stretched to longer contexts.
    """

    grouped_keys = True

    def __init__(self, arch: Arch, theta: Theta = 10_000.0, scaling: Scaling | None = None) -> None:
        super().__init__(arch)
        self.theta = theta
        self.scaling = scaling or Scaling()
        self.scaling.require_fits(theta, arch.head_dim // 2)
        self.reads_length = self.scaling.method in BY_LENGTH
        self.stretch = Stretch(self.scaling, theta, arch)

    def start(self, places: Places) -> Tensor:
        """Return cos and sin of every angle, times the factor on q and k: (B, T, 1, 2, d/2)."""
        lengths_B = places.lengths if self.reads_length else None
        return self.rotations(places.positions[..., None], lengths_B)

    def rotate(
        self, q_BTHD: Tensor, k_BTHD: Tensor, x_BTC: Tensor, state: Any, places: Places
    ) -> Rotated:
        return apply_rotary(q_BTHD, state), apply_rotary(k_BTHD, state)

    def matrices(self, state: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return the matrices e of queries and those of keys, each (B, T, H, M, L, R) with 1 for B
        or H where all agree, for analysis; None where other things turn them too. With the channels
        m and m + d/2 as q_m and k_m, the logit of i and j is Σ_m q_{i,m}ᵀ e_{i,m} e_{j,m}ᵀ k_{j,m}
        / √d, eq. (f_attn) of the TAPE paper; here e is [[cos, sin], [-sin, cos]].
        """
        return as_matrices(state), as_matrices(state)

    def rotations(self, positions_BTH: Tensor, lengths_B: Tensor | None = None) -> Tensor:
        """Return the complex numbers that turn q and k at these positions: (B, T, H, 2, d/2)."""
        frequencies, magnitude = self.frequencies(positions_BTH, lengths_B)
        return rotations(positions_BTH[..., None] * frequencies) * magnitude

    def frequencies(self, like: Tensor, lengths_B: Tensor | None = None) -> Frequencies:
        """Return θ_m in ``like``'s dtype and on its device, (d/2,), or (B, 1, 1, d/2) where it
        depends on the lengths of rows, (1 or B,); and the factor on q and k.
        """
        stretched = self.scaling.when == "always" or not self.training
        return self.stretch.frequencies(like, lengths_B, stretched)


class PRoPE(RoPE):
    """p-RoPE (Barbero et al., "Round and Round We Go! What makes Rotary Positional Encodings
    useful?", 2024): the ⌊p d/2⌋ highest frequencies of RoPE turn their pairs as ever, the others
    become 0, so that their pairs carry only content.

    p = 1 is RoPE, p = 0 is NoPE. ``settings`` of RoPE are of all frequencies, before the lowest are
    dropped. It is not partial RoPE, whose frequencies fall to the lowest within fewer pairs.
    """

    def __init__(self, arch: Arch, p: Fraction = 0.75, **settings: Any) -> None:
        super().__init__(arch, **settings)
        self.p = p

    def frequencies(self, like: Tensor, lengths_B: Tensor | None = None) -> Frequencies:
        frequencies, magnitude = super().frequencies(like, lengths_B)
        index = torch.arange(frequencies.shape[-1], device=like.device)
        return frequencies * (index < int(self.p * len(index))), magnitude


def as_matrices(state_BTHCM: Tensor) -> Tensor:
    """Return matrices that turn a row vector as these complex numbers do: (B, T, H, M, 2, 2)."""
    cos, sin = state_BTHCM.unbind(-2)
    return torch.stack([torch.stack([cos, sin], -1), torch.stack([-sin, cos], -1)], -2)


def rotations(angles_BTHM: Tensor) -> Tensor:
    """Return the complex numbers of norm 1 with these angles: (B, T, H, 2, M)."""
    return torch.stack([angles_BTHM.cos(), angles_BTHM.sin()], -2)


def apply_rotary(x_BTHD: Tensor, state_BTKCM: Tensor) -> Tensor:
    """Multiply x, as complex numbers (x_m, x_{m+d/2}), by the state, which has one head for all, or
    one for each key head, whose queries share it.
    """
    heads = x_BTHD.shape[2]
    if 1 < state_BTKCM.shape[2] < heads:
        state_BTKCM = for_heads(state_BTKCM, heads)
    x_BTHD = x_BTHD.to(state_BTKCM.dtype)
    if not torch.is_grad_enabled():
        return torch.cat(product(x_BTHD.chunk(2, -1), state_BTKCM.unbind(-2)), -1)
    turned: Tensor = ApplyRotary.apply(x_BTHD, state_BTKCM)
    return turned


class ApplyRotary(torch.autograd.Function):
    """The complex product x e. Its gradients are g ē and, summed over heads that share e, g x̄:
    each four products added as they are made, where autograd's own formula takes twelve passes.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, state: Tensor) -> Tensor:
        ctx.save_for_backward(x, state)
        return torch.cat(product(x.chunk(2, -1), state.unbind(-2)), -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, state = ctx.saved_tensors
        g = grad.chunk(2, -1)
        of_x = None
        of_state = None
        if ctx.needs_input_grad[0]:
            of_x = torch.cat(product(g, state.unbind(-2), conjugate=True), -1)
        if ctx.needs_input_grad[1]:
            of_state = torch.stack(product(g, x.chunk(2, -1), conjugate=True), -2)
            of_state = of_state.sum_to_size(state.shape)
        return of_x, of_state


def product(
    x: Sequence[Tensor], y: Sequence[Tensor], conjugate: bool = False
) -> tuple[Tensor, Tensor]:
    """Return x y, or x ȳ, of complex numbers given and returned as real and imaginary part."""
    a, b = x
    c, d = y
    sign = -1 if conjugate else 1
    return torch.addcmul(a * c, b, d, value=-sign), torch.addcmul(b * c, a, d, value=sign)
