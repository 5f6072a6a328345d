"""Pictures of all pairs of tokens: dot products of positions, attention and its differences."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tape_exp.drawing.heatmap import COLOURS, new_figure, save

SIGNED_COLOURS = "RdBu_r"
ACROSS = 4  # panels in a row
# of the entries, where the others are so far above that a scale up to them would show nothing
SHOWN = 0.99


@dataclass(frozen=True)
class Patterns:
    """A picture of matrices, as :func:`draw_patterns` takes them.

    Args:
        suffix: what the name of its file ends with; None: it is drawn on the page of ``make
            report`` only.
    """

    title: str
    panels: dict[str, np.ndarray]
    suffix: str | None = ""
    signed: Collection[str] = ()
    causal: Collection[str] = ()
    shared: bool | None = None
    label: str = ""

    def draw(self, path: Path, mark: str = "") -> Path:
        """Write the picture as a PNG, whole or not at all."""
        options: Any = {"shared": self.shared, "label": self.label, "mark": mark}
        return draw_patterns(self.panels, path, self.title, self.signed, self.causal, **options)


def draw_patterns(
    panels: dict[str, np.ndarray],
    path: Path,
    title: str | None = None,
    signed: Collection[str] = (),
    causal: Collection[str] = (),
    shared: bool | None = None,
    label: str = "",
    mark: str = "",
) -> Path:
    """Write a PNG: one panel a name, queries downward, keys to the right, positions from 0.

    A scale goes from the smallest value to the largest. Where few entries are far above all others,
    as in attention, it ends at the 99th percentile and its bar is pointed. The file appears whole
    or not at all.

    Args:
        panels: (T, T) each: query, key. NaN stays blank.
        signed: names of panels whose values are differences: scales are symmetric and white is 0.
        causal: names of panels that leave keys after the query blank, as they are in attention.
        shared: one scale for all panels, else one each; None: one each where there are differences.
        label: of the colour bar.
    """
    shared = not signed if shared is None else shared
    drawn = {name: visible(values, name in causal) for name, values in panels.items()}
    one_scale = colour_range(
        np.concatenate([values.ravel() for values in drawn.values()]), bool(signed)
    )
    rows, columns = -(-len(panels) // ACROSS), min(len(panels), ACROSS)
    figure = new_figure(
        (2.6 if shared else 3.3) * columns + 1.2, 2.9 * rows + 0.1, title, "compressed"
    )
    axes = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    image: Any = None
    for number, (axis, (name, values)) in enumerate(zip(axes.flat, drawn.items(), strict=False)):
        low, high, extend = one_scale if shared else colour_range(values, name in signed)
        image = axis.imshow(
            values, cmap=SIGNED_COLOURS if name in signed else COLOURS, vmin=low, vmax=high
        )
        axis.set_title(name)
        axis.locator_params(nbins=5, integer=True)
        axis.label_outer()
        ends_row = number == len(drawn) - 1 or number % ACROSS == ACROSS - 1
        if number % ACROSS == 0:
            axis.set_ylabel("query position")
        if number + ACROSS >= len(drawn):
            axis.set_xlabel("key position")
            axis.tick_params(labelbottom=True)
        if not shared:
            figure.colorbar(
                image,
                ax=axis,
                label=label if ends_row else "",
                shrink=0.85,
                extend=extend,
                format="%.2g",
            )
    for axis in axes.flat[len(drawn) :]:
        axis.set_visible(False)
    if shared:
        figure.colorbar(
            image, ax=axes.ravel().tolist(), label=label, shrink=0.85, extend=one_scale[2]
        )
    return save(figure, path, mark)


def visible(values: np.ndarray, causal: bool) -> np.ndarray:
    """The values that are drawn: NaN for keys after the query, where these mean nothing."""
    values = np.asarray(values, dtype=np.float64)
    return np.where(np.tri(*values.shape), values, np.nan) if causal else values


def colour_range(values: np.ndarray, signed: bool) -> tuple[float, float, str]:
    """The ends of a colour scale, and which of them are exceeded, in the words of matplotlib."""
    values = values[np.isfinite(values)]
    reach = np.abs(values) if signed else values
    low, most, high = float(reach.min()), float(np.quantile(reach, SHOWN)), float(reach.max())
    top = most if high - low > 3 * (most - low) > 0 else high
    if not signed:
        return low, top, "max" if top < high else "neither"
    if top == 0:
        return -1.0, 1.0, "neither"
    ends = {
        (False, False): "neither",
        (True, False): "min",
        (False, True): "max",
        (True, True): "both",
    }
    return -top, top, ends[bool((values < -top).any()), bool((values > top).any())]
