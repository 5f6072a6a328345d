"""Where a training first has a number that is not finite."""

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tape_exp.models.decoder import Decoder


def first_seen(decoder: Decoder, forward: Callable[[], Tensor]) -> str:
    """The first place, of those in this order, with such a number: a parameter; what a part of the
    decoder is given or gives in a forward pass, which returns the loss; the gradient of a
    parameter, from the output on. Empty where there is none. Gradients are made anew.
    """
    for name, parameter in decoder.named_parameters():
        if not is_finite(parameter):
            return f"in the parameter {described(decoder, name)}"
    decoder.zero_grad()
    with torch.enable_grad():
        place, loss = first_in_forward_pass(decoder, forward)
        if place:
            return place
        loss.backward()
    lost = ""
    for name, parameter in decoder.named_parameters():
        if parameter.grad is not None and not is_finite(parameter.grad):
            lost = f"in the gradient of the parameter {described(decoder, name)}"
    return lost


def first_in_forward_pass(decoder: Decoder, forward: Callable[[], Tensor]) -> tuple[str, Tensor]:
    """The part of the decoder that first gives such a number, or is given one by what is computed
    between parts, as attention is, or nothing where none does; and the loss.
    """
    found: list[str] = []

    def look(name: str, given: Any, output: Any) -> None:
        if found or (is_finite(given) and is_finite(output)):
            return
        verb = "gives" if is_finite(given) else "is given"
        found.append(f"in what {described(decoder, name)} {verb}")

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


def described(decoder: Decoder, name: str) -> str:
    """The name of a part or parameter, with its layer and the encoding of this: ``layers.0.o``
    (layer 1, with FIRE).
    """
    match = re.match(r"layers\.(\d+)", name)
    if match is None:
        return name
    number = int(match[1])
    block: Any = decoder.layers[number]
    encoding = type(block.position).__name__
    return f"{name} (layer {number + 1}, with {encoding})"


def is_finite(value: Any) -> bool:
    """Whether all numbers of tensors, in tuples too, are finite."""
    if isinstance(value, Tensor):
        return bool(value.isfinite().all())
    if isinstance(value, list | tuple):
        return all(is_finite(each) for each in value)
    return True
