"""Results on a terminal."""

import io

import numpy as np
import pytest
from rich.console import Console

from tape_exp.drawing.terminal import print_heatmaps
from tape_exp.results.evaluation import Heatmap


def lines_of(values, width, **axes) -> list[str]:
    """What is printed of a grid on a terminal of so many letters."""
    console = Console(file=io.StringIO(), width=width)
    given = {"title": "right (%)", "row_label": "", "column_label": "length"} | axes
    print_heatmaps({"a": Heatmap(np.array(values), **given)}, console)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_accuracies_are_printed_in_percent_each_below_its_length():
    names = {"rows": ["exact match"], "columns": ["4", "8", "16"]}
    lines = lines_of([[100.0, 84.4, np.nan]], 80, trained=(1, 2), **names)
    assert lines[1:4] == [
        "              4   8   16",
        "exact match 100  84 │  ·",
        "right (%); · = not evaluated",
    ]
    assert lines[-1] == "left of the bar: seen in training"


@pytest.mark.parametrize(("width", "row"), [(50, " 1  50  50 │"), (40, " 1 5 5 │")])
def test_a_grid_that_is_too_wide_is_printed_in_tens(width, row):
    lines = lines_of(np.full((10, 10), 50.0), width, trained=(2, 2))
    assert lines[2].startswith(row)
    assert all(len(line) <= width for line in lines[:13])
    assert lines[-1] == "framed: seen in training"
    assert ("right (%) in tens: 9 = 90 to 100" in lines) == (width == 40)
