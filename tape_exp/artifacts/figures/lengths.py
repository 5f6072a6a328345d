"""Curves of a metric by the length that its name ends in, such as ``test/state@64``."""

import re
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

from tape_exp.artifacts.cells import Cells
from tape_exp.artifacts.figures.shared import FEWEST, Draw, last_label, title_of
from tape_exp.artifacts.rows import Row, by_outer_labels, fill, once
from tape_exp.artifacts.specs import LengthsFigure
from tape_exp.drawing import plots
from tape_exp.drawing.plots import Line, Panel, mean_line
from tape_exp.drawing.style import REFERENCE, LineStyle, styles_of
from tape_exp.results.metric_names import is_result
from tape_exp.results.record import Record
from tape_exp.settings.naming import display_name

BY_DIGITS = "digits/exact_match"  # whose lengths are in percent of the trained digits
IN_PERCENT = ("exact match", "accuracy", "state", "word")
UNSAID = ("test", "digits")  # splits that no title names


def draw_lengths(cells: Cells, figure: LengthsFigure) -> Draw | None:
    """Draw a panel for each metric and each choice of the outer labels; None where there would be
    nothing but zeros.
    """
    panels = []
    for outer_labels, rows in by_outer_labels(cells.rows).items():
        for metric, heading in (figure.of or metrics_by_length(cells)).items():
            title = ", ".join(filter(None, [*map(display_name, outer_labels), heading]))
            panel = length_panel(cells, figure, rows, fill(metric, rows[0].labels), title)
            if panel is not None:
                panels.append(panel)
    if not has_heights(panels):
        return None
    shared = all(panel.ylim for panel in panels)
    return partial(plots.curves, panels, title=title_of(cells), shared=shared)


def length_panel(
    cells: Cells, figure: LengthsFigure, rows: Sequence[Row], metric: str, title: str
) -> Panel | None:
    """Draw a metric of rows by length: the mean over seeds, in a band from the lowest seed to the
    highest; None where no row has it.
    """
    styles = styles_of(last_label(row) for row in cells.rows)
    lines = []
    for row in rows:
        curve = curve_of(cells, row, metric, styles[last_label(row)])
        if curve is not None:
            lines.append(curve)
    if not lines:
        return None
    longest = max(lines, key=lambda line: len(line.x))
    lengths = [int(length) for length in longest.x]
    if metric == figure.guess:
        lines.append(best_guess(rows[0].labels["group"], lengths))
    axes = axes_of(cells)
    across = figure.across or across_of(axes)
    trained = trained_length_of_all(cells, rows)
    if metric == BY_DIGITS:
        across = "digits (% of the trained)"
        trained = 100
    quantity = figure.quantity or quantity_of(metric, axes)
    axis = plots.length_axis(lengths, trained)
    axis["ylim"] = plots.PERCENT if "%" in quantity else None
    return Panel(title, across, quantity, lines, **axis)


def has_heights(panels: Sequence[Panel]) -> bool:
    """Say whether some line has a number that is not 0."""
    return any(any(line.y) for panel in panels for line in panel.lines)


def metrics_by_length(cells: Cells) -> dict[str, str]:
    """Find every result with enough lengths to join, with the title of its panel: the corpus or the
    split, which the quantity beside the axis leaves out.
    """
    titles: dict[str, str] = {}
    for runs in cells.all_runs.values():
        for metric, lengths in sorted(lengths_of(runs[0].metrics).items()):
            if is_result(metric) and len(lengths) >= FEWEST:
                split = metric.partition("/")[0]
                titles[metric] = "" if split in UNSAID else split.replace("_", " ")
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


def axes_of(cells: Cells) -> dict[str, Any]:
    """Say what the heatmap of a run calls its axes; empty where no run has one."""
    for run in cells.every_run:
        if "axes" in run:
            return run["axes"]
    return {}


def quantity_of(metric: str, axes: Mapping[str, Any]) -> str:
    """Write what a metric measures, beside the axis.

    >>> quantity_of("test/exact_match", {}), quantity_of("github/bits_per_byte", {})
    ('exact match (%)', 'bits per byte')
    >>> quantity_of("test/found", {"rows": ["found"]})  # a task's own measure, in its heatmap
    'found (%)'
    """
    measure = metric.rpartition("/")[2].replace("_", " ")
    in_percent = measure in IN_PERCENT or measure in axes.get("rows", [])
    return f"{measure} (%)" if in_percent else measure


def across_of(axes: Mapping[str, Any]) -> str:
    """Write what the lengths are, below the axis: as a task with one axis calls them."""
    return axes["column_label"] if axes.get("row_label") == "" else "length"


def curve_of(cells: Cells, row: Row, metric: str, style: LineStyle) -> Line | None:
    """Make the curve of a metric of a row's runs by length, of those that have it at every length
    of the first.
    """
    runs = [run.metrics for run in cells.runs(row)]
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


def trained_length_of_all(cells: Cells, rows: Sequence[Row]) -> int | None:
    """Find the length that all runs of rows were trained on; None where they differ in it, or where
    the training of one that only evaluates is not recorded.
    """
    trainings = {run.name: run for run in cells.index.of_task([])}
    lengths = set()
    for run in once(cells.runs(row) for row in rows):
        if run.get("steps") == 0:  # only evaluated: what was trained is the run that it began from
            run = trainings.get(run.get("begun_from", "").partition("/")[0], Record())
        task = run.get("config", {}).get("task", {})
        lengths.add(task.get("train_length", task.get("train_letters")))
    return lengths.pop() if len(lengths) == 1 else None


def best_guess(group: str, lengths: Sequence[int]) -> Line:
    """Compute the share of states of a word problem that the best guess from the position gets
    right.
    """
    from tape_exp.data.groups import GROUPS

    guess = 100 * GROUPS[group]().guess(lengths[-1])
    best = [float(guess[begin:end].mean()) for begin, end in pairwise([0, *lengths])]
    return Line("best guess", lengths, best, style=REFERENCE)
