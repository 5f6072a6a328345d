"""Pictures as files: the committed ones and new ones. What readers see has no key of a config."""

import re
from pathlib import Path

import numpy as np
import pytest
from tape_exp.drawing.curves import Curves, Line, Panel
from tape_exp.drawing.figures import mark_in, redraw
from tape_exp.drawing.heatmap import Heatmaps
from tape_exp.drawing.looks import looks_of
from tape_exp.drawing.page import DOUBLE, KINDS, SINGLE, TYPE, in_few_colours, shorter
from tape_exp.drawing.patterns import Patterns, matrix_name

from tape_exp.drawing import curves, heatmap
from tape_exp.runs.evaluation import Heatmap
from tape_exp.settings.folders import ROOT
from tape_exp.settings.naming import display_name

COMMITTED = sorted((ROOT / "results" / "figures").glob("*.png"))
LARGEST = 200_000  # bytes
KEY = re.compile(r"[a-z]+_[a-z]+|[a-z]+/[a-z]+|@\d")  # tape_no_attention, val/loss, products@3
GRID = Heatmap(np.eye(10), "exact match (%)", "digits of the first", "digits", (5, 5))
NAMES = ("tape", "rope_window×3+nope", "tape_no_feed_forward", "alibi_randpe", "fire", "nope")


def lines(*names: str) -> list[Line]:
    looks = looks_of(names)
    return [Line(display_name(n), [1, 2, 4], [3, 2, 1], [2] * 3, [4] * 3, looks[n]) for n in names]


FIGURES = {
    "curves": Curves("Curves", [Panel("p", "length (tokens)", "loss (nats)", lines(*NAMES))] * 3),
    "heatmap": Heatmaps("A run", {display_name("rope_window×3+nope"): GRID}),
    "heatmaps": Heatmaps("Runs", {display_name(name): GRID for name in NAMES}),
    "patterns": Patterns("Patterns", {matrix_name("products@3"): GRID.values}, label="E·Eᵀ"),
    "differences": Patterns("Two", {"a": GRID.values, "b": -GRID.values}, signed=["b"]),
}


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.stem)
def test_a_committed_picture_is_there_as_three_files_of_one_drawing(path):
    files = [path.with_suffix(f".{kind}") for kind in KINDS]
    assert all(0 < file.stat().st_size <= LARGEST for file in files)
    mark = mark_in(path)
    assert mark
    assert all(mark.encode() in file.read_bytes() for file in files[:2])
    pdf = files[0].read_bytes()
    assert b"/TrueType" in pdf or b"/CIDFontType2" in pdf
    assert b"/Type3" not in pdf
    assert b"CreationDate" not in pdf
    assert b"<dc:date>" not in files[1].read_bytes()


@pytest.mark.parametrize("name", FIGURES)
def test_the_same_picture_has_the_same_bytes(name, tmp_path):
    files = [redraw(FIGURES[name], tmp_path / folder / "a.png") for folder in ("x", "y")]
    assert [file.name for file in files[0]] == ["a.pdf", "a.svg", "a.png"]
    assert [file.read_bytes() for file in files[0]] == [file.read_bytes() for file in files[1]]


@pytest.fixture
def picture(monkeypatch, tmp_path):
    """Draw a figure and return matplotlib's, laid out."""

    def call(figure):
        kept = []
        for module in (curves, heatmap, __import__("tape_exp.drawing.patterns", fromlist=["x"])):
            monkeypatch.setattr(module, "save", lambda drawn, path, *_: kept.append(drawn) or path)
        figure.draw(Path(tmp_path / "a.png"))
        kept[0].canvas.draw()
        return kept[0]

    return call


def words_of(drawn) -> list:
    """The texts of a picture, ticks aside."""
    seen = [axis for axis in drawn.axes if axis.get_visible()]
    found = [drawn._suptitle, *drawn.texts, *(t for one in drawn.legends for t in one.get_texts())]
    found += [text for a in seen for text in (a.title, a.xaxis.label, a.yaxis.label)]
    return [text for text in found if text and text.get_text()]


@pytest.mark.parametrize("name", FIGURES)
def test_a_picture_fits_a_column_in_readable_type(name, picture):
    drawn = picture(FIGURES[name])
    assert drawn.get_figwidth() in (SINGLE, DOUBLE)
    width, height = drawn.bbox.max
    for text in words_of(drawn):
        assert text.get_fontsize() >= TYPE - 0.5
        assert not KEY.search(text.get_text())
        box = text.get_window_extent()
        inside = box.x0 >= -1 and box.y0 >= -1 and box.x1 <= width + 1 and box.y1 <= height + 1
        assert inside, text.get_text()
    for axis in drawn.axes:
        assert all(t.get_fontsize() >= TYPE - 0.5 for t in axis.get_xticklabels())


@pytest.mark.parametrize("name", FIGURES)
def test_there_is_one_colour_bar_and_the_legend_is_beside_the_data(name, picture):
    drawn = picture(FIGURES[name])
    bars = [axis for axis in drawn.axes if axis.get_label() == "<colorbar>"]
    assert len(bars) == (0 if name == "curves" else 1)
    assert not any(axis.get_legend() for axis in drawn.axes)
    for legend in drawn.legends:
        box = legend.get_window_extent()
        assert all(not box.overlaps(axis.get_window_extent()) for axis in drawn.axes)
        assert box.x0 >= 0
        assert box.x1 <= drawn.bbox.x1
    assert len(drawn.legends) == (name == "curves")


def test_a_matrix_of_a_run_is_named_in_words():
    found = [matrix_name(key) for key in ("products@3", "attention@1", "attention@2 first_solved")]
    assert found == ["E·Eᵀ, layer 3", "attention, layer 1", "attention, layer 2, first solved"]


def test_a_smaller_file_is_the_same_picture(tmp_path):
    svg = '<g>\n  <path d="M 1.23456 2.5 \nL 1 2" transform="scale(0.015625)"/>\n</g>'
    assert shorter(svg) == '<g>\n<path d="M 1.23 2.5L1 2" transform="scale(0.015625)"/>\n</g>'
    svg = '<g id="line_1"><path id="m0a1b2c"/><use href="#m0a1b2c" style="fill: #000000"/></g>'
    assert shorter(svg) == '<g><path id="n0"/><use href="#n0" style="fill: #000000"/></g>'
    path = FIGURES["curves"].draw(tmp_path / "a.png", "0123")
    small = tmp_path / "b.png"
    small.write_bytes(in_few_colours(path.read_bytes(), "0123"))
    assert mark_in(small) == mark_in(path) == "0123"
    assert small.stat().st_size < path.stat().st_size
