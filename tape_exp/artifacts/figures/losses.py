"""Curves of the validation loss by step."""

from collections.abc import Sequence
from functools import partial

from tape_exp.artifacts.cells import Cells
from tape_exp.artifacts.figures.shared import FEWEST, Draw, last_label, title_of
from tape_exp.artifacts.specs import LossesFigure
from tape_exp.drawing import plots
from tape_exp.drawing.plots import Line, Panel, mean_line
from tape_exp.drawing.style import LineStyle, categorical, styles_of
from tape_exp.results.record import Record
from tape_exp.settings.naming import display_name


def draw_losses(cells: Cells, figure: LossesFigure) -> Draw | None:
    """Draw the mean over seeds, in a band from the lowest seed to the highest: a panel for each
    label of the dimension ``panels``, or else for each choice of the outer labels.
    """
    lines: dict[tuple[str, ...], list[Line]] = {}
    styles = styles_of(last_label(row) for row in cells.rows)
    further: dict[str, LineStyle] = {}  # of what has not the name of a model
    for row in cells.rows:
        labels = dict(row.labels)
        if figure.panels in labels:
            panel: tuple[str, ...] = (labels.pop(figure.panels),)
            name = ", ".join(f"{key} {label}" for key, label in labels.items())
            style = further.setdefault(name, categorical(len(further)))
        else:
            *outer_labels, name = labels.values()
            panel = tuple(outer_labels)
            style = styles[name]
        line = loss_line(display_name(name), cells.runs(row), style)
        if line is not None:
            lines.setdefault(panel, []).append(line)
    if not lines:
        return None
    axes = ("step", "validation loss (nats)")
    panels = []
    for panel, of_panel in lines.items():
        title = ", ".join(map(display_name, panel))
        panels.append(Panel(title, *axes, of_panel, log_y=True))
    return partial(plots.curves, panels, title=title_of(cells))


def loss_line(name: str, runs: Sequence[Record], style: LineStyle) -> Line | None:
    """Make the line of the validation loss of runs at the steps that all have; None where these are
    too few.
    """
    curves = []
    for run in runs:
        curve = run.get("curves", {}).get("val/loss")
        if curve:
            curves.append(dict(zip(curve["step"], curve["value"], strict=True)))
    if not curves:
        return None
    steps = sorted(set.intersection(*map(set, curves)))
    if len(steps) < FEWEST:
        return None
    values = []
    for by_step in curves:
        values.append([by_step[step] for step in steps])
    return mean_line(name, steps, values, style)
