"""A loss or weight that became NaN or infinite: the error, and where it was first seen."""

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tape_exp.models.decoder import Decoder
from tape_exp.settings.schema import Optim


class NotFiniteError(RuntimeError):
    """The loss became NaN or infinite."""


def advice(optim: Optim) -> str:
    """Say what helps against numbers that are not finite."""
    return (
        f"Lower task.optim.lr={optim.lr} or task.optim.clip={optim.clip}, or train with "
        "trainer.precision=32-true; `tape-exp check model=…` tests an encoding of your own."
    )


def first_seen(decoder: Decoder, forward: Callable[[], Tensor]) -> str:
    """Find the first place with a number that is not finite; empty where there is none.

    It is looked for in this order: in the parameters; in what a part of the decoder is given or
    gives in a forward pass, which returns the loss; in the gradients of the parameters, from the
    output on. Gradients are made anew.
    """
    for name, parameter in decoder.named_parameters():
        if not is_finite(parameter):
            return f"in the parameter {describe_part(decoder, name)}"
    decoder.zero_grad()
    with torch.enable_grad():
        place, loss = first_in_forward_pass(decoder, forward)
        if place:
            return place
        loss.backward()
    lost = ""
    for name, parameter in decoder.named_parameters():
        if parameter.grad is not None and not is_finite(parameter.grad):
            lost = f"in the gradient of the parameter {describe_part(decoder, name)}"
    return lost


def first_in_forward_pass(decoder: Decoder, forward: Callable[[], Tensor]) -> tuple[str, Tensor]:
    """Find the part of the decoder that first gives such a number, or is given one by what is
    computed between parts, as attention is; return it, or nothing where none does, and the loss.
    """
    found: list[str] = []

    def look(name: str, given: Any, output: Any) -> None:
        if found:
            return
        if not is_finite(given):
            found.append(f"in what {describe_part(decoder, name)} is given")
        elif not is_finite(output):
            found.append(f"in what {describe_part(decoder, name)} gives")

    def hook(name: str) -> Callable[..., None]:
        return lambda _, given, output: look(name, given, output)

    handles = [
        part.register_forward_hook(hook(name)) for name, part in decoder.named_modules() if name
    ]
    try:
        loss = forward()
    finally:
        for handle in handles:
            handle.remove()
    return found[0] if found else "", loss


def describe_part(decoder: Decoder, name: str) -> str:
    """Name a part or parameter, with its layer and the encoding of this: ``layers.0.o (layer 1,
    with FIRE)``.
    """
    match = re.match(r"layers\.(\d+)", name)
    if match is None:
        return name
    number = int(match[1])
    block: Any = decoder.layers[number]
    encoding = type(block.position).__name__
    return f"{name} (layer {number + 1}, with {encoding})"


def is_finite(value: Any) -> bool:
    """Say whether all numbers of tensors, in tuples too, are finite."""
    if isinstance(value, Tensor):
        return bool(value.isfinite().all())
    if isinstance(value, list | tuple):
        return all(is_finite(each) for each in value)
    return True
