"""Rotary positional encoding and the ways to stretch it to longer contexts."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge, Interval
from torch import Tensor
from torch.autograd.function import once_differentiable

from tape_exp.models.positions.base import PositionEncoding, Rotated, for_heads
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.schema import Arch, Count, Fraction, Positive

BY_LENGTH = ("dynamic", "longrope")  # the methods whose frequencies depend on a row's length
LONGEST = 1e9  # that a context may become, as a multiple of the training length
Theta = Annotated[float, Ge(1)]
Divisors = tuple[Annotated[float, Interval(ge=1 / LONGEST, le=LONGEST)], ...]


@dataclass(frozen=True)
class Scaling:
    """How RoPE's frequencies are stretched by the factor s for contexts longer than the training
    length.

    - ``none``: θ_m = θ^(-2m/d)
    - ``linear``: position interpolation, positions / s (Chen et al., 2023)
    - ``ntk``: θ ← θ · s^(d/(d-2)): high frequencies stay, the lowest is divided by s (bloc97, 2023)
    - ``yarn``: interpolates each frequency by how often it turns within the training length, and
      multiplies q and k by 0.1 ln s + 1 (Peng et al., 2023)
    - ``llama3``: frequencies that turn more than ``high_frequency`` times within the training
      length stay, those that turn less than ``low_frequency`` times are divided by s, and between
      the two the number of turns interpolates linearly (Llama 3.1)
    - ``dynamic``: as ``ntk`` with s L / original - (s - 1) instead of s, for rows of L > original
      tokens; shorter rows are not stretched (emozilla, 2023)
    - ``longrope``: θ_m / f_m, f being ``long_factor`` for rows of L > original tokens and
      ``short_factor`` for others; q and k are multiplied by ``attention_factor``, or else by √(1 +
      ln s / ln original) (Ding et al., 2024)

    L is the length of the whole row, its highest position plus one: with padding at its end, and in
    cached decoding with all tokens that the cache may hold for it. Every key of a row is turned by
    the same frequencies, so cached decoding says what a pass over that many tokens says.
    Deliberately different from transformers, where L is the length so far: there a key that is
    cached before L grows keeps the frequencies of its time, while new queries and keys have others.

    A larger base ("theta scaling", Liu et al., 2023) is the encoding's own ``theta``.
    """

    method: Literal["none", "linear", "ntk", "yarn", "llama3", "dynamic", "longrope"] = "none"
    # null: longest sequence of the task / original, at least 1
    factor: Annotated[float, Interval(ge=1, le=LONGEST)] | None = None
    # evaluation: train unscaled, stretch afterwards
    when: Literal["always", "evaluation"] = "always"
    original: Count | None = None  # training length before stretching, in tokens; null: the task's
    # Turns within the training length above which a frequency is kept, and below which it is
    # divided by s: of yarn, then of llama3.
    beta_fast: Positive = 32.0
    beta_slow: Positive = 1.0
    low_frequency: Positive = 1.0
    high_frequency: Positive = 4.0
    # Of longrope: what divides each of the d/2 frequencies, and what multiplies q and k.
    short_factor: Divisors | None = None
    long_factor: Divisors | None = None
    attention_factor: Annotated[float, Interval(ge=0.01, le=100)] | None = None

    def __post_init__(self) -> None:
        for low, high in (("low_frequency", "high_frequency"), ("beta_slow", "beta_fast")):
            if getattr(self, low) >= getattr(self, high):
                raise ConfigError(
                    f"model.scaling.{low}={getattr(self, low)} must be below model.scaling.{high}="
                    f"{getattr(self, high)}."
                )

    def refuse_lengths(self) -> None:
        """Raise, for encodings whose layers have positions of their own, which tell no length."""
        if self.method in BY_LENGTH:
            raise ConfigError(
                f"model.scaling.method={self.method} reads the length of a row, which positions of "
                "this encoding do not tell; use model=rope."
            )


class RoPE(PositionEncoding):
    """RoPE: the pair (q_m, q_{m+d/2}) is a complex number and is turned by the angle θ_m ·
    position, θ_m = θ^(-2m/d) (Su et al., "RoFormer: Enhanced Transformer with Rotary Position
    Embedding", 2021).

    The dot product then depends only on distances. The state is (B, T, 1, 2, d/2): cosines and
    sines, the same for every head, handed unchanged from layer to layer. Deliberately different
    from the paper: pairs are half-split, as in Llama, not adjacent.

    Args:
        theta: base of the frequencies.
        scaling: see :class:`Scaling`.
    """

    grouped_keys = True

    def __init__(self, arch: Arch, theta: Theta = 10_000.0, scaling: Scaling | None = None) -> None:
        super().__init__(arch)
        self.theta = theta
        self.scaling = scaling or Scaling()
        if self.scaling.method == "longrope":
            self._check_longrope()
        if theta == 1 and self.scaling.method == "yarn":
            raise ConfigError(
                "model.scaling.method=yarn needs model.theta above 1: it tells frequencies apart."
            )

    def start(self, positions_BT: Tensor) -> Tensor:
        """(B, T, 1, 2, d/2): cos and sin of every angle, times the factor on q and k."""
        frequencies, magnitude = self.frequencies(positions_BT)
        return rotations(positions_BT[:, :, None, None] * frequencies) * magnitude

    def rotate(self, q_BTHD: Tensor, k_BTHD: Tensor, x_BTC: Tensor, state: Any) -> Rotated:
        """q · e^{iθ·position}, and k likewise."""
        return turn_both(q_BTHD, k_BTHD, state)

    def matrices(self, state: Tensor) -> tuple[Tensor, Tensor] | None:
        """The matrices e of queries and those of keys, each (B, T, H, M, L, R) with 1 for B or H
        where all agree, for analysis: with M pairs of channels (m, m + d/2) for q_m and k_m, the
        logit of i and j is Σ_m q_{i,m}ᵀ e_{i,m} e_{j,m}ᵀ k_{j,m} / √d, eq. (f_attn) of the TAPE
        paper. Here [[cos, sin], [-sin, cos]] for each m; None where other things turn them too.
        """
        matrices = as_matrices(state)
        return matrices, matrices

    def frequencies(self, like: Tensor) -> tuple[Tensor, float]:
        """θ_m in ``like``'s dtype and device, and the factor on q and k, 1 except for YaRN and
        LongRoPE.

        θ_m is (d/2,), or (B, 1, 1, d/2) where it depends on the lengths of the rows, whose
        positions ``like`` then holds, (B, T).
        """
        scaling, d, original = self.scaling, self.arch.head_dim, self.original_length
        numbers: Any = {"device": like.device, "dtype": like.dtype}
        powers = torch.arange(0, d, 2, **numbers) / d
        frequencies, method, s = self.theta**-powers, scaling.method, self.stretch
        if method == "none" or (scaling.when == "evaluation" and self.training):
            return frequencies, 1.0
        if method in BY_LENGTH:
            length_B111 = like.amax(-1)[..., None, None, None] + 1
            if method == "dynamic":
                grown = (s * length_B111 / max(original, 1) - (s - 1)).clamp(min=1)
                return self.base(grown) ** -powers, 1.0
            factors = (scaling.long_factor, scaling.short_factor)
            long, short = (torch.tensor(x, **numbers) for x in factors)
            divisors = torch.where(length_B111 > original, long, short)
            return frequencies / divisors, self.attention_factor
        if method == "ntk":
            return self.base(s) ** -powers, 1.0
        if method == "linear" or s == 1:
            return frequencies / s, 1.0
        if method == "llama3":
            low, high = scaling.low_frequency, scaling.high_frequency
            turns = original * frequencies / (2 * math.pi)
            kept = ((turns - low) / (high - low)).clamp(0, 1)
            return frequencies * kept + frequencies / s * (1 - kept), 1.0
        first, last = (
            d * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(self.theta))
            for turns in (scaling.beta_fast, scaling.beta_slow)
        )
        first, last = max(math.floor(first), 0), min(math.ceil(last), d - 1)
        places = (torch.arange(d // 2, **numbers) - first) / (last - first or 1e-3)
        interpolated = places.clamp(0, 1)
        frequencies = frequencies * (1 - interpolated) + frequencies / s * interpolated
        return frequencies, 0.1 * math.log(s) + 1

    @property
    def attention_factor(self) -> float:
        """What LongRoPE multiplies q and k by."""
        if self.scaling.attention_factor is not None:
            return self.scaling.attention_factor
        return math.sqrt(1 + math.log(self.stretch) / math.log(self.original_length))

    @property
    def stretch(self) -> float:
        """The factor s, where the scaling is on."""
        if self.scaling.factor is not None:
            return self.scaling.factor
        return max(self.arch.max_length / max(self.original_length, 1), 1.0)

    def base(self, s: Any) -> Any:
        """The base θ that NTK scaling by s amounts to, a number or a tensor as s is."""
        d = self.arch.head_dim
        return self.theta * s ** (d / max(d - 2, 1))

    @property
    def original_length(self) -> int:
        """The training length that the scaling starts from, in tokens."""
        return self.scaling.original or self.arch.train_length

    def _check_longrope(self) -> None:
        """Raise where the lists do not fit the head, or the original length has no logarithm."""
        pairs, original = self.arch.head_dim // 2, self.original_length
        for key in ("short_factor", "long_factor"):
            if (given := len(getattr(self.scaling, key) or ())) != pairs:
                raise ConfigError(f"model.scaling.{key} holds {given} numbers; give {pairs}.")
        if original < 2:
            raise ConfigError(f"model.scaling.original={original} must be at least 2: longrope.")


class PRoPE(RoPE):
    """p-RoPE (Barbero et al., "Round and Round We Go! What makes Rotary Positional Encodings
    useful?", 2024): the ⌊p d/2⌋ highest frequencies of RoPE turn their pairs as ever, the others
    become 0, so that their pairs carry content alone at any distance.

    p = 1 is RoPE, p = 0 is NoPE. It is not partial RoPE, which lets the frequencies fall to the
    lowest within fewer pairs.

    Args:
        theta, scaling: as in RoPE, of all frequencies before the lowest are dropped.
        p: the fraction of the frequencies that stay.
    """

    def __init__(
        self,
        arch: Arch,
        theta: Theta = 10_000.0,
        scaling: Scaling | None = None,
        p: Fraction = 0.75,
    ) -> None:
        super().__init__(arch, theta, scaling)
        self.p = p

    def frequencies(self, like: Tensor) -> tuple[Tensor, float]:
        """RoPE's θ_m, 0 from m = ⌊p d/2⌋ on; its factor on q and k."""
        frequencies, magnitude = super().frequencies(like)
        pairs = frequencies.shape[-1]
        index = torch.arange(pairs, device=like.device)
        return frequencies * (index < int(self.p * pairs)), magnitude


def as_matrices(state_BTHCM: Tensor) -> Tensor:
    """Complex (B, T, H, 2, M) as matrices that turn a row vector likewise: (B, T, H, M, 2, 2)."""
    cos, sin = state_BTHCM.unbind(-2)
    return torch.stack([torch.stack([cos, sin], -1), torch.stack([-sin, cos], -1)], -2)


def turn(x_BTHD: Tensor, state_BTHCM: Tensor) -> Tensor:
    """x as complex numbers (x_m, x_{m+d/2}) times the state."""
    turned: Tensor = Turn.apply(x_BTHD.to(state_BTHCM.dtype), state_BTHCM)
    return turned


class Turn(torch.autograd.Function):
    """The complex product x e. Its gradients are g ē and, summed over heads that share e, g x̄:
    each four products added as they are made, where autograd's own formula takes twelve passes.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, state: Tensor) -> Tensor:
        """x e."""
        ctx.save_for_backward(x, state)
        return torch.cat(product(x.chunk(2, -1), state.unbind(-2)), -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """g ē and g x̄."""
        (x, state), g = ctx.saved_tensors, grad.chunk(2, -1)
        of_x, of_state = None, None
        if ctx.needs_input_grad[0]:
            of_x = torch.cat(product(g, state.unbind(-2), conjugate=True), -1)
        if ctx.needs_input_grad[1]:
            of_state = torch.stack(product(g, x.chunk(2, -1), conjugate=True), -2)
            of_state = of_state.sum_to_size(state.shape)
        return of_x, of_state


def product(
    x: Sequence[Tensor], y: Sequence[Tensor], conjugate: bool = False
) -> tuple[Tensor, Tensor]:
    """x y, or x ȳ, of complex numbers given and returned as real and imaginary part."""
    (a, b), (c, d), sign = x, y, -1 if conjugate else 1
    return torch.addcmul(a * c, b, d, value=-sign), torch.addcmul(b * c, a, d, value=sign)


def rotations(angles_BTHM: Tensor) -> Tensor:
    """The complex numbers of norm 1 with these angles: (B, T, H, 2, M)."""
    return torch.stack([angles_BTHM.cos(), angles_BTHM.sin()], -2)


def turn_both(q_BTHD: Tensor, k_BTKD: Tensor, rotations_BTKCM: Tensor) -> tuple[Tensor, Tensor]:
    """Keys turned by the rotations of their heads, or by those of one head that all share, and
    queries by those of the key heads that serve them.
    """
    shared = rotations_BTKCM.shape[2] == 1
    of_queries = rotations_BTKCM if shared else for_heads(rotations_BTKCM, q_BTHD.shape[2])
    return turn(q_BTHD, of_queries), turn(k_BTKD, rotations_BTKCM)
