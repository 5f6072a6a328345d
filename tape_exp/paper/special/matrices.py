"""fig_dp_layers and fig_pattern: what positions contribute to logits, and where models look."""

from functools import partial

import numpy as np

from tape_exp.artifacts.cells import Cells
from tape_exp.artifacts.figures.shared import Draw, last_label, title_of
from tape_exp.drawing.matrices import QUANTITIES, Matrix, MatrixName, causal, matrices
from tape_exp.results.record import Record

PRODUCTS = QUANTITIES["products"]


def layers(cells: Cells) -> Draw | None:
    """Draw E·Eᵀ of the first row's first run, a panel for each layer, on one scale."""
    runs = cells.runs(cells.rows[0])
    if not runs:
        return None
    panels = []
    for key, values in runs[0].get("matrices", {}).items():
        name = MatrixName.parse(key)
        if name.kind == "products":
            panels.append(Matrix(f"layer {name.layer}", np.array(values, float), PRODUCTS))
    if not panels:
        return None
    return partial(matrices, panels, title=f"{title_of(cells)}, seed {runs[0].seed}")


def pattern(cells: Cells) -> Draw | None:
    """Draw E·Eᵀ of TAPE and RoPE in the last layer, and the difference of their attention."""
    first: dict[str, Record] = {}
    for row in cells.rows:
        runs = cells.runs(row)
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
    return partial(matrices, panels, title=f"{title_of(cells)}, layer {layer}, seed {tape.seed}")


def matrix_of(run: Record, kind: str, layer: int) -> np.ndarray:
    """Read a matrix of a run, (query, key)."""
    return np.array(run["matrices"][f"{kind}@{layer}"], float)
