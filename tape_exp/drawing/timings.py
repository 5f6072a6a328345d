"""The time of attention by length, from a record of ``python -m benchmarks.speed``."""

from collections.abc import Mapping
from typing import Any

from tape_exp.drawing.curves import Curves, Line, Panel
from tape_exp.drawing.looks import looks_of
from tape_exp.settings.naming import display_name


def timing_curves(record: Mapping[str, Any], suffix: str = "") -> Curves:
    """The median of each encoding on its fastest backend, between the quartiles over rounds."""
    core = [row for row in record["rows"] if row["what"] == "core"]
    panels = []
    for backward, title in ((False, "forward"), (True, "forward + backward")):
        rows = [row for row in core if row["backward"] == backward]
        lengths = sorted({row["T"] for row in rows})
        looks = looks_of(dict.fromkeys(row["encoding"] for row in rows))
        lines = []
        for name, look in looks.items():
            own = [row for row in rows if row["encoding"] == name]
            best = [_fastest(rows, row) for row in own]
            best = sorted({row["T"]: row for row in best}.values(), key=lambda row: row["T"])
            lows, highs = zip(*(row["ms_quartiles"] for row in best), strict=True)
            points = [row["T"] for row in best], [row["ms"] for row in best]
            lines.append(Line(display_name(name), *points, [*lows], [*highs], look))
        axes: Any = {"ticks": lengths, "logarithmic": True, "powers": True}
        panels.append(Panel(title, "length (tokens)", "time (ms)", lines, **axes))
    title = f"Time of attention on the fastest backend, {record['machine']}, {record['dtype']}"
    return Curves(title, panels, suffix, shared=False)


def _fastest(rows: list[dict[str, Any]], like: Mapping[str, Any]) -> dict[str, Any]:
    """The fastest of the rows that differ from one in their backend only."""
    keys = ("T", "backward", "encoding")
    return min((r for r in rows if all(r[k] == like[k] for k in keys)), key=lambda r: r["ms"])
