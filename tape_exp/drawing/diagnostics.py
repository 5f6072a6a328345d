"""Figures of the length diagnostics, from the tables that a record holds."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tape_exp.drawing.curves import Curves, Line, Panel

Row = Mapping[str, Any]
Tables = Mapping[str, Sequence[Row]]
LAYERS = 8  # that are drawn, evenly spaced; the tables have all
SEEN = "tokens that are seen"


def diagnostic_figures(tables: Tables, name: str) -> dict[str, Curves]:
    """One of each table of :class:`~tape_exp.tasks.diagnostics.Diagnostics`; none without them.

    Args:
        tables: of an evaluation or of its record.
        name: of the run or of its model.
    """
    if "loss_by_position" not in tables or "summary" not in tables:
        return {}
    facts = tables["summary"][0]
    title = f"{name}{' (untrained)' if facts['model'] == 'untrained' else ''} on {facts['text']}"
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


def _ticks(facts: Row) -> list[int]:
    """1, 4, 16 … for lengths that double at equal distances."""
    return [4**n for n in range(16) if 4**n <= facts["length"]]


def _layers(tables: Tables) -> list[int]:
    """Some of the numbers of layers."""
    every = [row["layer"] for row in tables["attention_layers"]]
    return every[:: -(-len(every) // 8)]


def _marks(facts: Row) -> list[float]:
    """The trained length, if the model has one, as a vertical line."""
    return [facts["trained_length"]] if facts["trained_length"] else []


def _band(rows: Sequence[Row], name: str, x: str, y: str, low: str, high: str, **how: Any) -> Line:
    values: Any = ([row[key] for row in rows] for key in (x, y, low, high))
    return Line(name, *values, **how)


def _loss_by_position(tables: Tables, facts: Row) -> list[Panel]:
    rows = [{**row, "x": _middle(row)} for row in tables["loss_by_position"]]
    line = _band(rows, "mean over windows, 95 %", "x", "loss", "low", "high", width=1.2)
    labels = (SEEN, "loss (nats a token)")
    marks = _marks(facts)
    beyond = f", dotted: trained to {marks[0]:,}" if marks else ""
    return [
        Panel(f"loss by position{beyond}", *labels, [line], marks, _ticks(facts), logarithmic=True),
        Panel("the same, equal distances", *labels, [line], marks),
    ]


def _loss_by_context(tables: Tables, facts: Row) -> list[Panel]:
    rows, margin = tables["loss_by_context"], facts["margin"]
    loss = _band(rows, "mean over windows, 95 %", "context", "loss", "low", "high")
    keys = ("context", "excess", "excess_low", "excess_high")
    excess = _band(rows, "mean over windows, 95 %", *keys)
    ends = [rows[0]["context"], rows[-1]["context"]]
    allowed = Line(f"margin {margin:g}", ends, [margin, margin], style=None, dash="--")
    marks, scored = _marks(facts), f"last {facts['scored'] // facts['windows']:,} tokens of each"
    return [
        Panel(
            f"{scored} of {facts['windows']} windows",
            "context (tokens)",
            "loss (nats a token)",
            [loss],
            marks,
            _ticks(facts),
            logarithmic=True,
        ),
        Panel(
            f"above the longest; effective context {facts['effective_context']:,}",
            "context (tokens)",
            "difference (nats a token)",
            [excess, allowed],
            marks,
            _ticks(facts),
            logarithmic=True,
        ),
    ]


def _sinks(tables: Tables, facts: Row) -> list[Panel]:
    lines = _lines(tables["attention_sinks"], _middle, "probability", 100)
    label, title = "attention (%)", f"on the first {facts['sinks']} tokens, by query"
    return [
        Panel(
            title, SEEN, label, lines, _marks(facts), _ticks(facts), logarithmic=True, percent=True
        ),
        Panel(
            "by layer",
            "layer",
            label,
            [_of_heads(tables, "sinks", 100)],
            ticks=_layers(tables),
            percent=True,
        ),
    ]


def _distance(tables: Tables, facts: Row) -> list[Panel]:
    rows = [row for row in tables["attention_distance"] if row["from"]]
    lines = _lines(rows, lambda row: row["from"], "probability", 100)
    label = "distance (tokens), from … to the next"
    mean = _of_heads(tables, "distance")
    marks = _marks(facts)
    return [
        Panel(
            "by distance of the key",
            label,
            "attention (%)",
            lines,
            marks,
            _ticks(facts),
            logarithmic=True,
        ),
        Panel("by layer", "layer", "mean distance (tokens)", [mean], ticks=_layers(tables)),
    ]


def _entropy(tables: Tables, facts: Row) -> list[Panel]:
    rows = tables["attention_entropy"]
    lines = _lines(rows, _middle, "entropy")
    first = [row for row in rows if row["layer"] == rows[0]["layer"]]
    x, y = [_middle(row) for row in first], [row["uniform"] for row in first]
    lines.append(Line("uniform: ln n", x, y, style=None, dash="--"))
    label = "entropy of attention (nats)"
    return [
        Panel("by query", SEEN, label, lines, _marks(facts), _ticks(facts), logarithmic=True),
        Panel("by layer", "layer", label, [_of_heads(tables, "entropy")], ticks=_layers(tables)),
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
    for style, layer in enumerate(chosen):
        own = [row for row in rows if row["layer"] == layer]
        points = [x(row) for row in own], [times * row[y] for row in own]
        lines.append(Line(f"layer {layer}", *points, style=style, width=1.2))
    return lines


def _of_heads(tables: Tables, measure: str, times: float = 1) -> Line:
    """The mean of each layer, in a band from its lowest to its highest head."""
    rows = tables["attention_layers"]
    mean, low, high = (
        [times * row[measure + end] for row in rows] for end in ("", "_low", "_high")
    )
    name = "mean over heads, lowest to highest"
    return Line(name, [row["layer"] for row in rows], mean, low, high, None, "black")
