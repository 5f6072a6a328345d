"""fig_address: what a trained TAPE still solves with a part of its positional state."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tape_exp.artifacts.cells import Cells
from tape_exp.artifacts.figures.shared import Draw, last_label, title_of
from tape_exp.drawing import plots
from tape_exp.drawing.plots import Line, Panel
from tape_exp.drawing.style import LineStyle, styles_of
from tape_exp.results.statistics import Value
from tape_exp.settings.naming import display_name

SIZES = ("5 digits", "8 digits", "text")  # that have a panel
COLUMNS = ("trained (%)", "text, perplexity")  # that are drawn


@dataclass(frozen=True)
class PartsPanel:
    """What a panel is of: a size, and the column that is drawn."""

    size: str
    heading: str


Points = dict[PartsPanel, dict[str, dict[str, Value]]]
"""Panel -> model -> part -> its mean over seeds."""


def parts(cells: Cells) -> Draw | None:
    """Draw means over seeds and their intervals by the part that is left of the state, models side
    by side, of those that have at least two parts.
    """
    points = points_of(cells)
    several: Points = {}
    for panel, models in points.items():
        for model, values in models.items():
            if len(values) > 1:
                several.setdefault(panel, {})[model] = values
    if not several:
        return None
    styles = styles_of(model for models in several.values() for model in models)
    drawn: set[str] = set()
    for models in several.values():
        for values in models.values():
            drawn |= values.keys()
    every = dict.fromkeys(row.labels["part"] for row in cells.rows)
    labels = [label for label in every if label in drawn]
    panels = [parts_panel(panel, models, labels, styles) for panel, models in several.items()]
    return partial(plots.curves, panels, title=title_of(cells), shared=False)


def points_of(cells: Cells) -> Points:
    """Find the values that are drawn."""
    points: Points = {}
    for heading in COLUMNS:
        (column,) = cells.columns_named(heading)
        for row in cells.rows:
            value = cells.cell(row, column)
            if isinstance(value, Value) and row.labels["size"] in SIZES:
                panel = PartsPanel(row.labels["size"], heading)
                of_model = points.setdefault(panel, {}).setdefault(last_label(row), {})
                of_model[row.labels["part"]] = value
    return points


def parts_panel(
    panel: PartsPanel,
    models: Mapping[str, Mapping[str, Value]],
    labels: Sequence[str],
    styles: Mapping[str, LineStyle],
) -> Panel:
    """Draw the points of each model beside one another, at the place of their label."""
    lines = []
    for number, (model, points) in enumerate(models.items()):
        aside = 0.6 * ((number + 0.5) / len(models) - 0.5)
        x = [labels.index(label) + aside for label in points]
        values = points.values()
        y = [value.number for value in values]
        low = [value.low for value in values]
        high = [value.high for value in values]
        lines.append(Line(display_name(model), x, y, low, high, styles[model], joined=False))
    words = [label.replace("_", "\n") for label in labels]
    axis: Any = {"ticks": [*range(len(labels))], "ticklabels": words, "bars": True}
    axis["ylim"] = plots.PERCENT if "%" in panel.heading else None
    return Panel(panel.size, "", panel.heading, lines, **axis)
