"""The interface of a positional encoding, and its default: none (NoPE)."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from tape_exp.machine.seeding import seed_for
from tape_exp.models.biases import Bias
from tape_exp.models.places import Places
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.schema import Arch

Biases = Bias | list[Bias] | None
Rotated = tuple[Tensor, Tensor]  # queries and keys


@dataclass(frozen=True)
class LayerOutputs:
    """What a layer has made of its tokens, each (B, T, C): what queries and keys are made of, which
    is 0 for padding, and what attention and the MLP add to the residual stream.
    """

    x: Tensor
    attention: Tensor
    mlp: Tensor


class PositionEncoding(nn.Module):
    """NoPE, no positional encoding at all: order is seen only through the causal mask (Kazemnejad
    et al., 2023). It is also the interface of every other encoding, which overrides what differs:

    - ``embed``: what is added to the input (sinusoidal, learned, Abacus),
    - ``start``: the state that the first layer sees (RoPE: rotations; TAPE: E),
    - ``rotate``: queries and keys before the dot product (RoPE, xPos, TAPE, PoPE),
    - ``bias``: what is added to the scaled logits (ALiBi, FIRE, CoPE, PaTH),
    - ``carry`` and ``update``: what attention averages besides the values, and the state of the
      next layer (TAPE).

    Each of them is also given the :class:`~tape_exp.models.places.Places` of the tokens. Every
    layer owns one instance, so that trainable parts are per layer; ``embed`` and ``start`` are
    asked of the first layer (of a pattern: of each kind). Whatever the model's precision, these
    methods get fp32 (or fp64) and no autocast reaches them, nor what a bias computes later; buffers
    keep their precision, and parameters may be of 16 bits, which
    :func:`~tape_exp.models.precision.precise` widens. A parameter ``embedding`` is kept in the
    first layer only; those in ``update_net`` are idle in the last, whose state nobody reads.

    Shape suffixes: B batch, T tokens, S keys (more than T in cached decoding), H heads, K heads of
    keys and values, C width, D head dimension.
    """

    # A token leaves to later ones its key, its value and what `carry` gives. Where keys change with
    # later tokens, or sums over the past are needed, decoding computes all anew.
    cacheable = True
    # `rotate` and `bias` take keys of K heads, which is cheaper than one for each query head.
    grouped_keys = False
    # How many positions there are, where a table holds them; no row is longer.
    reach: int | None = None
    # What a token sees depends on `places.lengths`: on how long its row is.
    reads_length = False
    # `arch.digits` are the task's; others are given none. It is then no rival of the others.
    knows_digits = False

    def __init__(self, arch: Arch) -> None:
        super().__init__()
        self.arch = arch

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """Convert, as ``to`` and ``bfloat16`` ask. Buffers keep their precision: a table of
        frequencies in 16 bits would be another one, and complex numbers without their imaginary
        part too.
        """
        before_all = [(module, dict(module._buffers)) for module in self.modules()]
        super()._apply(fn, recurse)
        for module, buffers in before_all:
            for name, before in buffers.items():
                after = module._buffers[name]
                if before is not None and after is not None and rounds(before.dtype, after.dtype):
                    module._buffers[name] = before.to(after.device)
        return self

    def init_weights(self, generator: torch.Generator) -> None:
        """Fill what the constructor left as ``torch.empty`` gave it (there, NaN) with N(0, 0.02).
        All else stays as constructed; what the constructor drew was a function of the run's seed.
        """
        for parameter in self.parameters():
            if parameter.ndim > 1 and not parameter.is_meta and parameter.isnan().all():
                nn.init.normal_(parameter, std=0.02, generator=generator)

    def drop_embedding(self) -> None:
        """Drop a parameter ``embedding``, in every layer but the first."""
        if hasattr(self, "embedding"):
            del self.embedding

    def freeze_update(self) -> None:
        """Freeze the parameters of ``update_net``, in the last layer: they are idle, but counted in
        published sizes.
        """
        for name, parameter in self.named_parameters():
            parameter.requires_grad_("update_net." not in name)

    def require_weights(self) -> None:
        """Raise where a parameter has no value."""
        for name, parameter in self.named_parameters():
            if not parameter.is_meta and parameter.isnan().any():
                raise ConfigError(
                    f"{type(self).__name__} leaves its parameter {name} without values; set them "
                    "in the constructor or in init_weights."
                )

    def require(self, length: int) -> None:
        """Raise where a row is longer than the table of positions."""
        if self.reach is not None and length > self.reach:
            raise ConfigError(
                f"{type(self).__name__} has a table of {self.reach} positions, and there are "
                f"{length} tokens; of model=learned model.length={length} would do."
            )

    def embed(self, x_BTC: Tensor, places: Places) -> Tensor:
        """Return the input, with what positions or ids add to it; a token's part depends on no
        later token.
        """
        return x_BTC

    def start(self, places: Places) -> Tensor | None:
        """Return the state that the first layer sees, a row of it for each of the T tokens: (1 or
        B, T, …).
        """
        return None

    def rotate(
        self, q_BTHD: Tensor, k_BTHD: Tensor, x_BTC: Tensor, state: Any, places: Places
    ) -> Rotated:
        """Return queries and keys as they enter the dot product, by the state of these tokens and
        the x that they are made of, 0 for padding. Both may become wider; their logits are then
        divided by the root of the new width.
        """
        return q_BTHD, k_BTHD

    def bias(
        self, q_BTHD: Tensor, k_BSHD: Tensor, x_BTC: Tensor, state: Any, places: Places
    ) -> Biases:
        """Return what is added to q·k / √D, with q and k rotated; a pair depends on no token after
        its query. q, x and the state are of the last T of the S tokens.
        """
        return None

    def carry(self, state: Any, places: Places) -> Tensor | None:
        """Return what attention averages besides the values: (B or 1, T, H or 1, E)."""
        return None

    def update(
        self, state: Any, averaged_BTHE: Tensor | None, tokens: LayerOutputs, places: Places
    ) -> Any:
        """Return the next layer's state, from what :meth:`carry` gave, averaged, and the tokens."""
        return state


def rounds(before: torch.dtype, after: torch.dtype) -> bool:
    """Say whether numbers become 16-bit ones, or complex ones real."""
    narrower = after.itemsize < min(before.itemsize, 4)
    return narrower or (before.is_complex and not after.is_complex)


class EmptyIsNaN(TorchFunctionMode):
    """What ``torch.empty`` gives is NaN instead of what memory held, so that it can be found."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        if func in (torch.empty, torch.empty_like, Tensor.new_empty) and made.is_floating_point():
            made.detach().fill_(math.nan)
        return made


def construct(
    make: Callable[[Arch], PositionEncoding], arch: Arch, seed: int, name: str
) -> PositionEncoding:
    """Return the encoding that ``make`` makes. What its constructor draws from torch's global
    generator is a function of the seed and the name of the layer, and what it leaves unset is NaN.
    Only one that declares ``knows_digits`` is told which tokens are digits.
    """
    if not getattr(make, "knows_digits", False):
        arch = replace(arch, digits=())
    with torch.random.fork_rng(devices=[]), EmptyIsNaN():
        torch.default_generator.manual_seed(seed_for(seed, "construct", name))
        return make(arch)


def for_heads(x_BTKD: Tensor, heads: int) -> Tensor:
    """Repeat each key head for the query heads that it serves: (B, T, heads, D)."""
    groups = heads // x_BTKD.shape[2]
    return x_BTKD.repeat_interleave(groups, 2) if groups > 1 else x_BTKD
