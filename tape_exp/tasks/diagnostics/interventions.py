"""What a trained model needs of the updates of its positional state: parts of them are left out.

An intervention is a context in which a decoder of the same weights computes something else. There
are two kinds. :func:`without` leaves out parts of each layer's update, so that a changed state is
handed on. :func:`with_factors` leaves the state as it is, and changes only what queries and keys
are turned by: in TAPE a block of the state of layer l is one complex number, E_l = E_1 c with
c = r e^{iφ}, and parts of c are left out.

Within the context the layers' encodings have other attributes (:func:`attributes_replaced`); no
weight is touched.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tape_exp.models.block import Block
from tape_exp.models.decoder import Decoder
from tape_exp.models.places import Places
from tape_exp.models.positions.base import Rotated
from tape_exp.models.positions.tape import TAPE
from tape_exp.tasks.base import Model
from tape_exp.tasks.diagnostics.positional_state import (
    complex_numbers,
    factors,
    has_factors,
    logarithm,
)

# Name -> parts of the update that are left out, as `without` names them: nothing, P, W2, or both
RESETS: dict[str, tuple[str, ...]] = {
    "intact": (),
    "no_attention": ("attention",),
    "no_feed_forward": ("feed_forward",),
    "no_update": ("attention", "feed_forward"),
}
# Name -> what c, (B, T, H, M), is replaced by, given its mean over tokens, (H, M)
FACTORS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "gain": lambda c, mean: c.abs() + 0j,
    "turn": lambda c, mean: c.sgn(),
    "turn_mean_gain": lambda c, mean: c.sgn() * mean.abs(),
    "static": lambda c, mean: mean.expand_as(c),
}
INTERVENTIONS = (*RESETS, *FACTORS)
Contexts = dict[str, Callable[[], AbstractContextManager]]
"""Name of an intervention -> what begins it."""
MaskedBatches = Iterable[tuple[Tensor, Tensor]]
"""Tokens, (B, T), and which of them are no padding."""


def interventions(model: Model, decoder: Decoder, rows: MaskedBatches) -> Contexts:
    """Return what :data:`INTERVENTIONS` names, as far as the decoder has it. Means over tokens are
    those of ``rows``.
    """
    contexts: Contexts = {}
    for name, parts in RESETS.items():
        contexts[name] = partial(without, decoder, parts)
    if any(map(has_factors, decoder.blocks())):
        means = mean_factors(model, rows)
        for name in FACTORS:
            contexts[name] = partial(with_factors, decoder, name, means)
    return contexts


@contextmanager
def attributes_replaced(module: nn.Module, **values: Any) -> Iterator[None]:
    """Give a module other attributes of its own, and take them back at the end.

    A method of its class is replaced too: the module's own attribute goes before it.
    """
    own = vars(module)
    before = {name: own[name] for name in values if name in own}
    own.update(values)
    try:
        yield
    finally:
        for name in values:
            del own[name]
        own.update(before)


@contextmanager
def without(decoder: Decoder, parts: tuple[str, ...]) -> Iterator[None]:
    """Compute with the same weights as if those of the named parts of the update were zero.

    ``attention``: P = 0, nothing that attention averages, or that accumulates over tokens, enters
    the state. ``feed_forward``: W2 = 0.
    """
    off: dict[str, bool] = {}
    if "attention" in parts:
        off["attention"] = False
        off["reflects"] = False  # of the variant whose reflections accumulate over tokens
    if "feed_forward" in parts:
        off["feed_forward"] = False
    with ExitStack() as stack:
        for block in decoder.blocks():
            if isinstance(block.position, TAPE):
                stack.enter_context(attributes_replaced(block.position, **off))
        yield


@contextmanager
def with_factors(decoder: Decoder, name: str, means: Mapping[int, Tensor]) -> Iterator[None]:
    """Multiply queries and keys in every layer by E_1 c' in place of E_l = E_1 c:

    - ``gain``: c' = r, the positions of the first layer, scaled by the context;
    - ``turn``: c' = e^{iφ}, turned by the context and of their first size;
    - ``turn_mean_gain``: e^{iφ} times the mean of r over tokens;
    - ``static``: the mean of c over tokens, the same for every token of every text.

    The state that layers update and hand on is still E_l. ``means`` are of each layer, from 0.
    """
    initial: dict[int, Tensor] = {}  # E_1 of each kind of layer, of the present forward pass

    def rotate_of(block: Block) -> Callable[..., Rotated]:
        rotate = block.position.rotate

        def changed(q: Tensor, k: Tensor, x: Tensor, state: Tensor, places: Places) -> Rotated:
            E = complex_numbers(state)
            if block.is_first_of_kind:
                initial[block.kind] = E
            first = initial[block.kind]
            changed_E = first * FACTORS[name](E / first, means[block.layer])
            return rotate(q, k, x, torch.view_as_real(changed_E).movedim(-1, -2), places)

        return changed

    with ExitStack() as stack:
        for block in filter(has_factors, decoder.blocks()):
            stack.enter_context(attributes_replaced(block.position, rotate=rotate_of(block)))
        yield


@torch.no_grad()
def mean_factors(model: Model, rows: MaskedBatches) -> dict[int, Tensor]:
    """Return the mean of c over all tokens of ``rows``, by layer, from 0: (H, M), with 1 for H
    where all heads agree.
    """
    sizes: dict[int, Tensor] = {}
    directions: dict[int, Tensor] = {}
    count = 0
    for tokens, counts in rows:
        count += int(counts.sum())
        for layer, c_NHM in factors(model, tokens, counts).items():
            sizes[layer] = sizes.get(layer, 0) + logarithm(c_NHM).sum(0)
            directions[layer] = directions.get(layer, 0) + c_NHM.sgn().sum(0)
    means = {}
    for layer, log_r in sizes.items():
        means[layer] = mean_factor(log_r / count, directions[layer] / count)
    return means


def mean_factor(log_r: Tensor, direction: Tensor) -> Tensor:
    """Return the mean of c over tokens from those of log r and e^{iφ}: their geometric mean in
    size, and the direction of the mean of their directions.
    """
    return log_r.exp() * direction.sgn()
