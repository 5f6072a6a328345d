"""Where a model looks when it adds: the attention of every layer on a solved and a failed sum."""

from typing import Any

import numpy as np
import torch

from tape_exp.data.batch import Batch
from tape_exp.machine.processes import gather
from tape_exp.machine.seeding import RowSampler
from tape_exp.models.trace import trace
from tape_exp.tasks.slices import row_scores


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
