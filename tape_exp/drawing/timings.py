"""The time of attention by length, from a record of ``python -m benchmarks.speed``."""

from collections.abc import Mapping
from typing import Any

from tape_exp.drawing.plots import Line, Panel
from tape_exp.drawing.style import styles_of
from tape_exp.settings.naming import display_name


def timing_panels(record: Mapping[str, Any]) -> list[Panel]:
    """The median of each encoding on its fastest backend, between the quartiles over rounds."""
    panels = []
    for backward, title in ((False, "forward"), (True, "forward + backward")):
        rows = [r for r in record["rows"] if r["what"] == "core" and r["backward"] == backward]
        lines = []
        for name, style in styles_of(row["encoding"] for row in rows).items():
            own = [row for row in rows if row["encoding"] == name]
            slow_first = sorted(own, key=lambda row: (row["T"], -row["ms"]))
            best = {row["T"]: row for row in slow_first}
            ends: Any = zip(*(row["ms_quartiles"] for row in best.values()), strict=True)
            ms = [row["ms"] for row in best.values()]
            low, high = ends
            lines.append(Line(display_name(name), [*best], ms, low, high, style))
        lengths = sorted({row["T"] for row in rows})
        axes: Any = {"ticks": lengths, "log_x": True, "log_y": True}
        panels.append(Panel(title, "length (tokens)", "time (ms)", lines, **axes))
    return panels


def timing_title(record: Mapping[str, Any]) -> str:
    """The title above these panels."""
    return f"Time of attention on the fastest backend, {record['machine']}, {record['dtype']}"
