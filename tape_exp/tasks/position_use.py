"""What the positional state of a trained model is, and whether the model needs its updates."""

import itertools
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from tape_exp.machine.seeding import RowSampler
from tape_exp.models.block import Block
from tape_exp.models.decoder import Decoder
from tape_exp.models.positions.tape import TAPE
from tape_exp.models.scores import Scores
from tape_exp.models.trace import rotation_matrices
from tape_exp.tasks.base import Model

# Parts of the update that are left out, as `without` names them: nothing, P, W2, or both
RESETS: dict[str, tuple[str, ...]] = {
    "intact": (),
    "no_attention": ("attention",),
    "no_feed_forward": ("feed_forward",),
    "no_update": ("attention", "feed_forward"),
}


def updates_positions(decoder: Decoder) -> bool:
    """Whether the layers hand on a state that they update: TAPE and its variants."""
    return any(isinstance(block.position, TAPE) for block in decoder.blocks())


@contextmanager
def without(decoder: Decoder, parts: tuple[str, ...]) -> Iterator[None]:
    """The same weights, computed as if those of the named ``parts`` were zero.

    ``attention``: P = 0, nothing that attention averages, or that accumulates over tokens, enters
    the state. ``feed_forward``: W2 = 0. No weight is touched.
    """
    resets: dict[str, Any] = {}
    if "attention" in parts:
        resets |= {"attention": False, "reflects": False}
    if "feed_forward" in parts:
        resets["feed_forward"] = False
    with ExitStack() as stack:
        for block, (name, value) in itertools.product(decoder.blocks(), resets.items()):
            stack.enter_context(patch.object(block.position, name, value, create=True))
        yield


@torch.no_grad()
def state_metrics(model: Model, tokens: Tensor, counts: Tensor) -> dict[str, float]:
    """What each layer's attention sees of the state of TAPE, next to what the first layer of its
    kind sees; nothing of layers of other kinds.

    ``state/size@<layer>``: the mean norm of a block of E, over that of the first layer.
    ``state/turn@<layer>``: the mean angle between a block of E and that of the first layer, in
    radians: where a block is one complex number, by how much its phase has changed. RoPE would have
    1 and 0. ``counts`` says which of the tokens, (B, T), are no padding.
    """
    first: dict[int, Tensor] = {}
    metrics = {}

    def watch(block: Block, scores: Scores, state: Tensor | None) -> None:
        if not isinstance(block.position, TAPE):
            return
        matrices = rotation_matrices(block.position, state)
        assert matrices is not None
        B, H, T, _ = scores.q.shape
        E = matrices[0].expand(B, T, H, -1, -1, -1).flatten(4).double()
        E = E[counts.to(E.device)]
        initial = first.setdefault(block.kind, E)
        size = E.norm(dim=-1).mean() / initial.norm(dim=-1).mean()
        metrics[f"state/size@{block.layer + 1}"] = float(size)
        metrics[f"state/turn@{block.layer + 1}"] = float(angle(E, initial).mean())

    model(tokens, watch=watch, last_only=True, sampler=RowSampler(0, "attention maps"))
    return metrics


def angle(a: Tensor, b: Tensor) -> Tensor:
    """Between vectors, exactly 0 where they agree, which an arc cosine is not."""
    a, b = (torch.nn.functional.normalize(x, dim=-1) for x in (a, b))
    return 2 * torch.atan2((a - b).norm(dim=-1), (a + b).norm(dim=-1))
