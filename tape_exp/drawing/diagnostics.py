"""Figures of the length diagnostics, from the tables of a record."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tape_exp.drawing.plots import Line, Panel, curves
from tape_exp.drawing.style import REFERENCE, categorical, sequential
from tape_exp.settings.naming import display_name

Row = Mapping[str, Any]
Tables = Mapping[str, Sequence[Row]]
LAYERS = 8  # that are drawn, evenly spaced; the tables have all
MEAN = "mean over windows, 95 %"


def draw_diagnostics(tables: Tables, model: str, folder: Path) -> list[Path]:
    """Write a PNG for each table of :class:`~tape_exp.tasks.diagnostics.Diagnostics`."""
    paths = []
    for name, panels in diagnostic_panels(tables).items():
        facts = tables["summary"][0]
        untrained = " (untrained)" if facts["model"] == "untrained" else ""
        title = f"{display_name(model)}{untrained} on {facts['text']}"
        paths.append(curves(panels, folder / f"{name}.png", title, shared=False))
    return paths


def diagnostic_panels(tables: Tables) -> dict[str, list[Panel]]:
    """Two panels for each table that is drawn, by its name."""
    if "loss_by_position" not in tables or "summary" not in tables:
        return {}
    facts, panels = tables["summary"][0], {}
    panels["loss_by_position"] = _loss_by_position(tables["loss_by_position"], facts)
    panels["loss_by_context"] = _loss_by_context(tables["loss_by_context"], facts)
    first = f"attention on the first {facts['sinks']} tokens, by query"
    for name, title, label, of_layer in (
        ("sinks", first, "attention (%)", "attention (%)"),
        ("distance", "attention by distance of the key", "attention (%)", "mean distance (tokens)"),
        ("entropy", "entropy of attention, by query", "entropy (nats)", "entropy (nats)"),
    ):
        if rows := tables.get(f"attention_{name}"):
            by_layer = _by_layer(tables["attention_layers"], name, of_layer)
            panels[f"attention_{name}"] = [_by_length(rows, name, title, label, facts), by_layer]
    if rows := tables.get("frequency_use"):
        label = "pair of channels, in RoPE from the fastest"
        panels["frequency_use"] = [
            Panel(f"norm of {of} by frequency", label, "mean norm", _layers(rows, "pair", of))
            for of in ("queries", "keys")
        ]
    return panels


def _doubling(title: str, xlabel: str, ylabel: str, lines: list[Line], facts: Row) -> Panel:
    """A panel whose lengths double at equal distances: 1, 4, 16 …"""
    ticks = [4**n for n in range(16) if 4**n <= facts["length"]]
    return Panel(title, xlabel, ylabel, lines, _trained(facts), ticks, log_x=True)


def _trained(facts: Row) -> list[float]:
    """The trained length, if there is one and the figure reaches it."""
    trained = facts["trained_length"]
    return [trained] if trained and trained <= facts["length"] else []


def _band(rows: Sequence[Row], name: str, x: str, y: str, low: str, high: str) -> Line:
    columns: Any = ([row[key] for row in rows] for key in (x, y, low, high))
    return Line(name, *columns)


def _loss_by_position(rows: Sequence[Row], facts: Row) -> list[Panel]:
    placed = [{**row, "x": (row["from"] + row["to"]) / 2} for row in rows]
    lines, marks = [_band(placed, MEAN, "x", "loss", "low", "high")], _trained(facts)
    words = ("tokens that are seen", "loss (nats per token)", lines)
    beyond = f", dotted: trained to {marks[0]:,}" if marks else ""
    return [
        _doubling(f"loss by position{beyond}", *words, facts),
        Panel("the same, equal distances", *words, marks),
    ]


def _loss_by_context(rows: Sequence[Row], facts: Row) -> list[Panel]:
    ends = [
        {end: None if row[end] is None else math.exp(min(row[end], 700)) for end in ("low", "high")}
        for row in rows
    ]
    of_rows = [{**row, **end} for row, end in zip(rows, ends, strict=True)]
    perplexity = _band(of_rows, MEAN, "context", "perplexity", "low", "high")
    excess = _band(rows, MEAN, "context", "excess", "excess_low", "excess_high")
    margin, contexts = facts["margin"], [rows[0]["context"], rows[-1]["context"]]
    allowed = Line(f"margin {margin:g}", contexts, [margin, margin], style=REFERENCE)
    scored = f"{facts['scored'] // facts['windows']:,} tokens of {facts['windows']:,} windows"
    above = f"loss above the lowest; effective: {facts['effective_context']:,}"
    label, difference = "context (tokens)", "difference (nats per token)"
    return [
        _doubling(f"the last {scored}", label, "perplexity", [perplexity], facts),
        _doubling(above, label, difference, [excess, allowed], facts),
    ]


def _by_length(rows: Sequence[Row], name: str, title: str, label: str, facts: Row) -> Panel:
    """A line for each layer, and what uniform attention would give."""
    y, times = ("entropy", 1) if name == "entropy" else ("probability", 100)
    xlabel = "tokens that are seen"
    placed = [{**row, "x": (row["from"] + row["to"]) / 2} for row in rows]
    if name == "distance":
        xlabel = "distance (tokens), from the last mark to this"
        placed = [{**row, "x": row["to"]} for row in rows if row["from"]]
    scaled = [{**row, y: times * row[y], "uniform": times * row["uniform"]} for row in placed]
    (uniform, *_) = _layers(scaled, "x", "uniform")
    reference = Line("uniform", uniform.x, uniform.y, style=REFERENCE)
    return _doubling(title, xlabel, label, [*_layers(scaled, "x", y), reference], facts)


def _layers(rows: Sequence[Row], x: str, y: str) -> list[Line]:
    """A line for each of some layers."""
    layers = sorted({row["layer"] for row in rows})
    number = min(len(layers), LAYERS)
    step = (len(layers) - 1) / max(number - 1, 1)
    lines = []
    for place, layer in enumerate(layers[round(n * step)] for n in range(number)):
        own = [row for row in rows if row["layer"] == layer]
        style = sequential(place, number)
        points = [row[x] for row in own], [row[y] for row in own]
        lines.append(Line(f"layer {layer}", *points, style=style))
    return lines


def _by_layer(rows: Sequence[Row], name: str, label: str) -> Panel:
    """The mean of each layer, in a band from its lowest to its highest head."""
    times = 100 if name == "sinks" else 1
    mean, low, high = ([times * row[name + end] for row in rows] for end in ("", "_low", "_high"))
    layers = [row["layer"] for row in rows]
    line = Line("mean over heads, lowest to highest", layers, mean, low, high, categorical(1))
    ticks = layers[:: -(-len(layers) // LAYERS)]
    return Panel("by layer, queries of the second half", "layer", label, [line], ticks=ticks)
