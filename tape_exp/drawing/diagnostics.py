"""Figures of the length diagnostics, from the tables that a record holds."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tape_exp.drawing.curves import Curves, Line, Panel
from tape_exp.drawing.looks import GUIDE, graded, series
from tape_exp.settings.naming import display_name

Row = Mapping[str, Any]
Tables = Mapping[str, Sequence[Row]]
LAYERS = 8  # that are drawn, evenly spaced; the tables have all
SEEN = "tokens that are seen"


def diagnostic_figures(tables: Tables, name: str) -> dict[str, Curves]:
    """One of each table of :class:`~tape_exp.tasks.diagnostics.Diagnostics`; none without them.

    Args:
        tables: of an evaluation or of its record.
        name: of the run's model.
    """
    if "loss_by_position" not in tables or "summary" not in tables:
        return {}
    facts = tables["summary"][0]
    untrained = " (untrained)" if facts["model"] == "untrained" else ""
    title = f"{display_name(name)}{untrained} on {facts['text']}"
    drawn: dict[str, Callable[[Tables, Row], list[Panel]]] = {
        "loss_by_position": _loss_by_position,
        "loss_by_context": _loss_by_context,
        "attention_sinks": _sinks,
        "attention_distance": _distance,
        "attention_entropy": _entropy,
        "frequency_use": _frequencies,
    }
    return {
        table: Curves(title, panels(tables, facts), shared=False)
        for table, panels in drawn.items()
        if table in tables
    }


def _marks(facts: Row) -> list[float]:
    """The trained length as a vertical line, if there is one and the picture reaches it."""
    trained = facts["trained_length"]
    return [trained] if trained and trained <= facts["length"] else []


def _band(rows: Sequence[Row], name: str, x: str, y: str, low: str, high: str, **how: Any) -> Line:
    values: Any = ([row[key] for row in rows] for key in (x, y, low, high))
    return Line(name, *values, **how)


def _loss_by_position(tables: Tables, facts: Row) -> list[Panel]:
    rows = [{**row, "x": _middle(row)} for row in tables["loss_by_position"]]
    line = _band(rows, "mean over windows, 95 %", "x", "loss", "low", "high")
    labels = (SEEN, "loss (nats a token)")
    marks = _marks(facts)
    beyond = f", dotted: trained to {marks[0]:,}" if marks else ""
    return [
        _by_length(f"loss by position{beyond}", *labels, [line], facts),
        Panel("the same, equal distances", *labels, [line], marks),
    ]


def _loss_by_context(tables: Tables, facts: Row) -> list[Panel]:
    rows, margin = tables["loss_by_context"], facts["margin"]
    contexts = [row["context"] for row in rows]
    band: Any = (
        [None if row[key] is None else math.exp(min(row[key], 700)) for row in rows]
        for key in ("low", "high")
    )
    name = "mean over windows, 95 %"
    perplexity = Line(name, contexts, [row["perplexity"] for row in rows], *band)
    keys = ("context", "excess", "excess_low", "excess_high")
    ends = [contexts[0], contexts[-1]]
    allowed = Line(f"margin {margin:g}", ends, [margin, margin], look=GUIDE)
    scored = facts["scored"] // facts["windows"]
    return [
        _by_length(
            f"the last {scored:,} tokens of {facts['windows']:,} windows",
            "context (tokens)",
            "perplexity",
            [perplexity],
            facts,
        ),
        _by_length(
            f"loss above the lowest; effective: {facts['effective_context']:,}",
            "context (tokens)",
            "difference (nats a token)",
            [_band(rows, name, *keys), allowed],
            facts,
        ),
    ]


def _sinks(tables: Tables, facts: Row) -> list[Panel]:
    rows = tables["attention_sinks"]
    lines = [*_lines(rows, _middle, "probability", 100), _uniform(rows, _middle, 100)]
    title, label = f"attention on the first {facts['sinks']} tokens, by query", "attention (%)"
    return [_by_length(title, SEEN, label, lines, facts), _by_layer(tables, "sinks", label, 100)]


def _distance(tables: Tables, facts: Row) -> list[Panel]:
    def end(row: Row) -> float:
        return row["to"]

    rows = [row for row in tables["attention_distance"] if row["from"]]
    lines = [*_lines(rows, end, "probability", 100), _uniform(rows, end, 100)]
    label = "distance (tokens), from the last mark to this"
    return [
        _by_length("attention by distance of the key", label, "attention (%)", lines, facts),
        _by_layer(tables, "distance", "mean distance (tokens)"),
    ]


def _entropy(tables: Tables, facts: Row) -> list[Panel]:
    rows, label = tables["attention_entropy"], "entropy (nats)"
    lines = [*_lines(rows, _middle, "entropy"), _uniform(rows, _middle)]
    return [
        _by_length("entropy of attention, by query", SEEN, label, lines, facts),
        _by_layer(tables, "entropy", label),
    ]


def _frequencies(tables: Tables, facts: Row) -> list[Panel]:
    rows = tables["frequency_use"]
    return [
        Panel(
            f"norm of {whose} by frequency",
            "pair of channels, in RoPE from the fastest",
            "mean norm",
            _lines(rows, lambda row: row["pair"], whose),
        )
        for whose in ("queries", "keys")
    ]


def _middle(row: Row) -> float:
    return (row["from"] + row["to"]) / 2


def _lines(rows: Sequence[Row], x: Callable[[Row], float], y: str, times: float = 1) -> list[Line]:
    """A line a layer, of some layers."""
    every = sorted({row["layer"] for row in rows})
    number = min(len(every), LAYERS)
    step = (len(every) - 1) / max(number - 1, 1)
    chosen = [every[round(n * step)] for n in range(number)]
    lines = []
    for place, layer in enumerate(chosen):
        own = [row for row in rows if row["layer"] == layer]
        points = [x(row) for row in own], [times * row[y] for row in own]
        lines.append(Line(f"layer {layer}", *points, look=graded(place, number)))
    return lines


def _uniform(rows: Sequence[Row], x: Callable[[Row], float], times: float = 1) -> Line:
    """What attention would be if it were uniform."""
    first = [row for row in rows if row["layer"] == rows[0]["layer"]]
    values = [times * row["uniform"] for row in first]
    return Line("uniform", [x(row) for row in first], values, look=GUIDE)


def _by_length(title: str, xlabel: str, ylabel: str, lines: list[Line], facts: Row) -> Panel:
    """Lengths that double at equal distances: 1, 4, 16 …"""
    ticks = [4**n for n in range(16) if 4**n <= facts["length"]]
    return Panel(title, xlabel, ylabel, lines, _marks(facts), ticks, logarithmic=True)


def _by_layer(tables: Tables, measure: str, label: str, times: float = 1) -> Panel:
    """The mean of each layer, in a band from its lowest to its highest head."""
    rows = tables["attention_layers"]
    layers = [row["layer"] for row in rows]
    mean, low, high = (
        [times * row[measure + end] for row in rows] for end in ("", "_low", "_high")
    )
    name = "mean over heads, lowest to highest"
    line = Line(name, layers, mean, low, high, series(1))
    ticks = layers[:: -(-len(layers) // LAYERS)]
    return Panel("by layer, queries of the second half", "layer", label, [line], ticks=ticks)
