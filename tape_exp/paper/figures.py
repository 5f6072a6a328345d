"""The figures of artifacts: which panels and lines are drawn of which records.

A YAML's ``figures`` is a list of ``{kind: …}``, of these:

- ``grids``: a heatmap for each row, the mean over seeds.
- ``curves``: the columns by a length, a line a row, a panel for each label of the other dimensions.
- ``lengths``: the same of every metric ``name@length`` of the records.
- ``words``, ``losses``, ``ladder``, ``matrices``, ``pattern``, ``times``, ``theorem``: of one
  artifact or two each.
"""

import multiprocessing
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tape_exp.drawing import plots
from tape_exp.drawing.plots import Line, Panel, mean_line
from tape_exp.drawing.style import DASHES, MARKERS, REFERENCE, LineStyle, categorical, styles_of
from tape_exp.paper import special
from tape_exp.paper.derived import metrics_of
from tape_exp.paper.records import Record
from tape_exp.paper.statistics import Value, lead, over_seeds
from tape_exp.paper.tables import Column
from tape_exp.paper.view import Row, View
from tape_exp.runs.evaluation import Heatmap
from tape_exp.settings.naming import display_name

FEWEST = 3  # rungs that a line may join
Draw = Callable[[Path], Path]


def figures(view: View) -> Iterator[tuple[str, Draw]]:
    """(suffix of the file's name, what draws it) of every figure that would show something."""
    for number, spec in enumerate(view.artifact.figures):
        for suffix, draw in KINDS[spec["kind"]](view, spec):
            yield suffix or ("" if number == 0 else f"-{spec['kind']}"), draw


drawings: list[tuple[Draw, Path]] = []  # what the processes of draw_all inherit


def draw_all() -> None:
    """Draw all of :data:`drawings`, in as many processes as there are cores."""
    with multiprocessing.get_context("fork").Pool() as pool:
        pool.map(draw_one, range(len(drawings)), chunksize=1)


def draw_one(number: int) -> None:
    """Draw one of :data:`drawings`."""
    draw, path = drawings[number]
    draw(path)


def title_of(view: View) -> str:
    """Above a figure: the artifact's title and its scale."""
    return f"{view.artifact.title} — scale {view.scale}"


def last_label(row: Row) -> str:
    """The model or method of a row."""
    return [*row.labels.values()][-1]


def _grids(view: View, spec: Mapping[str, Any]) -> Iterator[tuple[str, Draw]]:
    panels = {}
    for row in view.rows:
        runs = [run for run in view.runs(row) if "heatmap" in run]
        if runs:
            grid = mean_grid(runs)
            panels[f"{display_name(last_label(row))}  {np.nanmean(grid.values):.1f} %"] = grid
    some = [grid.values for grid in panels.values()]
    if some and all(min(grid.shape) > 2 for grid in some) and any(np.nanmax(g) > 0 for g in some):
        yield "", lambda path: plots.grids(panels, path, title_of(view))


def mean_grid(runs: Sequence[Record]) -> Heatmap:
    """The mean over seeds, with the axes that the record names."""
    values = np.mean([np.array(run["heatmap"], float) for run in runs], axis=0)
    return Heatmap(values, **axes_of(runs[0]))


def axes_of(run: Record) -> dict[str, Any]:
    """What a grid's axes are: as the record says, or, of one that is older, by its task."""
    if "axes" in run:
        return run["axes"]
    task = run["config"]["task"]
    if "train_digits" in task:
        words = ("exact match (%)", "digits of the first operand", "digits of the second operand")
        return dict(zip(("title", "row_label", "column_label"), words, strict=True)) | {
            "trained": (task["train_digits"], task["train_digits"])
        }
    bins, lengths = len(run["heatmap"]), sorted(task.get("lengths", []))
    trained = sum(length <= task.get("train_length", 0) for length in lengths)
    words = ("accuracy (%)", "depth of the key (%)", "length (tokens)")
    return dict(zip(("title", "row_label", "column_label"), words, strict=True)) | {
        "trained": (bins, trained),
        "rows": [f"{100 * n / bins:.0f} – {100 * (n + 1) / bins:.0f}" for n in range(bins)],
        "columns": [*map(str, lengths)],
    }


def _curves(view: View, spec: Mapping[str, Any]) -> Iterator[tuple[str, Draw]]:
    """The paper's numbers get a panel of their own where ``paper`` says of which model they are."""
    by_template: dict[tuple[str, str, str], list[Column]] = {}
    for column in view.columns:
        if lengths := [n for n in column.at.values() if isinstance(n, int)]:
            others = " ".join(display_name(n) for n in column.at.values() if isinstance(n, str))
            if len(lengths) == 1 and "lead" not in column.spec:
                by_template.setdefault((column.template, column.who, others), []).append(column)
    panels, styles, ours = [], styles_of(last_label(row) for row in view.rows), []
    parts: dict[tuple[str, ...], list[Row]] = {}
    for row in view.rows:
        parts.setdefault(tuple([*row.labels.values()][:-1]), []).append(row)
    for part, rows in parts.items():
        for (_, who, others), columns in by_template.items():
            if len(columns) < 3 or (who == "paper" and "paper" not in spec):
                continue
            lines = []
            for row in rows:
                cells = [(c, view.cell(row, c)) for c in columns]
                points = [
                    (next(n for n in c.at.values() if isinstance(n, int)), cell)
                    for c, cell in cells
                    if isinstance(cell, Value)
                ]
                if points:
                    name = last_label(row)
                    lines.append(line_of(display_name(name), points, styles[name]))
            titles = [
                spec.get("paper", "") if who == "paper" else "",
                others,
                *map(display_name, part),
            ]
            whose = f"ours, scale {view.scale}" if "paper" in spec and who == "ours" else ""
            title = ", ".join(filter(None, [whose, *titles]))
            ticks = [n for c in columns for n in c.at.values() if isinstance(n, int)]
            words = (spec["across"], spec["quantity"], lines)
            marks = view.lookup("task.train_length") if who == "ours" else []
            ylim = plots.PERCENT if "%" in spec["quantity"] else None
            if lines:
                axis: Any = {"marks": marks[:1], "ticks": ticks, "ylim": ylim, "log_x": True}
                panels.append(Panel(title, *words, **axis))
                ours += [y for line in lines for y in line.y] if who == "ours" else []
    if any(ours):
        several = len({panel.title for panel in panels}) > 1 and "paper" not in spec
        yield "", lambda path: plots.curves(panels, path, view.artifact.title, shared=not several)


def line_of(name: str, points: Sequence[tuple[float, Value]], style: LineStyle, **how: Any) -> Line:
    """A line through values, with the ends of their intervals; that of two seeds is too wide."""
    places, values = zip(*points, strict=True)
    low, high = ([None if v.pair else getattr(v, end) for v in values] for end in ("low", "high"))
    return Line(name, places, [v.number for v in values], low, high, style, **how)


def _lengths(view: View, spec: Mapping[str, Any]) -> Iterator[tuple[str, Draw]]:
    """Every metric of the records that has three lengths or more, a panel each."""
    names: dict[str, set[int]] = {}
    for runs in view.all_runs.values():
        for metric in metrics_of(runs[0]):
            if found := re.fullmatch(r"(.+)@(\d+)", metric):
                names.setdefault(found[1], set()).add(int(found[2]))
    panels, styles = [], styles_of(last_label(row) for row in view.rows)
    marks = view.lookup("task.train_length") or view.lookup("task.train_letters")
    for metric, lengths in names.items():
        if len(lengths) < 3:
            continue
        x, lines = sorted(lengths), []
        for row in view.rows:
            keys = [f"{metric}@{n}" for n in x]
            runs = [m for m in map(metrics_of, view.runs(row)) if m.keys() >= {*keys}]
            if runs:
                name = last_label(row)
                values = [[run[key] for key in keys] for run in runs]
                lines.append(mean_line(display_name(name), x, values, styles[name]))
        if lines:
            ticks = [n for n in x if n & (n - 1) == 0] or x
            axis: Any = {"marks": marks[:1], "ticks": ticks, "log_x": True}
            panels.append(Panel(metric, "length", metric.rpartition("/")[2], lines, **axis))
    if panels:
        yield "", lambda path: plots.curves(panels, path, title_of(view), shared=False)


def _words(view: View, spec: Mapping[str, Any]) -> Iterator[tuple[str, Draw]]:
    """Word problems: two panels for each group, states and whole words."""
    from tape_exp.data.groups import GROUPS

    lengths = sorted(special_first(view, "task.lengths"))
    marks = view.lookup("task.train_letters")
    ticks = [n for n in lengths if n & (n - 1) == 0][::-2] or lengths
    styles, panels = styles_of(last_label(row) for row in view.rows), []
    for group in dict.fromkeys(row.labels["group"] for row in view.rows):
        for measure in ("state", "word"):
            lines = []
            for row in view.rows:
                runs = view.runs(row)
                if row.labels["group"] == group and runs:
                    values = [[r["metrics"][f"test/{measure}@{n}"] for n in lengths] for r in runs]
                    name = last_label(row)
                    lines.append(mean_line(display_name(name), lengths, values, styles[name]))
            if measure == "state":
                guess, begins = 100 * GROUPS[group]().guess(lengths[-1]), [0, *lengths[:-1]]
                best = [float(guess[a:b].mean()) for a, b in zip(begins, lengths, strict=True)]
                lines.append(Line("best guess", lengths, best, style=REFERENCE))
            named = group.upper() if group[-1].isdigit() else group
            axis: Any = {"marks": marks, "ticks": ticks, "log_x": True, "ylim": plots.PERCENT}
            words = ("length (letters)", "right (%)", lines)
            panels.append(Panel(f"{named}: {measure}s", *words, **axis))
    yield "", lambda path: plots.curves(panels, path, title_of(view), columns=2)


def special_first(view: View, key: str) -> Any:
    """What the first record has at a key; an empty list without records."""
    return next(iter(view.lookup(key)), [])


def _losses(view: View, spec: Mapping[str, Any]) -> Iterator[tuple[str, Draw]]:
    """A panel a model: validation loss by step, a line for each rate and factor."""
    rates = sorted({row.labels["rate"] for row in view.rows}, key=float)
    factors = list(dict.fromkeys(row.labels["factor"] for row in view.rows))
    panels = []
    for model in dict.fromkeys(row.labels["model"] for row in view.rows):
        lines = []
        for row in (row for row in view.rows if row.labels["model"] == model):
            curves = [
                run["curves"]["val/loss"]
                for run in view.runs(row)
                if "val/loss" in run.get("curves", {})
            ]
            by_step = [dict(zip(curve["step"], curve["value"], strict=True)) for curve in curves]
            rate, factor = row.labels["rate"], row.labels["factor"]
            number = factors.index(factor)
            colour = categorical(rates.index(rate)).colour
            style = LineStyle(colour, MARKERS[number], DASHES[number % len(DASHES)])
            name = f"rate {rate}" + (f", positions × {factor}" if factor != "1" else "")
            if steps := sorted(set.intersection(*map(set, by_step))) if by_step else []:
                values = [[curve[step] for step in steps] for curve in by_step]
                lines.append(mean_line(name, steps, values, style))
        words = ("step", "validation loss (nats)", lines)
        panels += [Panel(display_name(model), *words, log_y=True)] if lines else []
    if panels:
        yield "", lambda path: plots.curves(panels, path, title_of(view), columns=2)


def _ladder(view: View, spec: Mapping[str, Any]) -> Iterator[tuple[str, Draw]]:
    """Extra length by trained digits, and TAPE's paired lead, with the paper's points."""
    papers = special.paper_extra_lengths()
    runs: dict[str, dict[int, Value]] = {}
    rungs = view.artifact.claim["rows"]["rung"]
    for row in view.rows:
        found = [run for run in view.runs(row) if "extra_length" in metrics_of(run)]
        if row.labels["rung"] in rungs and found:
            values = {run["seed"]: Value(metrics_of(run)["extra_length"]) for run in found}
            digits = found[0]["config"]["task"]["train_digits"]
            runs.setdefault(row.labels["model"], {})[digits] = over_seeds(values)
    leads = {}
    for rival in view.artifact.claim["than"]:
        shared = runs.get("tape", {}).keys() & runs.get(rival, {}).keys()
        found_leads = {n: lead(runs["tape"][n], runs[rival][n]) for n in sorted(shared)}
        leads[rival] = {n: v if v.n > 2 else Value(v.number) for n, v in found_leads.items() if v}
    points = {model: {n: v for (m, n), v in papers.items() if m == model} for model in runs}
    apart = {
        rival: {n: points["tape"][n] - v for n, v in points[rival].items() if n in points["tape"]}
        for rival in leads
        if {"tape", rival} <= points.keys()
    }
    panels = [
        ladder_panel("beyond the trained digits", "extra length (fraction)", runs, points),
        ladder_panel("TAPE's lead over others, paired by seed", "difference", leads, apart),
    ]
    title = f"{view.artifact.title} (open: the paper, one seed)"
    yield "", lambda path: plots.curves(panels, path, title, shared=False)


def ladder_panel(
    title: str,
    quantity: str,
    ours: Mapping[str, Mapping[int, Value]],
    paper: Mapping[str, Mapping[int, float]],
) -> Panel:
    """The points of each model side by side; intervals do not stretch the vertical axis."""
    styles, lines = styles_of(ours), []
    for place, (model, by_digits) in enumerate(ours.items()):
        beside = 1.025 ** (place - len(ours) / 2)
        own = [(n * beside, value) for n, value in by_digits.items()]
        if own:
            joined = len(own) >= FEWEST
            lines.append(line_of(display_name(model), own, styles[model], joined=joined))
        x = [n * beside for n in paper.get(model, {})]
        open_points = [*paper.get(model, {}).values()]
        lines.append(Line("", x, open_points, style=styles[model], joined=False, hollow=True))
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
        yield "", lambda path: plots.matrices(panels, path, title, dict.fromkeys(panels, "E·Eᵀ"))


def _pattern(view: View, spec: Mapping[str, Any]) -> Iterator[tuple[str, Draw]]:
    """E·Eᵀ of TAPE and RoPE in the last layer, and the difference of their attention."""
    first = {last_label(row): runs[0] for row in view.rows if (runs := view.runs(row))}
    if {"tape", "rope"} <= first.keys():
        layer = max(int(name.split("@")[1]) for name in first["tape"]["matrices"])
        of = {
            m: {k: np.array(run["matrices"][f"{k}@{layer}"], float) for k in plots.KINDS}
            for m, run in first.items()
        }
        panels = {f"E·Eᵀ of {display_name(m)}": each["products"] for m, each in of.items()}
        name = "attention, TAPE − RoPE"
        panels[name] = plots.causal(of["tape"]["attention"] - of["rope"]["attention"])
        label = dict.fromkeys(panels, "E·Eᵀ") | {name: "difference"}
        title = f"{title_of(view)}, layer {layer}, seed {first['tape']['seed']}"
        yield "", lambda path: plots.matrices(panels, path, title, label)


def _times(view: View, spec: Mapping[str, Any]) -> Iterator[tuple[str, Draw]]:
    """Of each machine of ``benchmarks.speed``, the median of each encoding on its fastest backend,
    between the quartiles over rounds.
    """
    for record in special.speed_records():
        if view.scale != ("small" if special.on_gpu(record) else "smoke"):
            continue
        panels = []
        for backward, title in ((False, "forward"), (True, "forward + backward")):
            rows = [r for r in record["rows"] if r["what"] == "core" and r["backward"] == backward]
            lines = []
            for name, style in styles_of(row["encoding"] for row in rows).items():
                own = [row for row in rows if row["encoding"] == name]
                best = {r["T"]: r for r in sorted(own, key=lambda r: (r["T"], -r["ms"]))}
                points = [(T, Value(r["ms"], *r["ms_quartiles"])) for T, r in best.items()]
                lines.append(line_of(display_name(name), points, style))
            axes: Any = {"ticks": sorted({row["T"] for row in rows}), "log_x": True, "log_y": True}
            panels.append(Panel(title, "length (tokens)", "time (ms)", lines, **axes))
        machine = str(record["machine"])
        name = re.sub(r"\W+", "-", machine.lower()).strip("-")
        title = f"Time of attention on the fastest backend, {machine}, {record['dtype']}"
        yield f"-{name}", partial(plots.curves, panels, title=title)


def _theorem(view: View, spec: Mapping[str, Any]) -> Iterator[tuple[str, Draw]]:
    """Right labels by length: of all positions, and of those whose product is the identity."""
    report = special.theory_report()
    if report is None:
        return
    theorem = report["theorem"]
    lengths, panels = theorem["lengths"], []
    for title, key in (
        ("all positions", "all"),
        ("positions whose product is the identity", "identity"),
    ):
        widths = (5.0, 2.6, 1.6, 1.2, 0.8)  # later lines are thinner, so that those below show
        lines = [
            Line(name, lengths, form[key], style=categorical(number), width=widths[number])
            for number, (name, form) in enumerate(theorem["forms"].items())
        ]
        if key == "all":
            lines.append(Line("label 0 everywhere", lengths, theorem["never"], style=REFERENCE))
        axis: Any = {"ticks": lengths[1::2], "log_x": True, "ylim": plots.PERCENT}
        panels.append(Panel(title, "length (positions)", "right labels (%)", lines, **axis))
    yield "", lambda path: plots.curves(panels, path, view.artifact.title)


KINDS: dict[str, Callable[[View, Mapping[str, Any]], Iterator[tuple[str, Draw]]]] = {
    "grids": _grids,
    "curves": _curves,
    "lengths": _lengths,
    "words": _words,
    "losses": _losses,
    "ladder": _ladder,
    "matrices": _matrices,
    "pattern": _pattern,
    "times": _times,
    "theorem": _theorem,
}
