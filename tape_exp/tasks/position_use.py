"""What a trained model does with positions: where it looks when it adds, what its positional state
is, and whether it needs that.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tape_exp.data.batch import Batch
from tape_exp.machine.processes import gather
from tape_exp.machine.seeding import RowSampler
from tape_exp.models.attention import Scores
from tape_exp.models.block import Block
from tape_exp.models.decoder import Decoder
from tape_exp.models.positions.tape import TAPE
from tape_exp.models.trace import rotation_matrices, trace
from tape_exp.tasks.base import Model
from tape_exp.tasks.slices import row_scores

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
    of_layers = [vars(block.position) for block in decoder.blocks()]
    before = [{name: own[name] for name in resets if name in own} for own in of_layers]
    for own in of_layers:
        own.update(resets)
    try:
        yield
    finally:
        for own, values in zip(of_layers, before, strict=True):
            for name in resets:
                del own[name]
            own.update(values)


@torch.no_grad()
def state_metrics(model: Model, tokens: Tensor, counts: Tensor) -> dict[str, float]:
    """What each layer's attention sees of the state of TAPE, next to what the first layer of its
    kind sees; nothing of layers of other kinds.

    ``state/size@<layer>``: the mean norm of a block of E, over that of the first layer.
    ``state/turn@<layer>``: the mean angle between a block of E and that of the first layer, in
    radians: where a block is one complex number, by how much its phase has changed. RoPE would have
    1 and 0.

    Args:
        tokens: (B, T), the batch that is looked at.
        counts: (B, T), which of them are no padding.
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

    model(tokens, watch=watch, last_only=True, sampler=positions_of_row(0))
    return metrics


def angle(a: Tensor, b: Tensor) -> Tensor:
    """Between vectors, exactly 0 where they agree, which an arc cosine is not."""
    a, b = (torch.nn.functional.normalize(x, dim=-1) for x in (a, b))
    return 2 * torch.atan2((a - b).norm(dim=-1), (a + b).norm(dim=-1))


@torch.no_grad()
def solved_and_failed(model: Any, batch: Batch) -> dict[str, int]:
    """The first rows of a batch whose answer is right, and wrong; without a kind that is not there.

    Rows have the positions that :func:`maps_of_row` gives them. Every process has the answer of the
    first one: those that share a model pass through it equally often.
    """
    logits = model(batch["inputs"], sampler=positions_of_row(0))
    right = row_scores(logits, batch["labels"].to(logits.device))["exact_match"].tolist()
    kinds = {"solved": True, "failed": False}
    found = {name: right.index(kind) for name, kind in kinds.items() if kind in right}
    return gather(found)[0]


def maps_of_row(model: Any, batch: Batch, row: int, end: int) -> dict[str, np.ndarray]:
    """``attention@<layer>`` (T, T) in one row of a batch, the mean over heads, and of an encoding
    with a state ``products@<layer>``, its E·Eᵀ summed over heads; NaN from ``end`` on.
    """
    tokens, maps = batch["inputs"][row : row + 1].to(model.device), {}
    for layer, of_layer in trace(model.decoder, tokens, sampler=positions_of_row(row)).items():
        maps[f"attention@{layer}"] = of_layer.attention[0].mean(0)
        if of_layer.products is not None:
            maps[f"products@{layer}"] = of_layer.products[0]
    found = {name: one.float().cpu().numpy().copy() for name, one in maps.items()}
    for one in found.values():
        one[end:], one[:, end:] = np.nan, np.nan
    return found


def positions_of_row(row: int) -> RowSampler:
    """For encodings that sample positions: those of row ``row`` and the following ones."""
    return RowSampler(0, "attention maps", first=row)
