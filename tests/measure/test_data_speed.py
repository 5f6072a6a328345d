"""The benchmark of the data path: every figure is measured and recorded, on a small text."""

import json

import pytest

from tape_exp.measure import data_speed, results
from tape_exp.settings.compose import compose_config
from tests.conftest import on_text


def test_record_holds_every_figure(tmp_path, text_folder, monkeypatch):
    whole = data_speed.smoke

    def small(folder, *words):
        words = [word for word in words if not word.startswith("task.windows")]
        made = whole(folder, *words)
        text = [word for word in on_text(text_folder) if not word.startswith("cache=")]
        steps = [f"task.optim.max_steps={min(made.task.optim.max_steps, 20)}", "task.optim.batch=4"]
        fixed = [
            "task=c4",
            "model=rope",
            "logger=none",
            "trainer.progress=none",
            "trainer=cpu",
            "trainer.log_every=5",
        ]
        return compose_config([*fixed, *text, *steps, f"runs={made.runs}", f"cache={made.cache}"])

    monkeypatch.setattr(data_speed, "smoke", small)
    assert data_speed.main(["--out", str(tmp_path)]) == 0
    (path,) = tmp_path.glob("data-*.json")
    record = json.loads(path.read_text())
    assert record["tokenising_mb_per_second_one_core"]["median"] > 0
    assert 0 < record["second_start_seconds"]["median"] < 2
    assert 0 <= record["data_wait_percent_of_a_step"]["median"] < 100
    assert set(record["evaluation_over_bare_forward"]) == {"16", "32"}
    for ratio in record["evaluation_over_bare_forward"].values():
        assert ratio["lower_quartile"] <= ratio["median"] <= ratio["upper_quartile"]
    assert "one_gigabyte" not in record


def test_a_figure_that_is_cut_off_leaves_those_before_it(tmp_path, monkeypatch):
    def cut_off(folder):
        raise KeyboardInterrupt

    monkeypatch.setattr(data_speed, "tokenising", lambda folder: {"median": 1.5})
    monkeypatch.setattr(data_speed, "second_start", cut_off)
    data_speed.main(["--out", str(tmp_path)])
    (path,) = tmp_path.glob("data-*.json")
    record = json.loads(path.read_text())
    assert record["unfinished"] is True
    assert record["tokenising_mb_per_second_one_core"] == {"median": 1.5}
    assert "second_start_seconds" not in record


def test_spread_is_median_and_quartiles():
    assert results.spread([1.0, 2.0, 3.0]) == {
        "median": 2.0,
        "lower_quartile": 1.0,
        "upper_quartile": 3.0,
    }
    with pytest.raises(ValueError, match="at least"):
        results.spread([])
