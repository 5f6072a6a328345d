"""fig_dp_layers and fig_pattern: what positions contribute to logits, and where models look."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from tape_exp.artifacts.cells import Cells
from tape_exp.artifacts.figures import Draw, last_label, title_of
from tape_exp.drawing.matrices import Matrix, MatrixName, causal, matrices
from tape_exp.results.record import Record

PRODUCTS = "E·Eᵀ"


def layers(view: Cells, spec: Mapping[str, Any]) -> Draw | None:
    """Draw E·Eᵀ of the first row's first run, a panel for each layer, on one scale."""
    runs = view.runs(view.rows[0])
    if not runs:
        return None
    panels = []
    for key, values in runs[0].get("matrices", {}).items():
        name = MatrixName.parse(key)
        if name.kind == "products":
            panels.append(Matrix(f"layer {name.layer}", np.array(values, float), PRODUCTS))
    if not panels:
        return None
    return partial(matrices, panels, title=f"{title_of(view)}, seed {runs[0].seed}")


def pattern(view: Cells, spec: Mapping[str, Any]) -> Draw | None:
    """Draw E·Eᵀ of TAPE and RoPE in the last layer, and the difference of their attention."""
    first: dict[str, Record] = {}
    for row in view.rows:
        runs = view.runs(row)
        if runs:
            first[last_label(row)] = runs[0]
    if not {"tape", "rope"} <= first.keys():
        return None
    tape = first["tape"]
    rope = first["rope"]
    layer = max(MatrixName.parse(key).layer for key in tape["matrices"])
    attention = matrix_of(tape, "attention", layer) - matrix_of(rope, "attention", layer)
    panels = [
        Matrix("E·Eᵀ of TAPE", matrix_of(tape, "products", layer), PRODUCTS),
        Matrix("E·Eᵀ of RoPE", matrix_of(rope, "products", layer), PRODUCTS),
        Matrix("attention, TAPE − RoPE", causal(attention), "difference"),
    ]
    return partial(matrices, panels, title=f"{title_of(view)}, layer {layer}, seed {tape.seed}")


def matrix_of(run: Record, kind: str, layer: int) -> np.ndarray:
    """Read a matrix of a run, (query, key)."""
    return np.array(run["matrices"][f"{kind}@{layer}"], float)
