"""What a terminal shows: numbers, and heatmaps with their axes, frame and legend."""

import io

import numpy as np
from rich.console import Console

from tape_exp.drawing.terminal import brief, print_heatmaps
from tape_exp.runs.evaluation import Heatmap


def grid(values, trained=(1, 1), rows=(), columns=(), labels=("first", "second")) -> Heatmap:
    values = np.array(values, dtype=float)
    return Heatmap(values, "exact match (%)", *labels, trained, [*rows], [*columns])


def printed(panels, **options) -> list[str]:
    out = io.StringIO()
    print_heatmaps(panels, Console(file=out, **{"width": 80} | options))
    return out.getvalue().splitlines()


def test_small_numbers_are_scientific():
    values = (2.33412, 0.0, -0.5, 0.00083, -2e-7)
    assert [brief(v, 2) for v in values] == ["2.33", "0.00", "-0.50", "8.3e-04", "-2.0e-07"]


def test_plain_text_has_tenths_axes_a_frame_and_a_legend():
    assert printed({"rope": grid([[100, 49], [0, np.nan]])}) == [
        "rope",
        "  1  2",
        "1 9 │4",
        "  ──┘",
        "2 0  ··",
        "exact match (%) in tens: 9 = 90 to 100; ·· = not evaluated",
        "rows: first; columns: second",
        "framed: seen in training",
    ]


def test_named_rows_and_columns_and_nothing_framed_where_all_or_nothing_was_seen():
    row = grid([[100, 50, 0]], (1, 2), ["state"], ["8", "16", "32"], ("", "length"))
    seen = grid([[100, 50]], (1, 2))
    unseen = grid([[100, 50]], (1, 0))
    assert printed({"a": row})[1:3] == ["      8  16  32", "state 9  5  │0"]
    assert printed({"a": row})[4:] == ["columns: length", "framed: seen in training"]
    assert [printed({"a": g})[2] for g in (seen, unseen)] == ["1 9 5"] * 2
    assert "framed: seen in training" not in printed({"a": unseen})


def test_colours():
    text = "\n".join(
        printed(
            {"a": grid([[100, 0]]), "b": grid([[50, 50]])},
            force_terminal=True,
            color_system="truecolor",
        )
    )
    assert text.count("48;2;8;29;88") == 2  # the darkest blue of YlGnBu, also in the legend
    assert "100  exact match (%)" in text
    assert "in tens" not in text


def test_wide_grids_go_below_each_other():
    panels = {name: grid([[1] * 20] * 2) for name in "ab"}
    assert sum(line.strip() in ("a", "b") for line in printed(panels, width=60)) == 2
    assert printed(panels, width=100)[0].split() == ["a", "b"]
