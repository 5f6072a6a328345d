"""A picture is drawn again when its data, its code or its file has changed, and only then."""

import dataclasses

import numpy as np
import pytest

from tape_exp.drawing import figures
from tape_exp.drawing.curves import Curves, Line, Panel
from tape_exp.drawing.figures import mark_in, redraw
from tape_exp.drawing.heatmap import Heatmaps
from tape_exp.drawing.patterns import Patterns
from tape_exp.runs.evaluation import Heatmap

GRID = np.array([[1.0, np.nan], [3.0, 4.0]])
FIGURES = [
    Curves("a", [Panel("p", "x", "y", [Line("l", [1, 2], [3, 4])])]),
    Heatmaps("a", {"rope": Heatmap(GRID, "value", "row", "column", (0, 0))}),
    Patterns("a", {"attention": GRID}),
]


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: type(figure).__name__)
def test_only_what_has_changed_is_drawn(figure, tmp_path, monkeypatch):
    path, drawn = tmp_path / "a.png", []
    draw = type(figure).draw
    monkeypatch.setattr(type(figure), "draw", lambda *given: drawn.append(1) or draw(*given))
    for _ in range(2):
        assert redraw(figure, path)[-1] == path
    assert len(drawn) == 1
    whole = path.read_bytes()
    redraw(dataclasses.replace(figure, title="b"), path)
    assert len(drawn) == 2
    assert path.read_bytes() != whole
    for damaged in (whole[: len(whole) // 2], b"", b"no picture"):
        path.write_bytes(damaged)
        redraw(figure, path)
        assert path.read_bytes() == whole
    assert len(drawn) == 5
    monkeypatch.setattr(figures, "_code", lambda: "another version")
    redraw(figure, path)
    assert len(drawn) == 6


def test_a_picture_without_a_mark_has_none(tmp_path):
    path = FIGURES[0].draw(tmp_path / "a.png")
    assert mark_in(path) is None
    assert mark_in(tmp_path / "nothing.png") is None
