"""Small random decoders, and the oracle that they are compared with: the explicit softmax in fp64
on each row alone.
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from tape_exp.machine.seeding import RowSampler
from tape_exp.models.decoder import Decoder, run_block
from tape_exp.models.layers import kinds_of
from tape_exp.models.positions.base import PositionEncoding
from tape_exp.models.sections import ARCH, LONG, Model
from tape_exp.settings.schema import Arch

FP32 = 1e-4  # the difference that is allowed, over the largest logit


class NonconformingError(AssertionError):
    """An encoding does not do what every one must, in one sentence."""


class NotAskedError(Exception):
    """A situation that an encoding cannot be in, and why, in one sentence."""


@dataclass(frozen=True)
class Outcome:
    """How far an encoding is from the oracle and may be, None where nothing is measured; and a
    remark.
    """

    difference: float | None = None
    allowed: float | None = None
    remark: str = ""


def require(holds: Any, sentence: str) -> None:
    """Raise :class:`NonconformingError` unless ``holds``."""
    if not holds:
        raise NonconformingError(sentence)


def random_decoder(model: Model, arch: Arch = ARCH, std: float = 0.3, **options: Any) -> Decoder:
    """Return a decoder with random positional parameters, whose attention is far from uniform."""
    layers = max(arch.layers, len(model.get("layers", [])))  # one for each entry of a pattern
    decoder = Decoder(replace(arch, layers=layers), kinds_of(model), **options)
    randomise(decoder, std)
    return decoder


def randomise(model: nn.Module, std: float = 0.3, seed: int = 1) -> None:
    """Give every positional parameter a random value, so that zero-initialised parts take part, and
    the other matrices a size at which attention is far from uniform.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, module in model.named_modules():
            if isinstance(module, nn.Linear) and ".position." not in name:
                module.weight.mul_(10)
            if isinstance(module, PositionEncoding):
                for parameter in module.parameters():
                    noise = torch.randn(parameter.shape, generator=generator)
                    parameter.add_(std * noise.to(parameter))


def rows(count: int, length: int) -> Tensor:
    """Return rows of random tokens, (count, length)."""
    return torch.randint(0, ARCH.vocab, (count, length), generator=torch.Generator().manual_seed(0))


def gap(a: Tensor, b: Tensor) -> float:
    """Return the largest difference of two tensors. Raises :class:`NonconformingError` where there
    is none, since a number is not finite: no NaN is the larger of two numbers for Python.
    """
    difference = float((a - b).detach().abs().max())
    require(math.isfinite(difference), "a logit, a bias or a gradient is NaN or infinite.")
    return difference


def oracle(decoder: Decoder) -> Decoder:
    """Return the same decoder in fp64, with the explicit softmax; nothing of it is compiled."""
    exact = copy.deepcopy(decoder).double()
    exact._run = run_block
    for block in exact.blocks():
        block.backend = "explicit"
    return exact


def alone(decoder: Decoder, tokens: Sequence[Tensor], positions: Sequence[Tensor]) -> list[Tensor]:
    """Return the oracle's logits of each row, (T, V), without other rows, padding and cache."""
    exact = oracle(decoder)
    logits = []
    for n, (row, places) in enumerate(zip(tokens, positions, strict=True)):
        sampler = RowSampler(5, first=n)
        logits.append(exact(row[None], positions_BT=places[None].double(), sampler=sampler)[0])
    return logits


def apart(computed: Sequence[Tensor], expected: Sequence[Tensor]) -> Outcome:
    """Return the largest difference of logits over the largest of them, and require that it is
    rounding.
    """
    largest = max(float(logits.detach().abs().max()) for logits in expected)
    difference = max(map(gap, computed, expected)) / largest
    require(difference < FP32, f"logits are {difference:.2g} of their size from the oracle's.")
    return Outcome(difference, FP32)


def one_row_each(decoder: Decoder, length: int = LONG) -> tuple[Tensor, list[Tensor]]:
    """Return three whole rows of tokens, and the positions that the decoder gives each."""
    tokens = rows(3, length)
    positions = decoder.positions(3, length, tokens.device, RowSampler(5)).expand(3, -1)
    return tokens, [*positions]
