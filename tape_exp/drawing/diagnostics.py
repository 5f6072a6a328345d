"""Figures of the length diagnostics, from the tables of a record."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tape_exp.drawing.plots import Line, Panel, curves
from tape_exp.drawing.style import REFERENCE, sequential
from tape_exp.settings.naming import display_name

Row = Mapping[str, Any]
Tables = Mapping[str, Sequence[Row]]
LAYERS = 8  # that are drawn, evenly spaced; the tables have all
MEAN = "mean over windows, 95 %"
ENDS = ("low", "high")


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
    """The panels of each table that is drawn, by its name."""
    if "loss_by_position" not in tables or "summary" not in tables:
        return {}
    facts = tables["summary"][0]
    panels = {
        "loss_by_position": _loss_by_position(tables["loss_by_position"], facts),
        "loss_by_context": _loss_by_context(tables["loss_by_context"], facts),
    }
    first = f"attention on the first {facts['sinks']} tokens, by query"
    for name, title, y, label in (
        ("sinks", first, "probability", "attention (%)"),
        ("distance", "attention by distance of the key", "probability", "attention (%)"),
        ("entropy", "entropy of attention, by query", "entropy", "entropy (nats)"),
    ):
        rows = tables.get(f"attention_{name}", ())
        placed = [{**row, "x": (row["from"] + row["to"]) / 2} for row in rows]
        across, times = "tokens that are seen", 100 if y == "probability" else 1
        if name == "distance":
            across = "distance (tokens), from the last mark to this"
            placed = [{**row, "x": row["to"]} for row in rows if row["from"]]
        if placed:
            (uniform, *_) = _layers(placed, "uniform", times)  # attention that tells no keys apart
            lines = [*_layers(placed, y, times), replace(uniform, name="uniform", style=REFERENCE)]
            panels[f"attention_{name}"] = [_doubling(title, across, label, lines, facts)]
    if rows := tables.get("frequency_use", ()):
        words = "pair of channels, in RoPE from the fastest", "mean norm"
        panels["frequency_use"] = [
            Panel(f"norm of {of} by frequency", *words, _layers(rows, of, x="pair"))
            for of in ("queries", "keys")
        ]
    return panels


def _doubling(title: str, xlabel: str, ylabel: str, lines: list[Line], facts: Row) -> Panel:
    """A panel whose lengths double at equal distances, 1, 4, 16 …, with a mark at the trained
    length, if there is one and the figure reaches it.
    """
    ticks = [4**n for n in range(16) if 4**n <= facts["length"]]
    trained = facts["trained_length"]
    marks = [trained] if trained and trained <= facts["length"] else []
    return Panel(title, xlabel, ylabel, lines, marks, ticks, log_x=True)


def _band(rows: Sequence[Row], *keys: str) -> Line:
    columns: Any = ([row[key] for row in rows] for key in keys)
    return Line(MEAN, *columns)


def _loss_by_position(rows: Sequence[Row], facts: Row) -> list[Panel]:
    placed = [{**row, "x": (row["from"] + row["to"]) / 2} for row in rows]
    words = ("loss by position, dotted: trained length", "tokens that are seen")
    band = _band(placed, "x", "loss", "low", "high")
    return [_doubling(*words, "loss (nats per token)", [band], facts)]


def _loss_by_context(rows: Sequence[Row], facts: Row) -> list[Panel]:
    of_rows = [
        {**row, **{e: None if row[e] is None else math.exp(min(row[e], 700)) for e in ENDS}}
        for row in rows
    ]
    perplexity = _band(of_rows, "context", "perplexity", *ENDS)
    excess = _band(rows, "context", "excess", "excess_low", "excess_high")
    margin, contexts = facts["margin"], [rows[0]["context"], rows[-1]["context"]]
    allowed = Line(f"margin {margin:g}", contexts, [margin, margin], style=REFERENCE)
    scored = f"{facts['scored'] // facts['windows']:,} tokens of {facts['windows']:,} windows"
    above = f"loss above the lowest; effective: {facts['effective_context']:,}"
    label, difference = "context (tokens)", "difference (nats per token)"
    return [
        _doubling(f"the last {scored}", label, "perplexity", [perplexity], facts),
        _doubling(above, label, difference, [excess, allowed], facts),
    ]


def _layers(rows: Sequence[Row], y: str, times: float = 1, x: str = "x") -> list[Line]:
    """A line for each of some layers."""
    layers = sorted({row["layer"] for row in rows})
    number = min(len(layers), LAYERS)
    chosen = [layers[round(n)] for n in np.linspace(0, len(layers) - 1, number)]
    of_layer = [[row for row in rows if row["layer"] == layer] for layer in chosen]
    return [
        Line(
            f"layer {layer}",
            [row[x] for row in own],
            [times * row[y] for row in own],
            style=sequential(n, number),
        )
        for n, (layer, own) in enumerate(zip(chosen, of_layer, strict=True))
    ]
