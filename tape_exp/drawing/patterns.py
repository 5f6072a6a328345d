"""Pictures of all pairs of tokens: dot products of positions, attention and its differences."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tape_exp.drawing.heatmap import COLOURS
from tape_exp.drawing.page import DOUBLE, SINGLE, fitted, in_print, new_figure, save

SIGNED_COLOURS = "RdBu_r"
ACROSS = 4  # panels in a row
# of the entries, where the others are so far above that a scale up to them would show nothing
SHOWN = 0.99
KINDS = {"attention": "attention", "products": "E·Eᵀ"}  # of the matrices of a run


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

    def draw(self, path: Path, mark: str = "", kinds: Sequence[str] = ("png",)) -> Path:
        """Write the picture as each of the kinds, whole or not at all."""
        options: Any = {"shared": self.shared, "label": self.label, "mark": mark, "kinds": kinds}
        return draw_patterns(self.panels, path, self.title, self.signed, self.causal, **options)


def matrix_name(key: str) -> str:
    """What a panel is called whose matrix a run calls ``products@3``: ``E·Eᵀ, layer 3``."""
    kind, _, layer = key.partition("@")
    number, _, more = layer.partition(" ")
    shown = f"{KINDS.get(kind, kind)}, layer {number}" if number else KINDS.get(kind, kind)
    return f"{shown}, {more.replace('_', ' ')}" if more else shown


@in_print
def draw_patterns(
    panels: dict[str, np.ndarray],
    path: Path,
    title: str = "",
    signed: Collection[str] = (),
    causal: Collection[str] = (),
    shared: bool | None = None,
    label: str = "",
    mark: str = "",
    kinds: Sequence[str] = ("png",),
) -> Path:
    """Write a picture: one panel a name, queries downward, keys to the right, positions from 0.

    A scale goes from the smallest value to the largest. Where few entries are far above all others,
    as in attention, it ends at the 99th percentile and its bar is pointed. There is one colour bar:
    where each panel has a scale of its own, the bar says which colours are its ends, and the
    panel's title which values. The file appears whole or not at all.

    Args:
        panels: (T, T) each: query, key. NaN stays blank.
        signed: names of panels whose values are differences. Where there is one, the scales of all
            are symmetric and white is 0.
        causal: names of panels that leave keys after the query blank, as they are in attention.
        shared: one scale for all panels, else one each; None: one each where there are differences.
        label: of the colour bar.
    """
    number, symmetric = len(panels), bool(signed)
    shared = not signed if shared is None else shared
    drawn = without_empty_ends(
        {name: visible(values, name in causal) for name, values in panels.items()}
    )
    every = colour_range(np.concatenate([v.ravel() for v in drawn.values()]), symmetric)
    across = min(number, ACROSS)
    rows, width = -(-number // across), SINGLE if number == 1 else DOUBLE
    side = min((width - 1.0) / across, 2.0)
    figure = new_figure(width, rows * (side + (0.25 if shared else 0.37)) + 0.3, title)
    axes = figure.subplots(rows, across, squeeze=False, sharex=True, sharey=True)
    colours = SIGNED_COLOURS if symmetric else COLOURS
    for place, (axis, (name, values)) in enumerate(zip(axes.flat, drawn.items(), strict=False)):
        low, high, _ = scale = every if shared else colour_range(values, symmetric)
        image = axis.imshow(values, cmap=colours, vmin=low, vmax=high)
        axis.set_title(fitted(name, side) + ("" if shared else f"\n{ends_of(scale)}"))
        axis.locator_params(nbins=4, integer=True)
        axis.label_outer()
        if place % across == 0:
            axis.set_ylabel("query position")
        if place + across >= number:
            axis.set_xlabel("key position")
            axis.tick_params(labelbottom=True)
    for axis in axes.flat[number:]:
        axis.set_visible(False)
    bar: Any = {"ax": axes.ravel().tolist(), "shrink": 0.9, "aspect": 16 * rows}
    if shared:
        figure.colorbar(image, label=label, extend=every[2], **bar)
    else:
        _bar_of_ends(figure, colours, label, bar)
    return save(figure, path, mark, kinds)


def ends_of(scale: tuple[float, float, str]) -> str:
    """The ends of a scale of colours in words: ``0.2 to 1``, ``−0.4 to 0.4 and beyond``."""
    low, high, extend = scale
    text = f"{low:.2g} to {high:.2g}{'' if extend == 'neither' else ' and beyond'}"
    return text.replace("-", "−")


def _bar_of_ends(figure: Any, colours: str, label: str, bar: dict[str, Any]) -> None:
    """A bar whose ends are those of each panel's own scale."""
    from matplotlib.cm import ScalarMappable

    signed = colours == SIGNED_COLOURS
    drawn = figure.colorbar(ScalarMappable(cmap=colours), **bar)
    drawn.set_ticks([0, 0.5, 1] if signed else [0, 1])
    drawn.set_ticklabels(["lowest", "0", "highest"] if signed else ["lowest", "highest"])
    drawn.set_label(f"{label or 'value'}, on each panel's own scale")


def without_empty_ends(panels: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The panels without the last queries and keys that are blank in all of them, as padding is."""
    seen = [np.argwhere(np.isfinite(values)) for values in panels.values()]
    ends = [found.max(0) + 1 for found in seen if len(found)]
    if not ends:
        return panels
    rows, columns = np.max(ends, 0)
    return {name: values[:rows, :columns] for name, values in panels.items()}


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
