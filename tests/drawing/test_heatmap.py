"""Heatmaps: a PNG that is whole or absent."""

import os
import subprocess
import sys

import numpy as np
import pytest

from tape_exp.drawing import heatmap
from tape_exp.runs.evaluation import Heatmap
from tape_exp.settings.folders import ROOT


def grid(values) -> Heatmap:
    return Heatmap(
        np.array(values, dtype=float), "exact match (%)", "rows", "columns", trained=(1, 1)
    )


def test_png_is_whole_or_absent(tmp_path, monkeypatch):
    path = heatmap.draw({"a": grid([[1, 2], [3, 4]])}, tmp_path / "x" / "h.png", "title")
    assert path.read_bytes()[:4] == b"\x89PNG"
    before = path.read_bytes()

    def full(handle):
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        heatmap.draw({"a": grid([[4, 3], [2, 1]])}, path)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_named_cells_need_not_be_square(tmp_path, monkeypatch):
    """Rows and columns have their names at their own places; nothing is framed where nothing was
    seen.
    """
    figures = []
    monkeypatch.setattr(heatmap, "save", lambda figure, path, *_: figures.append(figure) or path)
    for trained in ((2, 1), (2, 0)):
        wide = Heatmap(
            np.eye(2, 3),
            "accuracy (%)",
            "depth",
            "length",
            trained,
            ["top", "end"],
            ["64", "128", "192"],
        )
        heatmap.draw({"a": wide}, tmp_path / "h.png")
    axis, without = (figure.axes[0] for figure in figures)
    assert [text.get_text() for text in axis.get_xticklabels()] == ["64", "128", "192"]
    assert list(axis.get_xticks()) == [1, 2, 3]
    assert [text.get_text() for text in axis.get_yticklabels()] == ["top", "end"]
    assert (axis.get_xlim(), axis.get_ylim()) == ((0.5, 3.5), (2.5, 0.5))
    (frame,) = axis.patches
    assert (frame.get_width(), frame.get_height()) == (1, 2)
    assert not without.patches


def test_a_notebooks_backend_that_is_not_installed_is_not_needed():
    notebook = {"MPLBACKEND": "module://backend_of_a_notebook.inline"}
    words = [sys.executable, "-c", "import tape_exp.drawing.heatmap"]
    environment = {**os.environ, **notebook}
    ended = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, timeout=900)
    assert ended.returncode == 0, ended.stderr
