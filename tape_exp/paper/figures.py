"""The figures of artifacts: which panels and lines are drawn of which records.

A YAML's ``figures`` is a list of ``{kind: …}``, of these:

- ``grids``: a heatmap for each row, the mean over seeds.
- ``lengths``: a metric by the length that its name ends in, a line a row, and a panel for each
  label of the outer dimensions. ``of``: metric -> the panel's title (default: every metric with
  lengths), ``quantity``, ``across``, ``guess: <metric>``, ``linear``: no logarithmic axis.
- ``losses``: validation loss by step. ``panels``: the dimension that has a panel for each label.
- ``parts``: the columns ``of`` by the labels of the dimension ``across``, models side by side;
  ``panels``: the labels of the first dimension that have one.
- ``matrices``, ``pattern``, ``ladder``: of one artifact each.
"""

import gc
import multiprocessing
import operator
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from tape_exp.drawing import plots
from tape_exp.drawing.plots import Line, Panel, mean_line
from tape_exp.drawing.style import REFERENCE, LineStyle, categorical, styles_of
from tape_exp.paper import special
from tape_exp.paper.view import Row, View, fill
from tape_exp.results.record import Record
from tape_exp.results.statistics import Value, lead, over_seeds
from tape_exp.runs.evaluation import Heatmap
from tape_exp.settings.errors import one_of
from tape_exp.settings.naming import display_name

FEWEST = 3  # points that a line may join, and lengths of a curve
Draw = Callable[[Path], Path]


def figures(view: View) -> Iterator[tuple[str, Draw]]:
    """(suffix of the file's name, what draws it) of every figure that would show something."""
    for number, spec in enumerate(view.artifact.figures):
        one_of(f"figures.kind of {view.artifact.name}", spec["kind"], KINDS)
        for suffix, draw in KINDS[spec["kind"]](view, spec):
            yield suffix or ("" if number == 0 else f"-{spec['kind']}"), draw


def draw_all(drawings: Sequence[tuple[Draw, Path]]) -> None:
    """Draw each into its file, in as many processes as there are cores."""
    gc.freeze()  # so that the processes do not look through all records again and again
    with multiprocessing.Pool(min(len(drawings), os.cpu_count() or 1) or 1) as pool:
        pool.starmap(operator.call, drawings, chunksize=1)


def title_of(view: View) -> str:
    """Above a figure: the artifact's title and its scale."""
    return f"{view.artifact.title} — {view.artifact.place.get(view.scale) or f'scale {view.scale}'}"


def last_label(row: Row) -> str:
    """The model or method of a row."""
    return [*row.labels.values()][-1]


def _grids(view: View, spec: Mapping[str, Any]) -> Iterator[tuple[str, Draw]]:
    panels = {}
    for row in view.rows:
        runs = [run for run in view.runs(row) if "axes" in run]
        if runs:
            grid = mean_grid(runs)
            panels[f"{display_name(last_label(row))}  {np.nanmean(grid.values):.1f} %"] = grid
    some = [grid.values for grid in panels.values()]
    if some and all(min(grid.shape) > 2 for grid in some) and any(np.nanmax(g) > 0 for g in some):
        yield "", partial(plots.grids, panels, title=title_of(view))


def mean_grid(runs: Sequence[Record]) -> Heatmap:
    """The mean over seeds."""
    values = np.mean([np.array(run["heatmap"], float) for run in runs], axis=0)
    return Heatmap(values, **runs[0]["axes"])


def _lengths(view: View, spec: Mapping[str, Any]) -> Iterator[tuple[str, Draw]]:
    """The mean over seeds, in a band from the lowest seed to the highest."""
    found = [places(runs[0].metrics) for runs in view.all_runs.values()]
    many = {m: m for each in found for m in sorted(each) if len(each[m]) >= FEWEST}
    styles = styles_of(last_label(row) for row in view.rows)
    panels = []
    marks = (view.lookup("task.train_length") or view.lookup("task.train_letters"))[:1]
    every = (run for runs in view.all_runs.values() for run in runs)
    axes: dict[str, Any] = next((run["axes"] for run in every if "axes" in run), {})
    across = axes["column_label"] if axes.get("row_label") == "" else "length"
    parts: dict[tuple[str, ...], list[Row]] = {}
    for row in view.rows:
        parts.setdefault(tuple([*row.labels.values()][:-1]), []).append(row)
    for (part, rows), (template, told) in product(parts.items(), spec.get("of", many).items()):
        metric = fill(template, rows[0].labels)
        x: list[int] = []
        lines = []
        for row in rows:
            name = last_label(row)
            runs = [run.metrics for run in view.runs(row)]
            if at := next(filter(None, (places(run).get(metric) for run in runs)), None):
                keys = [f"{metric}@{n}" for n in at]
                x = max(x, at, key=len)
                values = [[run[key] for key in keys] for run in runs if run.keys() >= {*keys}]
                lines.append(mean_line(display_name(name), at, values, styles[name]))
        if lines and metric == spec.get("guess"):
            lines.append(best_guess(rows[0].labels["group"], x))
        measure = metric.rpartition("/")[2].replace("_", " ")
        percent = " (%)" if measure in axes.get("rows", ()) else ""
        quantity = spec.get("quantity", measure + percent)
        powers = [n for n in x if n & (n - 1) == 0]
        ticks = powers if len(powers) > 2 or (powers and len(x) > 6) else x
        axis: Any = {"marks": marks, "ticks": ticks[:: -1 if len(ticks) < 5 else -2], "log_x": True}
        if spec.get("linear"):
            axis = {"ticks": x[:: 2 if len(x) > 8 else 1]}
        axis["ylim"] = plots.PERCENT if "%" in quantity else None
        title = ", ".join(filter(None, [*map(display_name, part), told]))
        words = (title, spec.get("across", across), quantity)
        panels += [Panel(*words, lines, **axis)] if lines else []
    if any(any(line.y) for panel in panels for line in panel.lines):
        shared = all(panel.ylim for panel in panels)
        yield "", partial(plots.curves, panels, title=title_of(view), shared=shared)


def places(metrics: Mapping[str, float]) -> dict[str, list[int]]:
    """Metric -> the lengths, or layers, at which a run has it, ascending."""
    found: dict[str, list[int]] = {}
    for name in metrics:
        if match := re.fullmatch(r"(.+)@(\d+)", name):
            found.setdefault(match[1], []).append(int(match[2]))
    return {name: sorted(numbers) for name, numbers in found.items()}


def best_guess(group: str, lengths: Sequence[int]) -> Line:
    """The share of states of a word problem that the best guess from the position gets right."""
    from tape_exp.data.groups import GROUPS

    guess = 100 * GROUPS[group]().guess(lengths[-1])
    begins = [0, *lengths[:-1]]
    best = [float(guess[a:b].mean()) for a, b in zip(begins, lengths, strict=True)]
    return Line("best guess", lengths, best, style=REFERENCE)


def _losses(view: View, spec: Mapping[str, Any]) -> Iterator[tuple[str, Draw]]:
    """The mean over seeds, in a band from the lowest seed to the highest."""
    panels: dict[str, list[Line]] = {}
    styles = styles_of(last_label(row) for row in view.rows)
    for row in view.rows:
        labels = dict(row.labels)
        name = last_label(row)
        panel = labels.pop(spec.get("panels", ""), "")
        if panel:
            name = ", ".join(f"{key} {label}" for key, label in labels.items())
        style = styles.setdefault(name, categorical(len(styles)))
        curves = [run["curves"].get("val/loss") for run in view.runs(row) if "curves" in run]
        by_step = [dict(zip(c["step"], c["value"], strict=True)) for c in curves if c]
        if steps := sorted(set.intersection(*map(set, by_step))) if by_step else []:
            values = [[curve[step] for step in steps] for curve in by_step]
            line = mean_line(display_name(name), steps, values, style)
            panels.setdefault(display_name(panel), []).append(line)
    words = ("step", "validation loss (nats)")
    every = [Panel(title, *words, lines, log_y=True) for title, lines in panels.items()]
    if every:
        yield "", partial(plots.curves, every, title=title_of(view))


def _parts(view: View, spec: Mapping[str, Any]) -> Iterator[tuple[str, Draw]]:
    """Means over seeds and their intervals, of models that have at least two of the labels."""
    across = spec["across"]
    (outer, *_) = view.dimensions()
    labels = [*dict.fromkeys(row.labels[across] for row in view.rows)]
    groups: dict[tuple[str, str], dict[str, dict[str, Value]]] = {}
    for heading in spec["of"]:
        (column,) = [each for each in view.columns if each.name == heading]
        for row in view.rows:
            value = view.cell(row, column)
            part = row.labels[outer]
            if isinstance(value, Value) and part in spec["panels"]:
                points = groups.setdefault((part, heading), {}).setdefault(last_label(row), {})
                points[row.labels[across]] = value
    compared = {
        panel: {name: points for name, points in models.items() if len(points) > 1}
        for panel, models in groups.items()
    }
    styles = styles_of(name for models in compared.values() for name in models)
    panels = [
        parts_panel(*panel, models, labels, styles) for panel, models in compared.items() if models
    ]
    if panels:
        yield "", partial(plots.curves, panels, title=title_of(view), shared=False)


def parts_panel(
    title: str,
    quantity: str,
    models: Mapping[str, Mapping[str, Value]],
    labels: Sequence[str],
    styles: Mapping[str, LineStyle],
) -> Panel:
    """The points of each model beside one another, at the place of their label."""
    lines = []
    for number, (model, points) in enumerate(models.items()):
        aside = 0.6 * ((number + 0.5) / len(models) - 0.5)
        x = [labels.index(label) + aside for label in points]
        values = points.values()
        y, low, high = ([getattr(v, end) for v in values] for end in ("number", "low", "high"))
        lines.append(Line(display_name(model), x, y, low, high, styles[model], joined=False))
    words = [label.replace("_", "\n") for label in labels]
    axis: Any = {"ticks": [*range(len(labels))], "ticklabels": words, "bars": True}
    axis["ylim"] = plots.PERCENT if "%" in quantity else None
    return Panel(title, "", quantity, lines, **axis)


def _ladder(view: View, spec: Mapping[str, Any]) -> Iterator[tuple[str, Draw]]:
    """Extra length by trained digits, and TAPE's paired lead, with the paper's points."""
    papers = special.paper_extra_lengths()
    runs: dict[str, dict[int, Value]] = {}
    (claim,) = view.artifact.claims
    sizes = claim["rows"]["size"]
    for row in view.rows:
        found = [run for run in view.runs(row) if "extra_length" in run.metrics]
        if row.labels["size"] in sizes and found:
            values = {run["seed"]: Value(run.metrics["extra_length"]) for run in found}
            digits = found[0]["config"]["task"]["train_digits"]
            runs.setdefault(row.labels["model"], {})[digits] = over_seeds(values)
    points = {model: {n: v for (m, n), v in papers.items() if m == model} for model in runs}
    leads = {}
    apart = {}
    for rival in [name for name in claim["than"] if {"tape", name} <= runs.keys()]:
        shared = sorted(runs["tape"].keys() & runs[rival].keys())
        pairs = {n: lead(runs["tape"][n], runs[rival][n]) for n in shared}
        leads[rival] = {n: v if v.n > 2 else Value(v.number) for n, v in pairs.items() if v}
        both = points["tape"].keys() & points[rival].keys()
        apart[rival] = {n: points["tape"][n] - points[rival][n] for n in sorted(both)}
    panels = [
        ladder_panel(name, quantity, ours, paper)
        for name, quantity, ours, paper in (
            ("beyond the trained digits", "extra length (fraction)", runs, points),
            ("TAPE's lead over others, paired by seed", "difference", leads, apart),
        )
        if any(ours.values())
    ]
    title = f"{view.artifact.title} (open: the paper, one seed)"
    if panels:
        yield "", partial(plots.curves, panels, title=title, shared=False)


def ladder_panel(
    title: str,
    quantity: str,
    ours: Mapping[str, Mapping[int, Value]],
    paper: Mapping[str, Mapping[int, float]],
) -> Panel:
    """The points of each model side by side; intervals do not stretch the vertical axis."""
    styles = styles_of(ours)
    lines = []
    for place, (model, by_digits) in enumerate(ours.items()):
        beside = 1.025 ** (place - len(ours) / 2)
        own = [n * beside for n in by_digits]
        values = by_digits.values()
        low, high = (
            [None if v.pair else getattr(v, end) for v in values] for end in ("low", "high")
        )
        joined = len(own) >= FEWEST
        name = display_name(model)
        if own:
            y = [value.number for value in values]
            lines.append(Line(name, own, y, low, high, styles[model], joined=joined))
        x = [n * beside for n in paper[model]]
        how: Any = {"style": styles[model], "joined": False, "hollow": True}
        lines.append(Line("", x, [*paper[model].values()], **how))
    places = sorted({n for each in (*ours.values(), *paper.values()) for n in each})
    numbers = [y for line in lines for y in line.y]
    margin = 0.15 * (max(numbers) - min(numbers))
    axis: Any = {"ticks": places, "ylim": (min(numbers) - margin, max(numbers) + margin)}
    return Panel(title, "trained digits", quantity, lines, log_x=True, bars=True, **axis)


def _matrices(view: View, spec: Mapping[str, Any]) -> Iterator[tuple[str, Draw]]:
    """A panel a layer, on one scale."""
    runs = view.runs(view.rows[0]) if view.rows else []
    panels = {
        f"layer {name.split('@')[1]}": np.array(rows, float)
        for run in runs[:1]
        for name, rows in run.get("matrices", {}).items()
        if name.startswith(spec["which"])
    }
    if panels:
        title = f"{title_of(view)}, seed {runs[0]['seed']}"
        label = dict.fromkeys(panels, "E·Eᵀ")
        yield "", partial(plots.matrices, panels, title=title, label=label)


def _pattern(view: View, spec: Mapping[str, Any]) -> Iterator[tuple[str, Draw]]:
    """E·Eᵀ of TAPE and RoPE in the last layer, and the difference of their attention."""
    first = {last_label(row): runs[0] for row in view.rows if (runs := view.runs(row))}
    if {"tape", "rope"} <= first.keys():
        layer = max(int(name.split("@")[1]) for name in first["tape"]["matrices"])
        tape, rope = (
            {kind: np.array(first[m]["matrices"][f"{kind}@{layer}"], float) for kind in plots.KINDS}
            for m in ("tape", "rope")
        )
        panels = {"E·Eᵀ of TAPE": tape["products"], "E·Eᵀ of RoPE": rope["products"]}
        label = dict.fromkeys(panels, "E·Eᵀ") | {"attention, TAPE − RoPE": "difference"}
        panels["attention, TAPE − RoPE"] = plots.causal(tape["attention"] - rope["attention"])
        title = f"{title_of(view)}, layer {layer}, seed {first['tape']['seed']}"
        yield "", partial(plots.matrices, panels, title=title, label=label)


KINDS: dict[str, Callable[[View, Mapping[str, Any]], Iterator[tuple[str, Draw]]]] = {
    "grids": _grids,
    "lengths": _lengths,
    "losses": _losses,
    "ladder": _ladder,
    "matrices": _matrices,
    "parts": _parts,
    "pattern": _pattern,
}
