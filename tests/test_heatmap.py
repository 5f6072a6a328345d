"""Heatmaps: what a terminal shows, and a PNG that is whole or absent."""

import io

import numpy as np
import pytest
from rich.console import Console

from tape_exp import heatmap
from tape_exp.tasks.base import Heatmap


def grid(values) -> Heatmap:
    return Heatmap(np.array(values, dtype=float), "exact match (%)", "rows", "columns", trained=1)


def test_plain_text_shows_tenths_and_missing_cells():
    out = io.StringIO()
    heatmap.show({"a": grid([[100, 49], [0, np.nan]])}, Console(file=out, width=80))
    assert [line.split() for line in out.getvalue().splitlines()] == [["a"], ["9", "4"], ["0", "··"]]


def test_terminal_shows_coloured_blocks():
    out = io.StringIO()
    console = Console(file=out, width=80, force_terminal=True, color_system="truecolor")
    heatmap.show({"a": grid([[100, 0]]), "b": grid([[50, 50]])}, console)
    assert "48;2;8;29;88" in out.getvalue()  # the darkest blue of YlGnBu
    assert out.getvalue().splitlines()[0].count("a") == 1


def test_wide_panels_go_below_each_other():
    out = io.StringIO()
    heatmap.show({name: grid([[1] * 20] * 2) for name in "ab"}, Console(file=out, width=60))
    assert len(out.getvalue().splitlines()) == 6


def test_png_is_whole_or_absent(tmp_path, monkeypatch):
    path = heatmap.draw({"a": grid([[1, 2], [3, 4]])}, tmp_path / "x" / "h.png", "title")
    assert path.read_bytes()[:4] == b"\x89PNG"
    before = path.read_bytes()
    from matplotlib.figure import Figure

    def killed(self, target, **options):
        target.write_bytes(b"half")
        raise OSError("no space left")

    monkeypatch.setattr(Figure, "savefig", killed)
    with pytest.raises(OSError, match="no space"):
        heatmap.draw({"a": grid([[1, 2], [3, 4]])}, path)
    assert path.read_bytes() == before
