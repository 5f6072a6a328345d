"""The ways to stretch RoPE to longer contexts: a function for each, with its equation.

d is the head dimension, m = 0 … d/2 - 1 a pair of channels, s the factor of the stretch, and L₀ the
original length: that of the rows on which the frequencies were trained.

Shape suffixes: B batch, M = d/2 pairs of channels.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge, Interval
from torch import Tensor

from tape_exp.settings.errors import ConfigError
from tape_exp.settings.schema import Arch, Count, Positive

BY_LENGTH = ("dynamic", "longrope")  # the methods whose frequencies depend on a row's length
LONGEST = 1e9  # that a context may become, as a multiple of the training length
Theta = Annotated[float, Ge(1)]
Divisors = tuple[Annotated[float, Interval(ge=1 / LONGEST, le=LONGEST)], ...]
Frequencies = tuple[Tensor, float]
"""θ_m, (M,), or (B, 1, 1, M) where it depends on the length of a row; and the factor on q and k."""


@dataclass(frozen=True)
class Scaling:
    """The key ``scaling`` of RoPE: how its frequencies are stretched. Each method is the function
    of its name in this module, which has its equation and its paper.

    Deliberately different from transformers: where frequencies depend on the length of a row, that
    is the length of the whole row, its highest position plus one, and in cached decoding that of
    all tokens that the cache may hold for it; in transformers cached keys keep the frequencies of
    their time. A larger base (Liu et al., 2023) is ``theta``.
    """

    method: Literal["none", "linear", "ntk", "yarn", "llama3", "dynamic", "longrope"] = "none"
    # s; null: longest sequence of the task / original, at least 1
    factor: Annotated[float, Interval(ge=1, le=LONGEST)] | None = None
    # evaluation: train unscaled, stretch afterwards
    when: Literal["always", "evaluation"] = "always"
    original: Count | None = None  # L₀, in tokens; null: the task's
    # Turns within L₀ above which a frequency is kept, and below which it is divided by s: of yarn,
    # then of llama3.
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

    def require_fits(self, theta: float, pairs: int) -> None:
        """Raise where the method cannot stretch so many frequencies of this base."""
        if self.method == "yarn" and theta == 1:
            raise ConfigError(
                "model.theta=1 turns all pairs of channels alike, and model.scaling.method=yarn "
                "stretches each by how often it turns; model.theta=10000 would do."
            )
        if self.method != "longrope":
            return
        if self.original == 1:
            raise ConfigError(
                "model.scaling.original=1 is too short for model.scaling.method=longrope, whose "
                "factor on q and k is divided by its logarithm; model.scaling.original=2 would do."
            )
        for key in ("short_factor", "long_factor"):
            count = len(getattr(self, key) or ())
            if count != pairs:
                raise ConfigError(f"model.scaling.{key} holds {count} numbers; give {pairs}.")


@dataclass(frozen=True)
class Stretch:
    """What a method is given: the frequencies that RoPE has in a model, and by how much to stretch
    them.
    """

    scaling: Scaling
    theta: float
    arch: Arch

    @property
    def factor(self) -> float:
        """The factor s."""
        if self.scaling.factor is not None:
            return self.scaling.factor
        return max(self.arch.max_length / max(self.original_length, 1), 1.0)

    @property
    def original_length(self) -> int:
        """The length L₀, in tokens."""
        return self.scaling.original or self.arch.train_length

    @property
    def attention_factor(self) -> float:
        """What YaRN, 0.1 ln s + 1, and LongRoPE, √(1 + ln s / ln L₀), multiply q and k by."""
        if self.scaling.attention_factor is not None:
            return self.scaling.attention_factor
        if self.scaling.method == "yarn":
            return 0.1 * math.log(self.factor) + 1
        return math.sqrt(1 + math.log(self.factor) / math.log(self.original_length))

    def base(self, s: Any) -> Any:
        """Return the base θ s^(d/(d-2)) that NTK scaling by s amounts to, a number or a tensor as s
        is.
        """
        d = self.arch.head_dim
        return self.theta * s ** (d / max(d - 2, 1))

    def frequencies(self, like: Tensor, lengths_B: Tensor | None, stretched: bool) -> Frequencies:
        """Return the frequencies in ``like``'s dtype and on its device.

        Args:
            lengths_B: of rows, (1 or B,), for the methods of :data:`BY_LENGTH`.
            stretched: false leaves them as they are.
        """
        d = self.arch.head_dim
        powers_M = torch.arange(0, d, 2, device=like.device, dtype=like.dtype) / d
        method = METHODS[self.scaling.method] if stretched else unscaled
        return method(self, powers_M, lengths_B)


def unscaled(stretch: Stretch, powers_M: Tensor, lengths_B: Tensor | None = None) -> Frequencies:
    """Leave the frequencies as RoPE has them, θ_m = θ^(-2m/d) (Su et al., 2021)."""
    return stretch.theta**-powers_M, 1.0


def linear(stretch: Stretch, powers_M: Tensor, lengths_B: Tensor | None = None) -> Frequencies:
    """Interpolate positions (Chen et al., "Extending Context Window of Large Language Models via
    Positional Interpolation", 2023)::

        θ_m = θ^(-2m/d) / s
    """
    return stretch.theta**-powers_M / stretch.factor, 1.0


def ntk(stretch: Stretch, powers_M: Tensor, lengths_B: Tensor | None = None) -> Frequencies:
    """Enlarge the base: high frequencies stay, the lowest is divided by s (bloc97, "NTK-Aware
    Scaled RoPE", 2023)::

        θ_m = (θ s^(d/(d-2)))^(-2m/d)
    """
    return stretch.base(stretch.factor) ** -powers_M, 1.0


def dynamic(stretch: Stretch, powers_M: Tensor, lengths_B: Tensor | None = None) -> Frequencies:
    """Enlarge the base as :func:`ntk`, for a row of L tokens by (emozilla, "Dynamically Scaled
    RoPE", 2023)::

        max(s L / L₀ - (s - 1), 1)
    """
    assert lengths_B is not None
    s = stretch.factor
    length_B111 = lengths_B[:, None, None, None]
    by_length = (s * length_B111 / max(stretch.original_length, 1) - (s - 1)).clamp(min=1)
    return stretch.base(by_length) ** -powers_M, 1.0


def longrope(stretch: Stretch, powers_M: Tensor, lengths_B: Tensor | None = None) -> Frequencies:
    """Divide each frequency by a number of its own, f_m: ``long_factor`` for rows beyond L₀ tokens,
    ``short_factor`` for others (Ding et al., "LongRoPE: Extending LLM Context Window Beyond 2
    Million Tokens", 2024)::

        θ_m = θ^(-2m/d) / f_m        q, k ← √(1 + ln s / ln L₀) q, k
    """
    assert lengths_B is not None
    long_M = powers_M.new_tensor(stretch.scaling.long_factor)
    short_M = powers_M.new_tensor(stretch.scaling.short_factor)
    is_long_B111 = lengths_B[:, None, None, None] > stretch.original_length
    divisors = torch.where(is_long_B111, long_M, short_M)
    return stretch.theta**-powers_M / divisors, stretch.attention_factor


def yarn(stretch: Stretch, powers_M: Tensor, lengths_B: Tensor | None = None) -> Frequencies:
    """Interpolate each frequency by how often it turns within L₀ tokens (Peng et al., "YaRN:
    Efficient Context Window Extension of Large Language Models", 2023)::

        θ_m = θ^(-2m/d) (1 - r_m) + θ^(-2m/d) / s · r_m        q, k ← (0.1 ln s + 1) q, k

    r_m rises from 0 to 1 between the pair that turns ``beta_fast`` times and the one that turns
    ``beta_slow`` times, which are whole numbers with ``truncate``.
    """
    if stretch.factor == 1:
        return stretch.theta**-powers_M, stretch.attention_factor
    first = _pair_that_turns(stretch, stretch.scaling.beta_fast)
    last = _pair_that_turns(stretch, stretch.scaling.beta_slow)
    if stretch.scaling.truncate:
        first = math.floor(first)
        last = math.ceil(last)
    first = max(first, 0)
    last = min(last, stretch.arch.head_dim - 1)
    width = last - first or 1e-3  # never 0
    pair_M = torch.arange(len(powers_M), device=powers_M.device, dtype=powers_M.dtype)
    share_kept_M = 1 - (pair_M - first) / width
    return _interpolated(stretch, powers_M, share_kept_M), stretch.attention_factor


def llama3(stretch: Stretch, powers_M: Tensor, lengths_B: Tensor | None = None) -> Frequencies:
    """Interpolate each frequency by how often it turns within L₀ tokens (Grattafiori et al., "The
    Llama 3 Herd of Models", 2024)::

        θ_m = θ^(-2m/d) (1 - r_m) + θ^(-2m/d) / s · r_m

    r_m falls from 1 for those that turn ``low_frequency`` times to 0 for those that turn
    ``high_frequency`` times.
    """
    if stretch.factor == 1:
        return unscaled(stretch, powers_M)
    low = stretch.scaling.low_frequency
    high = stretch.scaling.high_frequency
    turns_M = stretch.original_length * stretch.theta**-powers_M / (2 * math.pi)
    return _interpolated(stretch, powers_M, (turns_M - low) / (high - low)), 1.0


def _pair_that_turns(stretch: Stretch, turns: float) -> float:
    """Return the number of the pair, not a whole one, that turns so often within L₀ tokens."""
    d = stretch.arch.head_dim
    ratio = math.log(stretch.original_length / (turns * 2 * math.pi))
    return d * ratio / (2 * math.log(stretch.theta))


def _interpolated(stretch: Stretch, powers_M: Tensor, share_kept_M: Tensor) -> Tensor:
    """Return a share of each frequency as it is, plus the rest of it divided by s."""
    plain_M = stretch.theta**-powers_M
    share_kept_M = share_kept_M.clamp(0, 1)
    return plain_M * share_kept_M + plain_M / stretch.factor * (1 - share_kept_M)


METHODS: dict[str, Callable[[Stretch, Tensor, Tensor | None], Frequencies]] = {
    "none": unscaled,
    "linear": linear,
    "ntk": ntk,
    "yarn": yarn,
    "llama3": llama3,
    "dynamic": dynamic,
    "longrope": longrope,
}
