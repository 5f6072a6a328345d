"""The search of learning rates: what is tried, what is chosen, and what is drawn of it."""

import json

import pytest

from tape_exp.paper import __main__ as paper
from tape_exp.paper import artifacts
from tape_exp.paper.rates import label
from tape_exp.paper.words import requested
from tape_exp.runs.identity import identity_of

LOSSES = {0.0003: 0.9, 0.001: 0.2, 0.003: 0.5}


@pytest.fixture
def artifact():
    loaded = artifacts.load("fig_rates")
    loaded.models, loaded.factors = ["rope", "tape"], {"tape": [10.0]}
    return loaded


def records_of(artifact, losses: dict[tuple[str, float, float], float]) -> list[dict]:
    """A record of each run that has a loss; the test is the better the worse the loss is."""
    labels = {label(*tried): loss for tried, loss in losses.items()}
    records = []
    for name, cfg in artifact.configs("rung5", [0, 1]):
        if name in labels:
            loss = labels[name] + cfg.seed / 100
            metrics = {
                "val/loss": loss,
                "id/exact_match": 100 * loss,
                "ood/exact_match": 100 * loss,
            }
            curve = {"step": [10, 20], "value": [2 * loss, loss]}
            record = {"config": json.loads(json.dumps(identity_of(cfg))), "seed": cfg.seed}
            record |= {"metrics": metrics, "curves": {"val/loss": curve}, "started": "2026-01-01"}
            records.append(record | {"git": {"commit": "0123456789", "dirty": False}})
    return records


@pytest.fixture
def losses(artifact) -> dict[tuple[str, float, float], float]:
    found = {(m, rate, 1.0): loss for m in artifact.models for rate, loss in LOSSES.items()}
    return found | {("tape", 0.001, 10.0): 0.1}


def rows_of(artifact, losses) -> dict[tuple[str, str, str], dict]:
    collected = artifact.collect("rung5", records_of(artifact, losses))
    table = artifact.table("rung5", collected)
    return {tuple(str(row[key]) for key in ("model", "rate", "factor")): row for row in table.rows}


def chosen(rows: dict) -> list[tuple[str, str, str]]:
    return [key for key, row in rows.items() if row["chosen"] == "yes"]


def test_the_lowest_validation_loss_of_the_rates_that_all_tried_is_chosen(artifact, losses):
    """Not the best test, and not a factor, which other models did not try."""
    rows = rows_of(artifact, losses)
    assert list(rows) == [
        *(("rope", rate, "1") for rate in ("0.0003", "0.001", "0.003")),
        ("tape", "0.0003", "1"),
        ("tape", "0.001", "1"),
        ("tape", "0.001", "10"),
        ("tape", "0.003", "1"),
    ]
    assert chosen(rows) == [("rope", "0.001", "1"), ("tape", "0.001", "1")]
    best = rows["tape", "0.001", "1"]
    assert str(best["validation loss"]) == "0.2050 (0.2000, 0.2100)"
    assert (str(best["seeds"]), best["scale"]) == ("2", "rung5")


def test_nothing_is_chosen_while_a_rate_is_missing(artifact, losses):
    del losses["rope", 0.0003, 1.0]  # the worst one: the others alone would choose the same
    rows = rows_of(artifact, losses)
    assert chosen(rows) == [("tape", "0.001", "1")]
    assert str(rows["rope", "0.0003", "1"]["validation loss"]) == ""


@pytest.mark.parametrize("model", ["rope", "tape"])
def test_nothing_is_chosen_while_rates_have_other_seeds(artifact, losses, model):
    """Not even the lowest loss: it may be that of an easier seed."""
    collected = artifact.collect("rung5", records_of(artifact, losses))
    assert artifact.choice(model, collected) == (0.001, 1.0)
    del collected[label(model, 0.001, 1.0)][1]
    assert artifact.choice(model, collected) is None
    for rate in (0.0003, 0.003):
        del collected[label(model, rate, 1.0)][0]  # as many seeds, and others
    assert artifact.choice(model, collected) is None


def test_a_line_has_the_steps_that_all_seeds_have(artifact, losses):
    records = records_of(artifact, losses)
    records[0]["curves"]["val/loss"] = {"step": [5, 10, 20, 30], "value": [4.0, 3.0, 2.0, 1.0]}
    collected = artifact.collect("rung5", records)
    (figure,) = artifact.figures("rung5", collected)
    line = figure.panels[0].lines[0]
    assert (line.name, line.x, line.high) == ("rate 0.0003", [10, 20], [3.0, 2.0])
    assert "bands reach from the lowest seed to the highest" in artifact.caption("rung5", collected)


def test_it_has_no_runs_at_another_scale(artifact, losses, capsys):
    assert list(artifact.configs("smoke", [0])) == []
    assert artifact.collect("smoke", records_of(artifact, losses)) == {}
    assert artifact.gaps({"rung5": {}}) == ["scale rung5 (needs nothing but time)"]
    assert paper.main(["run", "fig_rates", "scale=smoke"]) == 2
    message = "fig_rates has no runs at scale=smoke; scale=rung5 has."
    assert capsys.readouterr().err == f"error: {message}\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("fig_addition_trend scale=ladder seeds=0,7", "fig_addition_trend has no run of seed 7; `"),
        ("tab_flops seeds=0,1", "tab_flops has no run of seed 1; `"),
        ("tab_speed", "tab_speed shows no runs; `python -m benchmarks.speed` measures it."),
        ("all fig_addition", "all stands for every artifact of the scale; leave out"),
        (
            "fig_rates scale=rung5 seeds=0 task.optim.lr=0.1",
            "task.optim.lr=0.1: fig_rates sets this key of its runs itself, and names them by it.",
        ),
        (
            "tab_addition_failures scale=ladder +task.optim.max_steps=5",
            "+task.optim.max_steps=5: tab_addition_failures sets this key",
        ),
    ],
)
def test_what_no_run_of_an_artifact_has_is_refused(words, message, capsys):
    assert paper.main(["run", *words.split(), "--dry-run"]) == 2
    assert capsys.readouterr().err.startswith(f"error: {message}")


def test_all_of_a_scale_are_the_artifacts_that_have_it():
    assert {a.name for a in requested(["all", "scale=ladder"])[0]} == {
        "fig_addition_trend",
        "tab_addition_failures",
    }


def test_every_run_has_its_rate_and_every_model_the_same_ones():
    whole = artifacts.load("fig_rates")
    configs = [cfg for _, cfg in whole.configs("rung5", [0])]
    rates = {}
    for cfg in configs:
        if cfg.task.optim.position_lr == 1:
            rates.setdefault(cfg.model.name, []).append(cfg.task.optim.lr)
    assert list(rates) == whole.models
    assert {tuple(tried) for tried in rates.values()} == {tuple(whole.rates)}
    factors = {cfg.task.optim.position_lr for cfg in configs if cfg.model.name == "tape"}
    assert factors == {1.0, *whole.factors["tape"]}


def test_a_panel_for_each_model_has_a_line_for_each_rate(artifact, losses, tmp_path):
    del losses["rope", 0.003, 1.0]
    collected = artifact.collect("rung5", records_of(artifact, losses))
    (figure,) = artifact.figures("rung5", collected)
    rope, tape = figure.panels
    assert (rope.title, rope.xlabel, rope.ylabel) == ("RoPE", "step", "validation loss (nats)")
    assert [line.name for line in rope.lines] == ["rate 0.0003", "rate 0.001"]
    assert [line.name for line in tape.lines] == [
        "rate 0.0003",
        "rate 0.001",
        "rate 0.003",
        "rate 0.001, positions × 10",
    ]
    line = rope.lines[1]
    assert (line.x, line.y) == ([10, 20], pytest.approx([0.41, 0.205]))
    assert (line.low, line.high) == (pytest.approx([0.4, 0.2]), pytest.approx([0.42, 0.21]))
    assert line.look == tape.lines[1].look, "a rate has one colour"
    assert figure.draw(tmp_path / "rates.png").read_bytes()[:4] == b"\x89PNG"
    assert artifact.figures("rung5", {}) == []
