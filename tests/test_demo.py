"""The demo: both models, both heatmaps, one picture."""

import sys

import pytest

from tape_exp import demo
from tests.conftest import SMALL


def test_demo_shows_both_grids_and_names_the_picture(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    tiny = [
        *SMALL,
        "task.train_digits=2",
        "task.test_digits=3",
        "task.samples_per_cell=2",
        "task.optim.max_steps=2",
    ]
    monkeypatch.setattr(
        sys, "argv", ["demo", *tiny, "trainer=cpu", "logger=none", f"runs={tmp_path}/runs"]
    )
    demo.main()
    shown = capsys.readouterr().out
    assert f"{tmp_path}/runs/demo.png" in shown
    assert "Trained on sums of up to 2 digits" in shown
    last = shown[shown.index("Trained on sums") :]
    assert "RoPE" in last
    assert "TAPE" in last
    assert (tmp_path / "runs/demo.png").read_bytes()[:4] == b"\x89PNG"


def test_help_and_mistakes_of_the_demo_have_no_traceback(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["demo", "--help"])
    with pytest.raises(SystemExit) as ended:
        demo.main()
    assert ended.value.code == 0
    assert "key=value" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["demo", "task.trian_digits=2"])
    assert demo.main() == 2
    assert capsys.readouterr().err.startswith("error: task.trian_digits is not known. Did you mean")
