"""An encoding by itself: what it begins with, what it keeps, how many positions it tells apart.

Each docstring of a situation is one line of the table in the docs.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tape_exp.machine.seeding import RowSampler
from tape_exp.models.biases import ByDistance
from tape_exp.models.conformance.oracle import (
    FP32,
    Outcome,
    gap,
    random_decoder,
    require,
    rows,
)
from tape_exp.models.decoder import Decoder
from tape_exp.models.layers import Kinds, kinds_of
from tape_exp.models.places import Places
from tape_exp.models.positions.base import PositionEncoding, construct
from tape_exp.models.sections import ARCH, Model

MANY = 8192  # positions; bf16 tells 897 of them apart


def constructor_values(model: Model) -> Outcome:
    """What the constructor sets is what training begins with, whatever torch's global seed is."""
    kinds = kinds_of(model)
    _require_independent_of_global_seed(kinds)
    overriding: set[str] = set()
    decoder = Decoder(replace(ARCH, layers=len(kinds)), kinds)
    for layer, (block, kind) in enumerate(zip(decoder.blocks(), kinds, strict=True)):
        position = block.position
        if type(position).init_weights is not PositionEncoding.init_weights:
            overriding.add(type(position).__name__)
            continue
        fresh = construct(kind.position, decoder.arch, 0, f"layers.{layer}.position")
        constructed = dict(fresh.named_parameters())
        for name, parameter in position.named_parameters():
            same = constructed[name].isnan().all() or constructed[name].equal(parameter)
            require(same, f"{name} does not begin as the constructor set it.")
    if not overriding:
        return Outcome()
    return Outcome(remark=f"init_weights of {' and '.join(sorted(overriding))} sets them")


def _require_independent_of_global_seed(kinds: Kinds) -> None:
    weights = []
    for seed in (1, 2):
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            weights.append(Decoder(ARCH, kinds).state_dict())
    changed = [name for name in weights[0] if not weights[0][name].equal(weights[1][name])]
    require(not changed, f"{changed[:1]} depends on torch's global generator; draw from the given.")


def as_state(state: Any) -> Tensor:
    """Return what ``start`` or ``update`` gave, as real numbers; require that it is one tensor."""
    require(
        isinstance(state, Tensor),
        f"a state is a {type(state).__name__}; it is one tensor: stack or concatenate its parts.",
    )
    tensor: Tensor = state
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


@torch.no_grad()
def many_positions(model: Model) -> Outcome:
    """The first state tells 8192 positions apart, or all of a table's; a bias of as many distances
    is that of fp64.
    """
    decoder = random_decoder(model, replace(ARCH, max_length=MANY, train_length=MANY))
    many = min(MANY, decoder.reach or MANY)
    places = Places.at(torch.arange(many, dtype=torch.float32)[None], consecutive=True)
    worst = 0.0
    for encoding in decoder.encodings():
        state = encoding.start(places)
        if state is not None:
            different = as_state(state).reshape(many, -1).unique(dim=0).shape[0]
            require(different == many, f"start tells {different} of {many} positions apart.")
        for bias in _biases_by_distance(encoding):
            worst = max(worst, _distance_error(bias, places.positions[0]))
    return Outcome(worst, FP32)


def _biases_by_distance(encoding: PositionEncoding) -> list[ByDistance]:
    """Return the biases of an encoding that depend only on distances, as asked for 4 tokens."""
    few = Places.at(torch.arange(4, dtype=torch.float32)[None], consecutive=True)
    heads = ARCH.key_heads if encoding.grouped_keys else ARCH.heads
    q = torch.zeros(1, 4, ARCH.heads, ARCH.head_dim)
    k = torch.zeros(1, 4, heads, ARCH.head_dim)
    biases = encoding.bias(q, k, torch.ones(1, 4, ARCH.width), encoding.start(few), few)
    listed = biases if isinstance(biases, list) else [biases]
    return [bias for bias in listed if isinstance(bias, ByDistance)]


def _distance_error(bias: ByDistance, distances: Tensor) -> float:
    """Return the error of a bias over its size, and require that it is allowed."""
    table = bias.at(distances)
    exact = bias.at(distances.double())
    error = gap(table, exact) / max(float(exact.abs().max()), 1e-9)
    require(error < FP32, f"bias is {error:.1g} of its size from that in fp64.")
    if bias.slopes is not None:
        straight = table.equal(-bias.slopes[:, None] * distances)
        require(straight, "a bias by distance is not -slopes · distance.")
    return error


@torch.no_grad()
def reloaded(model: Model) -> Outcome:
    """Weights are all that a run keeps: a model of another seed that loads them is the same one."""
    decoders = [random_decoder(model, seed=seed).eval() for seed in (1, 2)]
    decoders[1].load_state_dict(decoders[0].state_dict())
    logits = [decoder(rows(2, 24), sampler=RowSampler(5)) for decoder in decoders]
    difference = gap(*logits) / float(logits[0].abs().max())
    require(
        difference < FP32,
        f"logits change by {difference:.2g} of their size; what a constructor draws is kept in a "
        "parameter or by register_buffer.",
    )
    return Outcome(difference, FP32)


@torch.no_grad()
def shifted_positions(model: Model) -> Outcome:
    """Whether logits change when all positions are shifted, in fp64: a remark, never a failure."""
    decoder = random_decoder(model).double()
    tokens = rows(2, 24)
    positions = torch.arange(24, dtype=torch.float64)[None]
    offsets = (3.0, 17.25, 1000.5) if decoder.reach is None else (3.0, 17.0, 24.0)
    base = decoder(tokens, positions_BT=positions)
    change = max(gap(decoder(tokens, positions_BT=positions + x), base) for x in offsets)
    what = "distances only" if change < 1e-9 else "the positions themselves"
    return Outcome(change, remark=f"logits depend on {what}")
