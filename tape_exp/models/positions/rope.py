"""Rotary positional encoding and the ways to stretch it to longer contexts."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tape_exp.models.attention import say
from tape_exp.models.kernels import rotation
from tape_exp.models.positions.base import Features, PositionEncoding, for_heads
from tape_exp.settings.errors import ConfigError, at_least_one, between, one_of, positive
from tape_exp.settings.schema import Arch

METHODS = ("none", "linear", "ntk", "yarn", "llama3", "dynamic", "longrope")
BY_LENGTH = ("dynamic", "longrope")  # the methods whose frequencies depend on a row's length
LONGEST = 1e9  # that a context may become, as a multiple of the training length


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

    method: str = "none"
    factor: float | None = None  # null: longest sequence of the task / original, at least 1
    when: str = "always"  # always | evaluation: train unscaled, stretch afterwards
    original: int | None = None  # training length before stretching, in tokens; null: the task's
    # Turns within the training length above which a frequency is kept, and below which it is
    # divided by s: of yarn, then of llama3.
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    low_frequency: float = 1.0
    high_frequency: float = 4.0
    # Of longrope: what divides each of the d/2 frequencies, and what multiplies q and k.
    short_factor: tuple[float, ...] | None = None
    long_factor: tuple[float, ...] | None = None
    attention_factor: float | None = None

    def __post_init__(self) -> None:
        one_of("model.scaling.method", self.method, METHODS)
        one_of("model.scaling.when", self.when, ("always", "evaluation"))
        if self.factor is not None and not 1 <= self.factor <= LONGEST:
            raise ConfigError(
                f"model.scaling.factor={self.factor} must be from 1 to {LONGEST:g}: the context "
                "grows by it."
            )
        if self.original is not None and self.original < 1:
            raise ConfigError(
                f"model.scaling.original={self.original} must be at least 1: it is a length in "
                "tokens."
            )
        for low, high in (("low_frequency", "high_frequency"), ("beta_slow", "beta_fast")):
            ends = {low: getattr(self, low), high: getattr(self, high)}
            positive("model.scaling", **ends)
            if ends[low] >= ends[high]:
                raise ConfigError(
                    f"model.scaling.{low}={ends[low]} must be below model.scaling.{high}="
                    f"{ends[high]}."
                )
        if self.method == "longrope":
            self._check_longrope()

    def _check_longrope(self) -> None:
        """Raise where keys of longrope are missing, or are no numbers that divide."""
        lists = {"short_factor": self.short_factor, "long_factor": self.long_factor}
        for key, numbers in lists.items():
            if not numbers:
                raise ConfigError(
                    f"model.scaling.method=longrope needs model.scaling.{key}: a number for each "
                    "frequency, which divides it."
                )
            for end in (min(numbers), max(numbers)):
                between("model.scaling", 1 / LONGEST, LONGEST, **{key: end})
        if self.attention_factor is not None:
            between("model.scaling", 0.01, 100, attention_factor=self.attention_factor)

    @property
    def by_length(self) -> bool:
        """Whether the frequencies depend on the length of the row."""
        return self.method in BY_LENGTH

    def refuse_lengths(self) -> None:
        """Raise, for encodings whose layers have positions of their own, which tell no length."""
        if self.by_length:
            raise ConfigError(
                f"model.scaling.method={self.method} reads the length of a row from its positions, "
                "and the layers of this encoding have positions of their own; set "
                "model.scaling.method=yarn, or use model=rope."
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

    unlike_rope: str | None = None
    factors: Tensor  # of LongRoPE, (2, d/2); kept on the device, since to send them stops a GPU

    def __init__(self, arch: Arch, theta: float = 10_000.0, scaling: Scaling | None = None) -> None:
        at_least_one("model", theta=theta)
        super().__init__(arch)
        self.theta = theta
        self.scaling = scaling or Scaling()
        self.by_length = self.scaling.by_length
        if self.scaling.method == "longrope":
            self._check_longrope()
            self.register_buffer("factors", self._factors(), persistent=False)
        if theta == 1 and self.scaling.method == "yarn":
            raise ConfigError(
                "model.scaling.method=yarn needs model.theta above 1: it tells frequencies apart."
            )

    def initial_state(self, positions_BT: Tensor) -> Tensor:
        """(B, T, 1, 2, d/2): cos and sin of every angle, times the factor on q and k."""
        frequencies, magnitude = self.frequencies(positions_BT)
        angles = positions_BT[:, :, None, None] * frequencies
        return torch.stack([angles.cos(), angles.sin()], -2) * magnitude

    def frequencies(self, like: Tensor) -> tuple[Tensor, float]:
        """θ_m in ``like``'s dtype and device, and the factor on q and k, 1 except for YaRN and
        LongRoPE.

        θ_m is (d/2,), or (B, 1, 1, d/2) where it depends on the lengths of the rows, whose
        positions ``like`` then holds, (B, T).
        """
        if self.by_length:
            return self._frequencies_by_length(like)
        d = self.arch.head_dim
        method, s = self.scaling.method, self._factor()
        theta = self.base(s) if method == "ntk" else self.theta
        frequencies = theta ** (-torch.arange(0, d, 2, device=like.device, dtype=like.dtype) / d)
        if method == "linear":
            frequencies = frequencies / s
        if method == "llama3":
            turns = self.original_length * frequencies / (2 * math.pi)
            low, high = self.scaling.low_frequency, self.scaling.high_frequency
            kept = ((turns - low) / (high - low)).clamp(0, 1)
            frequencies = frequencies * kept + frequencies / s * (1 - kept)
        if method != "yarn" or s == 1:
            return frequencies, 1.0
        original = self.original_length
        low, high = (
            d * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(self.theta))
            for turns in (self.scaling.beta_fast, self.scaling.beta_slow)
        )
        low, high = max(math.floor(low), 0), min(math.ceil(high), d - 1)
        index = torch.arange(d // 2, device=like.device, dtype=like.dtype)
        interpolated = ((index - low) / (high - low or 1e-3)).clamp(0, 1)
        frequencies = frequencies * (1 - interpolated) + frequencies / s * interpolated
        return frequencies, 0.1 * math.log(s) + 1

    def _frequencies_by_length(self, positions_BT: Tensor) -> tuple[Tensor, float]:
        scaling, original, d = self.scaling, self.original_length, self.arch.head_dim
        numbers: Any = {"device": positions_BT.device, "dtype": positions_BT.dtype}
        powers = torch.arange(0, d, 2, **numbers) / d
        if scaling.when == "evaluation" and self.training:
            return self.theta**-powers, 1.0
        length_B111 = positions_BT.amax(-1)[..., None, None, None] + 1
        if scaling.method == "dynamic":
            s = self.stretch
            grown = (s * length_B111 / max(original, 1) - (s - 1)).clamp(min=1)
            return self.base(grown) ** -powers, 1.0
        short, long = self.factors.to(**numbers)
        factors = torch.where(length_B111 > original, long, short)
        return 1 / (factors * self.theta**powers), self.attention_factor

    def _factors(self) -> Tensor:
        """LongRoPE's two lists, (2, d/2)."""
        return torch.tensor([self.scaling.short_factor, self.scaling.long_factor])

    def _apply(self, fn: Any, recurse: bool = True) -> "RoPE":
        """Move, and stay in fp32: 16-bit weights do not round LongRoPE's factors."""
        super()._apply(fn, recurse)
        if self.scaling.method == "longrope":
            self.factors = self._factors().to(self.factors.device)
        return self

    def _check_longrope(self) -> None:
        """Raise where the lists do not fit the head, or the original length has no logarithm."""
        pairs = self.arch.head_dim // 2
        for key in ("short_factor", "long_factor"):
            if (given := len(getattr(self.scaling, key))) != pairs:
                raise ConfigError(
                    f"model.scaling.{key} holds {given} numbers, and a head of "
                    f"{self.arch.head_dim} channels has {pairs} frequencies; give {pairs}."
                )
        if self.original_length < 2:
            raise ConfigError(
                f"model.scaling.original={self.original_length} must be at least 2 with "
                "model.scaling.method=longrope, which divides by its logarithm."
            )

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

    def _factor(self) -> float:
        if self.scaling.method == "none" or (self.scaling.when == "evaluation" and self.training):
            return 1.0
        return self.stretch

    def rotate(
        self, q_BTHD: Tensor, k_BTKD: Tensor, state: Tensor | None, features: Features | None = None
    ) -> tuple[Tensor, Tensor]:
        """q · e^{iθ·position}, and k likewise; where heads have states of their own (TAPE), a key
        that several share is turned by that of each.
        """
        assert state is not None
        if self.fuses("rotation", rotation.supports, q_BTHD, k_BTKD, state):
            return rotation.rotated(q_BTHD, k_BTKD, state)
        return turn(q_BTHD, state), turn(for_heads(k_BTKD, state.shape[2]), state)

    def fuses(
        self, what: str, supports: Callable[..., str | None], first: Tensor, *others: Tensor | None
    ) -> bool:
        """Whether a fused kernel computes ``what``: on a GPU, if it ``supports`` these tensors. The
        choice is logged once.
        """
        if not self.fused or first.device.type != "cuda":
            return False
        reason = supports(first, *others)
        say(f"{what} (cuda): {'fused' if reason is None else f'torch, unfused. {reason}'}")
        return reason is None

    def matrices(self, state: Tensor | None) -> tuple[Tensor, Tensor] | None:
        """[[cos, sin], [-sin, cos]] for each m."""
        assert state is not None
        matrices = as_matrices(state)
        return matrices, matrices


def as_matrices(state_BTHCM: Tensor) -> Tensor:
    """Complex (B, T, H, 2, M) as matrices that turn a row vector likewise: (B, T, H, M, 2, 2)."""
    cos, sin = state_BTHCM.unbind(-2)
    return torch.stack([torch.stack([cos, sin], -1), torch.stack([-sin, cos], -1)], -2)


def turn(x_BTHD: Tensor, state_BTHCM: Tensor) -> Tensor:
    """x as complex numbers (x_m, x_{m+d/2}) times the state, in its dtype; returned in x's."""
    real, imaginary = x_BTHD.to(state_BTHCM.dtype).chunk(2, -1)
    cos, sin = state_BTHCM.unbind(-2)
    turned = (
        torch.addcmul(real * cos, imaginary, sin, value=-1),
        torch.addcmul(real * sin, imaginary, cos),
    )
    return torch.cat(turned, -1).to(x_BTHD.dtype)


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
