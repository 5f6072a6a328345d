"""Axes of figures: lengths and their labels, and intervals that stay within."""

import re
from itertools import pairwise

import numpy as np
import pytest

from tape_exp.drawing import matrices as matrices_module
from tape_exp.drawing import plots
from tape_exp.drawing.matrices import Matrix, colour_scale, matrices, run_matrices
from tape_exp.drawing.plots import GridPanel, Line, Panel, labels_with_room
from tape_exp.drawing.style import WIDTH, new_figure
from tape_exp.results.evaluation import Heatmap


@pytest.mark.parametrize(
    ("lengths", "trained", "width", "labelled"),
    [
        ([4, 8, 12, 16, 32, 64], 8, 2.75, "4 8 12 16 32 64"),
        ([4, 8, 12, 16, 32, 64], 12, 0.8, "4 8 12 32 64"),
        ([4, 8, 12, 16, 32, 64], 10, 0.8, "4 8 16 32 64"),
        ([76, 96, 128, 160, 192, 224, 256], 256, 1.1, "76 96 128 192 256"),
        ([8], None, 2.75, "8"),
    ],
)
def test_lengths_have_labels_as_far_as_there_is_room(lengths, trained, width, labelled):
    labels = labels_with_room(lengths, trained, width)
    assert len(labels) == len(lengths)
    assert " ".join(filter(None, labels)) == labelled


def test_the_curve_of_a_run_is_over_its_lengths_with_the_trained_one_marked_where_it_is():
    heatmap = Heatmap(
        np.array([[100.0, 60.0, 0.0]]),
        title="right (%)",
        row_label="",
        column_label="length (symbols)",
        trained=(1, 1),
        rows=["exact match"],
        columns=["8", "12", "64"],
        trained_length=10,
    )
    panel = plots._as_curve(GridPanel("", heatmap))
    assert panel.lines[0].x == panel.ticks == [8, 12, 64]
    assert (panel.trained, panel.log_x) == (10, True)


@pytest.mark.parametrize(("ylim", "drawn"), [(None, (-80, 190)), (plots.PERCENT, (0, 100))])
def test_the_axes_hold_every_interval(ylim, drawn):
    axis = new_figure(2.0).subplots()
    line = Line("a", [1, 2], [50, 60], [-80, 40], [70, 190], joined=False)
    plots._draw_panel(axis, Panel("", "", "", [line], ylim=ylim, bars=True), 2.75)
    ends = np.concatenate([path.vertices[:, 1] for path in axis.collections[0].get_paths()])
    assert (min(ends), max(ends)) == drawn
    low, high = axis.get_ylim()
    assert low < min(ends)
    assert max(ends) < high


@pytest.mark.parametrize(
    ("symbols", "shown"),
    [
        ([*"ab|"], True),
        ([*"123456789+abcdefg="], True),  # with one panel beside another there is no room for these
        ([*"123456789+abcdefghijklmno="], False),
        (["twenty letters and more"] * 3, False),
    ],
)
def test_attention_to_a_text_is_at_its_symbols_where_these_have_room(symbols, shown, tmp_path):
    path = tmp_path / "a.svg"
    run_matrices({"attention@1": np.eye(len(symbols))}, path, symbols=symbols)
    texts = re.findall(r">([^<]+)</text>", path.read_text())
    assert all((texts.count(symbol) == 2) == shown for symbol in symbols)
    assert ("key position" in texts) == (not shown)


def test_long_symbols_among_short_ones_overlap_nothing(monkeypatch, tmp_path):
    """And what the axis is called stays within the figure."""
    figures = []
    monkeypatch.setattr(matrices_module, "save", lambda figure, path: figures.append(figure))
    symbols = ["<eos>", *"|0123|", "<eos>", "0"]
    run = {f"attention@{layer}": np.eye(len(symbols)) / layer for layer in (1, 2, 3)}
    run_matrices(run, tmp_path / "a.svg", symbols=symbols)
    (figure,) = figures
    figure.draw_without_rendering()
    for axis in figure.axes:
        boxes = [label.get_window_extent() for label in axis.get_xticklabels() if label.get_text()]
        assert all(left.x1 < right.x0 for left, right in pairwise(boxes))
        assert axis.yaxis.label.get_window_extent().x0 >= 0
    assert any(axis.get_xlabel() == "key" for axis in figure.axes)


def test_many_matrices_with_long_titles_keep_their_size(tmp_path, monkeypatch):
    monkeypatch.setattr("tape_exp.drawing.matrices.save", lambda figure, path: figure)
    panels = [Matrix(f"layer {n}, a title of lines", np.eye(9), "E") for n in range(1, 13)]
    figure = matrices(panels, tmp_path / "a.svg", "many")
    figure.draw_without_rendering()
    widths = [axis.get_position().width * WIDTH for axis in figure.axes if axis.images]
    assert len(widths) == 12
    assert min(widths) > 0.35  # inches


def test_words_below_an_axis_are_aslant_where_they_would_overlap():
    lines = [Line("a", [0, 1, 2], [1, 2, 3])]
    for words, rotation in ((["gain", "turn", "no\nupdate"], 0), (["no\nfeed-forward"] * 3, 30)):
        axis = new_figure(2.0).subplots()
        panel = Panel("", "", "", lines, ticks=[0, 1, 2], ticklabels=words)
        plots._draw_panel(axis, panel, 1.5)
        assert [label.get_rotation() for label in axis.get_xticklabels()] == [rotation] * 3


def test_a_heatmap_says_what_its_frame_is(tmp_path):
    grid = Heatmap(np.eye(4), "right (%)", "first", "second", trained=(2, 2))
    assert "seen in training" in plots.grids([GridPanel("a", grid)], tmp_path / "a.svg").read_text()
    grid = Heatmap(np.eye(4), "right (%)", "first", "second", trained=(0, 0))
    assert (
        "seen in training"
        not in plots.grids([GridPanel("a", grid)], tmp_path / "a.svg").read_text()
    )


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ([2.4, 0.2], {"0.2", "0.5", "1", "2"}),  # between two powers of ten
        ([3.0, 0.02], {"0.02", "0.05", "0.1", "0.2", "0.5", "1", "2"}),
        ([2.0, 1e-3], {r"$\mathdefault{10^{-2}}$"}),
    ],
)
def test_values_on_a_logarithmic_axis_can_be_read(values, labels):
    axis = new_figure(2.0, "").subplots()
    line = Line("", [0, 1], values, style=plots.REFERENCE)
    plots._draw_panel(axis, Panel("", "step", "loss", [line], log_y=True), 3.0)
    low, high = axis.get_ylim()
    axis.figure.draw_without_rendering()
    shown = set()
    for tick in axis.yaxis.get_major_ticks():
        if low <= tick.get_loc() <= high:
            shown.add(tick.label1.get_text())
    assert labels <= shown


def test_a_line_that_others_hide_is_drawn_wider_than_they():
    axis = new_figure(2.0).subplots()
    heights = {"hidden": [100, 80, 0], "near": [100, 80.5, 0], "above": [100, 80, 0]}
    lines = [Line(name, [1, 2, 3], y) for name, y in heights.items()]
    apart = Line("apart", [1, 2, 3], [100, 90, 60])
    plots._draw_panel(axis, Panel("", "", "", [*lines, apart]), 2.75)
    hidden, near, above, last = (line.get_linewidth() for line in axis.lines)
    assert hidden > near > above == last


def test_every_grid_without_rows_is_a_panel_of_curves(tmp_path):
    one = Heatmap(
        np.full((3, 2), 50.0), "right (%)", "", "length", (3, 1), [*"abc"], ["8", "16"], 8
    )
    path = plots.grids(
        [GridPanel("RoPE  50 %", one), GridPanel("TAPE  50 %", one)], tmp_path / "a.svg"
    )
    assert {"RoPE, 50 %", "TAPE, 50 %"} <= {*re.findall(r">([^<]+)</text>", path.read_text())}


def test_attention_has_colours_from_zero():
    assert colour_scale(np.array([0.2, 0.4])).low == 0
