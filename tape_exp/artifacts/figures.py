"""The figures of artifacts: which panels and lines are drawn of which records.

A YAML's ``figures`` is a list of ``{kind: …}``, of these:

- ``grids``: a heatmap for each row, the mean over seeds.
- ``lengths``: a metric by the length that its name ends in, a line a row, and a panel for each
  label of the outer dimensions. ``of``: metric -> the panel's title (default: every metric with
  lengths), ``quantity``, ``across``, ``guess: <metric>``, ``trained``: the trained length, where
  the task has no key of it.
- ``losses``: validation loss by step. ``panels``: the dimension that has a panel for each label.
- ``parts``: the columns ``of`` by the labels of the dimension ``across``, models side by side;
  ``panels``: the labels of the first dimension that have one.
- the path of a function, ``my_package.module.function``, which is called as those here are.
"""

import gc
import multiprocessing
import operator
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from tape_exp.artifacts.cells import Cells
from tape_exp.artifacts.rows import Row, by_outer_labels, fill, once
from tape_exp.drawing import plots
from tape_exp.drawing.plots import Line, Panel, mean_line
from tape_exp.drawing.style import REFERENCE, LineStyle, categorical, styles_of
from tape_exp.results.record import Record
from tape_exp.results.statistics import Value
from tape_exp.runs.evaluation import Heatmap, is_result
from tape_exp.settings.construct import function_at
from tape_exp.settings.errors import one_of
from tape_exp.settings.naming import display_name

FEWEST = 3  # points of a curve
Draw = Callable[[Path], Path]


def figures(view: Cells) -> Iterator[tuple[str, Draw]]:
    """Yield a suffix of the file's name, and what draws it, for each figure to show."""
    for number, spec in enumerate(view.artifact.figures):
        draw = drawer(spec["kind"], view.artifact.name)(view, spec)
        if draw is not None:
            kind = spec["kind"].rpartition(".")[2]
            yield "" if number == 0 else f"-{kind}", draw


def drawer(kind: str, artifact: str) -> Callable[[Cells, Mapping[str, Any]], Draw | None]:
    """Find what draws a kind of figure: one of :data:`FIGURES`, or a function by its path."""
    key = f"figures.kind of {artifact}"
    if "." in kind:
        return function_at(kind, key)
    one_of(key, kind, FIGURES)
    return FIGURES[kind]


def draw_all(drawings: Sequence[tuple[Draw, Path]]) -> None:
    """Draw each into its file, in as many processes as there are cores."""
    gc.freeze()  # so that the processes do not look through all records again and again
    with multiprocessing.Pool(min(len(drawings), os.cpu_count() or 1) or 1) as pool:
        pool.starmap(operator.call, drawings, chunksize=1)


def title_of(view: Cells) -> str:
    """Above a figure: the artifact's title and its scale."""
    return f"{view.artifact.title} — {view.artifact.place.get(view.scale) or f'scale {view.scale}'}"


def last_label(row: Row) -> str:
    """Name the model or method of a row."""
    return [*row.labels.values()][-1]


# ---- heatmaps ----


def _grids(view: Cells, spec: Mapping[str, Any]) -> Draw | None:
    panels = {}
    for row in view.rows:
        runs = [run for run in view.runs(row) if "axes" in run]
        if runs:
            grid = mean_grid(runs)
            panels[f"{display_name(last_label(row))}  {np.nanmean(grid.values):.1f} %"] = grid
    are_grids = all(min(grid.values.shape) > 2 for grid in panels.values())
    if not are_grids or not any(np.nanmax(grid.values) > 0 for grid in panels.values()):
        return None
    return partial(plots.grids, panels, title=title_of(view))


def mean_grid(runs: Sequence[Record]) -> Heatmap:
    """Average the heatmaps of runs over seeds."""
    values = np.mean([np.array(run["heatmap"], float) for run in runs], axis=0)
    return Heatmap(values, **runs[0]["axes"])


# ---- curves by length ----


def _lengths(view: Cells, spec: Mapping[str, Any]) -> Draw | None:
    """Draw the mean over seeds, in a band from the lowest seed to the highest."""
    styles = styles_of(last_label(row) for row in view.rows)
    axes = axes_of(view)
    panels = []
    for outer_labels, rows in by_outer_labels(view.rows).items():
        for template, heading in spec.get("of", metrics_by_length(view)).items():
            metric = fill(template, rows[0].labels)
            lines = []
            for row in rows:
                curve = curve_of(view, row, metric, styles[last_label(row)])
                if curve is not None:
                    lines.append(curve)
            if not lines:
                continue
            longest = max(lines, key=lambda line: len(line.x))
            lengths = [int(length) for length in longest.x]
            if metric == spec.get("guess"):
                lines.append(best_guess(rows[0].labels["group"], lengths))
            title = ", ".join(filter(None, [*map(display_name, outer_labels), heading]))
            trained = trained_length(view, rows, spec)
            panels.append(length_panel(spec, axes, title, metric, lengths, lines, trained))
    if not has_heights(panels):
        return None
    shared = all(panel.ylim for panel in panels)
    return partial(plots.curves, panels, title=title_of(view), shared=shared)


def has_heights(panels: Sequence[Panel]) -> bool:
    """Say whether some line has a number that is not 0."""
    return any(any(line.y) for panel in panels for line in panel.lines)


def metrics_by_length(view: Cells) -> dict[str, str]:
    """Find every result with enough lengths to join, with itself as the title of its panel."""
    titles: dict[str, str] = {}
    for runs in view.all_runs.values():
        for metric, lengths in sorted(lengths_of(runs[0].metrics).items()):
            if is_result(metric) and len(lengths) >= FEWEST:
                titles[metric] = metric
    return titles


def lengths_of(metrics: Mapping[str, float]) -> dict[str, list[int]]:
    """Metric -> the lengths, or layers, at which a run has it, ascending: ``val/loss@64`` and
    ``val/loss@128`` are ``{"val/loss": [64, 128]}``.
    """
    lengths: dict[str, list[int]] = {}
    for name in metrics:
        match = re.fullmatch(r"(.+)@(\d+)", name)
        if match:
            lengths.setdefault(match[1], []).append(int(match[2]))
    return {metric: sorted(numbers) for metric, numbers in lengths.items()}


def axes_of(view: Cells) -> dict[str, Any]:
    """Say what the heatmap of a run calls its axes; empty where no run has one."""
    for run in view.every_run:
        if "axes" in run:
            return run["axes"]
    return {}


def curve_of(view: Cells, row: Row, metric: str, style: LineStyle) -> Line | None:
    """Make the curve of a metric of a row's runs by length, of those that have it at every length
    of the first.
    """
    runs = [run.metrics for run in view.runs(row)]
    lengths: list[int] = []
    for metrics in runs:
        lengths = lengths or lengths_of(metrics).get(metric, [])
    if not lengths:
        return None
    names = [f"{metric}@{length}" for length in lengths]
    values = []
    for metrics in runs:
        if metrics.keys() >= {*names}:
            values.append([metrics[name] for name in names])
    return mean_line(display_name(last_label(row)), lengths, values, style)


def trained_length(view: Cells, rows: Sequence[Row], spec: Mapping[str, Any]) -> int | None:
    """Find the length that all runs of rows were trained on; None where they differ in it, or where
    the training of one that only evaluates is not recorded.
    """
    if "trained" in spec:
        return spec["trained"]
    trainings = {run.name: run for run in view.index.of_task([])}
    lengths = set()
    for run in once(view.runs(row) for row in rows):
        if run.get("steps") == 0:  # only evaluated: what was trained is the run that it began from
            run = trainings.get(run.get("begun_from", "").partition("/")[0], Record())
        task = run.get("config", {}).get("task", {})
        lengths.add(task.get("train_length", task.get("train_letters")))
    return lengths.pop() if len(lengths) == 1 else None


def length_panel(
    spec: Mapping[str, Any],
    axes: Mapping[str, Any],
    title: str,
    metric: str,
    lengths: Sequence[int],
    lines: list[Line],
    trained: int | None,
) -> Panel:
    """Make the panel of a metric by length."""
    measure = metric.rpartition("/")[2].replace("_", " ")
    percent = " (%)" if measure in axes.get("rows", ()) else ""
    quantity = spec.get("quantity", measure + percent)
    across = axes["column_label"] if axes.get("row_label") == "" else "length"
    axis = plots.length_axis(lengths, trained)
    axis["ylim"] = plots.PERCENT if "%" in quantity else None
    return Panel(title, spec.get("across", across), quantity, lines, **axis)


def best_guess(group: str, lengths: Sequence[int]) -> Line:
    """Compute the share of states of a word problem that the best guess from the position gets
    right.
    """
    from tape_exp.data.groups import GROUPS

    guess = 100 * GROUPS[group]().guess(lengths[-1])
    best = [float(guess[begin:end].mean()) for begin, end in pairwise([0, *lengths])]
    return Line("best guess", lengths, best, style=REFERENCE)


# ---- losses ----


def _losses(view: Cells, spec: Mapping[str, Any]) -> Draw | None:
    """Draw the mean over seeds, in a band from the lowest seed to the highest."""
    lines: dict[str, list[Line]] = {}
    styles = styles_of(last_label(row) for row in view.rows)
    further: dict[str, LineStyle] = {}  # of what has not the name of a model
    for row in view.rows:
        labels = dict(row.labels)
        name = last_label(row)
        panel = labels.pop(spec.get("panels", ""), "")
        if panel:
            name = ", ".join(f"{key} {label}" for key, label in labels.items())
            style = further.setdefault(name, categorical(len(further)))
        else:
            style = styles[name]
        line = loss_line(display_name(name), view.runs(row), style)
        if line is not None:
            lines.setdefault(display_name(panel), []).append(line)
    if not lines:
        return None
    axes = ("step", "validation loss (nats)")
    panels = [Panel(title, *axes, of_panel, log_y=True) for title, of_panel in lines.items()]
    return partial(plots.curves, panels, title=title_of(view))


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


# ---- points by label ----


@dataclass(frozen=True)
class PartsPanel:
    """A panel of ``parts``: a label of the first dimension, and the column that is drawn."""

    label: str
    heading: str


def _parts(view: Cells, spec: Mapping[str, Any]) -> Draw | None:
    """Draw means over seeds and their intervals, of models that have at least two of the labels."""
    across = spec["across"]
    points: dict[PartsPanel, dict[str, dict[str, Value]]] = {}
    for heading in spec["of"]:
        (column,) = view.columns_named(heading)
        for row in view.rows:
            panel = PartsPanel(row.labels[view.dimensions()[0]], heading)
            value = view.cell(row, column)
            if isinstance(value, Value) and panel.label in spec["panels"]:
                of_model = points.setdefault(panel, {}).setdefault(last_label(row), {})
                of_model[row.labels[across]] = value
    several: dict[PartsPanel, dict[str, dict[str, Value]]] = {}
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
    every = dict.fromkeys(row.labels[across] for row in view.rows)
    labels = [label for label in every if label in drawn]
    panels = [parts_panel(panel, models, labels, styles) for panel, models in several.items()]
    return partial(plots.curves, panels, title=title_of(view), shared=False)


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
    return Panel(panel.label, "", panel.heading, lines, **axis)


FIGURES: dict[str, Callable[[Cells, Mapping[str, Any]], Draw | None]] = {
    "grids": _grids,
    "lengths": _lengths,
    "losses": _losses,
    "parts": _parts,
}
