"""fig_dp_layers and fig_pattern: what positions contribute to logits, and where models look."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from tape_exp.artifacts.cells import Cells
from tape_exp.artifacts.figures import Draw, last_label, title_of
from tape_exp.drawing import plots
from tape_exp.results.record import Record


def layers(view: Cells, spec: Mapping[str, Any]) -> Draw | None:
    """Draw E·Eᵀ of the first row's first run, a panel for each layer, on one scale."""
    runs = view.runs(view.rows[0])
    if not runs:
        return None
    panels = {}
    for name, matrix in runs[0].get("matrices", {}).items():
        kind, _, layer = name.partition("@")
        if kind == "products":
            panels[f"layer {layer}"] = np.array(matrix, float)
    if not panels:
        return None
    title = f"{title_of(view)}, seed {runs[0].seed}"
    return partial(plots.matrices, panels, title=title, label=dict.fromkeys(panels, "E·Eᵀ"))


def pattern(view: Cells, spec: Mapping[str, Any]) -> Draw | None:
    """Draw E·Eᵀ of TAPE and RoPE in the last layer, and the difference of their attention."""
    first: dict[str, Record] = {}
    for row in view.rows:
        runs = view.runs(row)
        if runs:
            first[last_label(row)] = runs[0]
    if not {"tape", "rope"} <= first.keys():
        return None
    layer = max(int(name.split("@")[1]) for name in first["tape"]["matrices"])

    def matrix(model: str, kind: str) -> np.ndarray:
        return np.array(first[model]["matrices"][f"{kind}@{layer}"], float)

    difference = "attention, TAPE − RoPE"
    panels = {
        "E·Eᵀ of TAPE": matrix("tape", "products"),
        "E·Eᵀ of RoPE": matrix("rope", "products"),
        difference: plots.causal(matrix("tape", "attention") - matrix("rope", "attention")),
    }
    label = {**dict.fromkeys(panels, "E·Eᵀ"), difference: "difference"}
    title = f"{title_of(view)}, layer {layer}, seed {first['tape'].seed}"
    return partial(plots.matrices, panels, title=title, label=label)
