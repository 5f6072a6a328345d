"""Rotary positional encoding and the ways to stretch it to longer contexts."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge, Interval
from torch import Tensor
from torch.autograd.function import once_differentiable

from tape_exp.models.places import Places
from tape_exp.models.positions.base import PositionEncoding, Rotated, for_heads
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.schema import Arch, Count, Fraction, Positive

BY_LENGTH = ("dynamic", "longrope")  # the methods whose frequencies depend on a row's length
LONGEST = 1e9  # that a context may become, as a multiple of the training length
Theta = Annotated[float, Ge(1)]
Divisors = tuple[Annotated[float, Interval(ge=1 / LONGEST, le=LONGEST)], ...]


@dataclass(frozen=True)
class Scaling:
    """How RoPE's frequencies are stretched by the factor s beyond the training length.

    - ``none``: θ_m = θ^(-2m/d)
    - ``linear``: position interpolation, positions / s (Chen et al., 2023)
    - ``ntk``: θ ← θ · s^(d/(d-2)): high frequencies stay, the lowest is divided by s (bloc97, 2023)
    - ``yarn``: interpolates each frequency by how often it turns within the training length,
      between two pairs of channels that are whole numbers with ``truncate``; q and k are multiplied
      by ``attention_factor``, or else by 0.1 ln s + 1 (Peng et al., 2023)
    - ``llama3``: frequencies that turn more than ``high_frequency`` times within the training
      length stay, those that turn less than ``low_frequency`` times are divided by s, others are
      interpolated by their turns (Llama 3.1)
    - ``dynamic``: ``ntk`` with s L / original - (s - 1) instead of s, at least 1 (emozilla, 2023)
    - ``longrope``: θ_m / f_m, f being ``long_factor`` for rows of L > original tokens and
      ``short_factor`` for others; q and k are multiplied by ``attention_factor``, or else by √(1 +
      ln s / ln original) (Ding et al., 2024)

    L is the length of the whole row, its highest position plus one: in cached decoding that of all
    tokens that the cache may hold for it. Deliberately different from transformers, where cached
    keys keep the frequencies of their time. A larger base (Liu et al., 2023) is ``theta``.
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
    truncate: bool = True  # of yarn
    # Of longrope: what divides each of the d/2 frequencies.
    short_factor: Divisors | None = None
    long_factor: Divisors | None = None
    # Of yarn and longrope: what multiplies q and k.
    attention_factor: Annotated[float, Interval(ge=0.01, le=100)] | None = None

    def __post_init__(self) -> None:
        if self.method == "none" and self.factor is not None:
            raise ConfigError("model.scaling.factor needs model.scaling.method, for example yarn.")
        for low, high in (("low_frequency", "high_frequency"), ("beta_slow", "beta_fast")):
            if getattr(self, low) >= getattr(self, high):
                raise ConfigError(f"model.scaling.{low} must be below model.scaling.{high}.")

    def refuse_lengths(self) -> None:
        """Raise, for encodings whose layers have positions of their own, which tell no length."""
        if self.method in BY_LENGTH:
            raise ConfigError(
                f"model.scaling.method={self.method} reads the length of a row, which this "
                "encoding does not tell; use model=rope."
            )


class RoPE(PositionEncoding):
    """RoPE: the pair (q_m, q_{m+d/2}) is a complex number and is turned by the angle θ_m ·
    position, θ_m = θ^(-2m/d), so that dot products depend on distances (Su et al., "RoFormer:
    Enhanced Transformer with Rotary Position Embedding", 2021). Deliberately different from the
    paper: pairs are half-split, as in Llama, not adjacent. The state is the same for every layer.
    """

    grouped_keys = True

    def __init__(self, arch: Arch, theta: Theta = 10_000.0, scaling: Scaling | None = None) -> None:
        super().__init__(arch)
        self.theta = theta
        self.scaling = scaling = scaling or Scaling()
        self.reads_length = scaling.method in BY_LENGTH
        if scaling.method == "yarn" and theta == 1:
            raise ConfigError(
                "model.theta=1 turns all pairs of channels alike, and model.scaling.method=yarn "
                "stretches each by how often it turns; model.theta=10000 would do."
            )
        if scaling.method == "longrope" and scaling.original == 1:
            raise ConfigError(
                "model.scaling.original=1 is too short for model.scaling.method=longrope, whose "
                "factor on q and k is divided by its logarithm; model.scaling.original=2 would do."
            )
        if scaling.method == "longrope":
            pairs = arch.head_dim // 2
            for key in ("short_factor", "long_factor"):
                count = len(getattr(scaling, key) or ())
                if count != pairs:
                    raise ConfigError(f"model.scaling.{key} holds {count} numbers; give {pairs}.")

    def start(self, places: Places) -> Tensor:
        """(B, T, 1, 2, d/2): cos and sin of every angle, times the factor on q and k."""
        lengths_B = places.lengths if self.reads_length else None
        return self.rotations(places.positions[..., None], lengths_B)

    def rotate(
        self, q_BTHD: Tensor, k_BTHD: Tensor, x_BTC: Tensor, state: Any, places: Places
    ) -> Rotated:
        return apply_rotary(q_BTHD, state), apply_rotary(k_BTHD, state)

    def matrices(self, state: Tensor) -> tuple[Tensor, Tensor] | None:
        """The matrices e of queries and those of keys, each (B, T, H, M, L, R) with 1 for B or H
        where all agree, for analysis; None where other things turn them too. With the channels m
        and m + d/2 as q_m and k_m, the logit of i and j is Σ_m q_{i,m}ᵀ e_{i,m} e_{j,m}ᵀ k_{j,m} /
        √d, eq. (f_attn) of the TAPE paper; here e is [[cos, sin], [-sin, cos]].
        """
        return as_matrices(state), as_matrices(state)

    def rotations(self, positions_BTH: Tensor, lengths_B: Tensor | None = None) -> Tensor:
        """The complex numbers that turn queries and keys at these positions: (B, T, H, 2, d/2)."""
        frequencies, magnitude = self.frequencies(positions_BTH, lengths_B)
        return rotations(positions_BTH[..., None] * frequencies) * magnitude

    def frequencies(self, like: Tensor, lengths_B: Tensor | None = None) -> tuple[Tensor, float]:
        """θ_m in ``like``'s dtype and on its device, (d/2,), or (B, 1, 1, d/2) where it depends on
        the lengths of rows, (1 or B,); and the factor on q and k.
        """
        d = self.arch.head_dim
        powers = torch.arange(0, d, 2, device=like.device, dtype=like.dtype) / d
        if self.scaling.when == "evaluation" and self.training:
            return unscaled(self, powers, lengths_B)
        return METHODS[self.scaling.method](self, powers, lengths_B)

    @property
    def attention_factor(self) -> float:
        """What YaRN and LongRoPE multiply q and k by."""
        if self.scaling.attention_factor is not None:
            return self.scaling.attention_factor
        if self.scaling.method == "yarn":
            return 0.1 * math.log(self.stretch) + 1
        return math.sqrt(1 + math.log(self.stretch) / math.log(self.original_length))

    @property
    def stretch(self) -> float:
        """The factor s, where the scaling is on."""
        if self.scaling.factor is not None:
            return self.scaling.factor
        return max(self.arch.max_length / max(self.original_length, 1), 1.0)

    @property
    def original_length(self) -> int:
        """The training length that the scaling starts from, in tokens."""
        return self.scaling.original or self.arch.train_length

    def base(self, s: Any) -> Any:
        """The base θ that NTK scaling by s amounts to, a number or a tensor as s is."""
        d = self.arch.head_dim
        return self.theta * s ** (d / max(d - 2, 1))


Stretched = tuple[Tensor, float]
"""Frequencies θ_m, (d/2,) or (B, 1, 1, d/2), and the factor on q and k."""

# Each method of Scaling takes the encoding, the powers 2m/d, (d/2,), and the lengths of rows.


def unscaled(rope: RoPE, powers: Tensor, lengths_B: Tensor | None) -> Stretched:
    """θ_m = θ^(-2m/d) (Su et al., 2021)."""
    return rope.theta**-powers, 1.0


def linear(rope: RoPE, powers: Tensor, lengths_B: Tensor | None) -> Stretched:
    """Position interpolation: θ_m / s (Chen et al., "Extending Context Window of Large Language
    Models via Positional Interpolation", 2023).
    """
    return rope.theta**-powers / rope.stretch, 1.0


def ntk(rope: RoPE, powers: Tensor, lengths_B: Tensor | None) -> Stretched:
    """A larger base, θ s^(d/(d-2)) (bloc97, "NTK-Aware Scaled RoPE", 2023)."""
    return rope.base(rope.stretch) ** -powers, 1.0


def dynamic(rope: RoPE, powers: Tensor, lengths_B: Tensor | None) -> Stretched:
    """``ntk`` by s L / original - (s - 1), at least 1, for a row of L tokens (emozilla,
    "Dynamically Scaled RoPE", 2023).
    """
    assert lengths_B is not None
    s = rope.stretch
    length_B111 = lengths_B[:, None, None, None]
    by_length = (s * length_B111 / max(rope.original_length, 1) - (s - 1)).clamp(min=1)
    return rope.base(by_length) ** -powers, 1.0


def longrope(rope: RoPE, powers: Tensor, lengths_B: Tensor | None) -> Stretched:
    """θ_m / f_m, with other f for rows beyond the original length (Ding et al., "LongRoPE:
    Extending LLM Context Window Beyond 2 Million Tokens", 2024).
    """
    assert lengths_B is not None
    long = powers.new_tensor(rope.scaling.long_factor)
    short = powers.new_tensor(rope.scaling.short_factor)
    is_long = lengths_B[:, None, None, None] > rope.original_length
    return rope.theta**-powers / torch.where(is_long, long, short), rope.attention_factor


def yarn(rope: RoPE, powers: Tensor, lengths_B: Tensor | None) -> Stretched:
    """θ_m (1 - r) + θ_m / s · r, r rising from 0 to 1 between the pair that turns ``beta_fast``
    times within the original length and the one that turns ``beta_slow`` times (Peng et al.,
    "YaRN: Efficient Context Window Extension of Large Language Models", 2023).
    """
    if rope.stretch == 1:
        return unscaled(rope, powers, lengths_B)
    first = _pair_that_turns(rope, rope.scaling.beta_fast)
    last = _pair_that_turns(rope, rope.scaling.beta_slow)
    if rope.scaling.truncate:
        first = math.floor(first)
        last = math.ceil(last)
    first = max(first, 0)
    last = min(last, rope.arch.head_dim - 1)
    pair = torch.arange(len(powers), device=powers.device, dtype=powers.dtype)
    share_kept = 1 - (pair - first) / (last - first or 1e-3)
    return _interpolated(rope, powers, share_kept), rope.attention_factor


def llama3(rope: RoPE, powers: Tensor, lengths_B: Tensor | None) -> Stretched:
    """θ_m (1 - r) + θ_m / s · r, r falling from 1 for frequencies that turn ``low_frequency`` times
    within the original length to 0 for those that turn ``high_frequency`` times (Grattafiori et
    al., "The Llama 3 Herd of Models", 2024).
    """
    if rope.stretch == 1:
        return unscaled(rope, powers, lengths_B)
    low = rope.scaling.low_frequency
    high = rope.scaling.high_frequency
    turns = rope.original_length * rope.theta**-powers / (2 * math.pi)
    return _interpolated(rope, powers, (turns - low) / (high - low)), 1.0


def _pair_that_turns(rope: RoPE, turns: float) -> float:
    """The number of the pair, not a whole one, that turns so often within the original length."""
    d = rope.arch.head_dim
    ratio = math.log(rope.original_length / (turns * 2 * math.pi))
    return d * ratio / (2 * math.log(rope.theta))


def _interpolated(rope: RoPE, powers: Tensor, share_kept: Tensor) -> Tensor:
    """A share of each frequency as it is, and the others divided by s."""
    plain = rope.theta**-powers
    share_kept = share_kept.clamp(0, 1)
    return plain * share_kept + plain / rope.stretch * (1 - share_kept)


METHODS: dict[str, Callable[[RoPE, Tensor, Tensor | None], Stretched]] = {
    "none": unscaled,
    "linear": linear,
    "ntk": ntk,
    "yarn": yarn,
    "llama3": llama3,
    "dynamic": dynamic,
    "longrope": longrope,
}


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

    def frequencies(self, like: Tensor, lengths_B: Tensor | None = None) -> tuple[Tensor, float]:
        frequencies, magnitude = super().frequencies(like, lengths_B)
        index = torch.arange(frequencies.shape[-1], device=like.device)
        return frequencies * (index < int(self.p * len(index))), magnitude


def as_matrices(state_BTHCM: Tensor) -> Tensor:
    """Complex (B, T, H, 2, M) as matrices that turn a row vector likewise: (B, T, H, M, 2, 2)."""
    cos, sin = state_BTHCM.unbind(-2)
    return torch.stack([torch.stack([cos, sin], -1), torch.stack([-sin, cos], -1)], -2)


def rotations(angles_BTHM: Tensor) -> Tensor:
    """The complex numbers of norm 1 with these angles: (B, T, H, 2, M)."""
    return torch.stack([angles_BTHM.cos(), angles_BTHM.sin()], -2)


def apply_rotary(x_BTHD: Tensor, state_BTKCM: Tensor) -> Tensor:
    """x as complex numbers (x_m, x_{m+d/2}) times the state, which has one head for all, or one for
    each key head, whose queries share it.
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
        (x, state) = ctx.saved_tensors
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
    """x y, or x ȳ, of complex numbers given and returned as real and imaginary part."""
    (a, b) = x
    (c, d) = y
    sign = -1 if conjugate else 1
    return torch.addcmul(a * c, b, d, value=-sign), torch.addcmul(b * c, a, d, value=sign)
