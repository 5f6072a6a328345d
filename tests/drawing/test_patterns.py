"""Pictures of patterns: scales, blanks, and a PNG that is whole or absent."""

import os

import numpy as np
import pytest

from tape_exp.drawing import patterns
from tape_exp.drawing.patterns import draw_patterns, without_empty_ends


@pytest.fixture
def drawn(tmp_path, monkeypatch):
    """Call ``draw_patterns`` and return the axes of what it saved."""
    figures = []

    def keep(figure, path, *_):
        figures.append(figure)
        return path

    def call(panels, **options):
        monkeypatch.setattr(patterns, "save", keep)
        draw_patterns(
            {name: np.array(values, dtype=float) for name, values in panels.items()},
            tmp_path / "p.png",
            **options,
        )
        return [
            axis.images[0] for axis in figures[-1].axes if axis.images and axis.get_title()
        ], figures[-1]

    return call


def test_products_share_one_scale(drawn):
    images, figure = drawn(
        {"layer 1": [[1, 0.2], [0.2, 1]], "layer 4": [[2, 0.5], [0.5, 2]]}, label="E Eᵀ"
    )
    assert [image.get_clim() for image in images] == [(0.2, 2.0)] * 2
    assert [axis.get_title() for axis in figure.axes[:2]] == ["layer 1", "layer 4"]
    assert figure.axes[0].get_xlabel() == "key position"
    assert figure.axes[0].get_ylabel() == "query position"
    assert figure.axes[-1].get_ylabel() == "E Eᵀ"
    assert len(figure.axes) == 3
    apart, _ = drawn(
        {"layer 1": [[1, 0.2], [0.2, 1]], "layer 4": [[2, 0.5], [0.5, 2]]}, shared=False
    )
    assert [image.get_clim() for image in apart] == [(0.2, 1.0), (0.5, 2.0)]


def test_differences_are_centred_each_on_a_scale_of_its_own_and_the_future_is_blank(drawn):
    images, _ = drawn(
        {"a": [[0.1, 9], [-0.4, 0.3]], "b": [[0, 9], [2, 0]], "none": [[0, 9], [0, 0]]},
        signed=["a", "b", "none"],
        causal=["a", "b", "none"],
    )
    assert [image.get_clim() for image in images] == [(-0.4, 0.4), (-2.0, 2.0), (-1.0, 1.0)]
    for image in images:
        assert np.ma.getmaskarray(image.get_array()).tolist() == [[False, True], [False, False]]


def test_few_large_entries_do_not_hide_the_others(drawn):
    attention = np.full((30, 30), 0.01)
    attention[0, 0] = 1
    (image,), _ = drawn({"a": attention})
    assert image.get_clim()[1] == 1  # one value and an outlier: nothing to tell apart below
    attention[:, :5] = 0.05
    attention[0, 0] = 1
    (image,), _ = drawn({"a": attention})
    assert image.get_clim() == (0.01, 0.05)
    assert image.colorbar.extend == "max"


def test_more_than_four_panels_take_another_row(drawn):
    images, figure = drawn({f"layer {n}": [[n]] for n in range(1, 7)})
    assert len(images) == 6
    assert [axis.get_subplotspec().rowspan.start for axis in figure.axes[:6]] == [0, 0, 0, 0, 1, 1]


def test_png_is_whole_or_absent(tmp_path, monkeypatch):
    panels = {"a": np.eye(3)}
    path = draw_patterns(panels, tmp_path / "x" / "p.png", "title")
    before = path.read_bytes()
    assert before[:4] == b"\x89PNG"
    assert draw_patterns(panels, path, "title").read_bytes() == before

    def full(handle):
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        draw_patterns({"a": np.eye(4)}, path)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_padding_at_the_end_is_cut_off():
    values = np.full((4, 5), np.nan)
    values[:3, :2] = 1
    other = np.full((4, 5), np.nan)
    other[0, 3] = 0
    cut = without_empty_ends({"a": values, "b": other})
    assert cut["a"].shape == cut["b"].shape == (3, 4)
    assert np.isnan(cut["a"][2, 3])
    empty = {"a": np.full((2, 2), np.nan)}
    assert without_empty_ends(empty)["a"].shape == (2, 2)
