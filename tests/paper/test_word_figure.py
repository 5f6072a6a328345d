"""The figures of word problems: what is drawn and tabulated is what the records say."""

import json

import pytest

from tape_exp.data.groups import GROUPS
from tape_exp.drawing import curves
from tape_exp.paper import artifacts, page
from tape_exp.paper.word_problem import guesses
from tape_exp.runs.identity import config_hash, identity_of
from tape_exp.settings.compose import compose_config
from tests.paper.test_artifacts import shown

LENGTHS = [4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256]


def record(model: str, group: str, seed: int, value: float) -> dict:
    cfg = compose_config(
        [f"model={model}", "task=word_problem", f"task.group={group}", f"seed={seed}"]
    )
    metrics = {f"test/{kind}@{n}": value - n / 8 for n in LENGTHS for kind in ("state", "word")}
    return {
        "config": json.loads(json.dumps(identity_of(cfg))),
        "seed": seed,
        "metrics": metrics | {"id/state": value, "ood/state": value / 2},
        "started": "2026-01-01",
        "git": {"commit": "0123456789", "dirty": False},
    }


@pytest.fixture
def records() -> list[dict]:
    found = [record("tape", "s5", seed, value) for seed, value in enumerate((80.0, 90.0, 100.0))]
    return [
        *found,
        record("nope", "s5", 0, 60.0),
        record("nope", "parity", 0, 99.0),
        record("rope", "a5", 0, 50.0),
    ]


def test_curves_are_means_over_seeds_with_the_range_of_them(records, tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(curves, "save", lambda picture, path, *_: figures.append(picture) or path)
    artifact = artifacts.load("fig_word_problem")
    page.render(artifact, "smoke", artifact.collect("smoke", records), tmp_path)
    left, right = figures[0].axes
    lines = {line.get_label(): line for line in left.get_lines()}
    assert {"TAPE", "NoPE", "best guess"} <= set(lines)
    assert "RoPE" not in lines  # not of this group
    assert list(lines["TAPE"].get_xdata()) == LENGTHS
    assert list(lines["TAPE"].get_ydata()) == [90 - n / 8 for n in LENGTHS]
    (band,) = left.collections  # nothing spans a single seed
    band = band.get_paths()[0].vertices[:, 1]
    assert (band.min(), band.max()) == (80 - 256 / 8, 100 - 4 / 8)
    assert "best guess" not in {line.get_label() for line in right.get_lines()}


def test_table_has_every_group_and_model_and_no_number_of_the_paper(records, tmp_path):
    for name, groups in (
        ("fig_word_problem", ["s5"]),
        ("fig_word_groups", ["parity", "s3", "a5", "s5"]),
    ):
        artifact = artifacts.load(name)
        written = page.render(artifact, "smoke", artifact.collect("smoke", records), tmp_path)
        assert written[-1].read_bytes()[:4] == b"\x89PNG"
        rows = shown(artifact, records)
        assert [(row["group"], row["model"]) for row in rows] == [
            (g, m) for g in groups for m in artifact.models
        ]
        assert not any(row["paper"] for row in rows)
        found = {(row["group"], row["model"]): row for row in rows}
        if groups == ["s5"]:
            assert found["s5", "tape"]["≤ 32"].startswith(
                "90.00 ± 24.84"
            )  # t = 4.303, s = 10, n = 3
            assert found["s5", "tape"]["words of 256"].startswith("58.00 ±")
            assert found["s5", "fire"]["≤ 32"] == ""
        else:
            assert (found["parity", "nope"]["≤ 32"], found["parity", "nope"]["seeds"]) == (
                "99.00",
                "1",
            )
            assert found["a5", "rope"]["words of 32"] == "46.00"


def test_runs_are_those_of_every_group_and_model_on_the_command_line():
    artifact = artifacts.load("fig_word_groups")
    found = list(artifact.configs("smoke", [2], ["task.words=8"]))
    assert [name for name, _ in found] == [
        f"{model}/{group}" for group in artifact.groups for model in artifact.models
    ]
    for name, cfg in (found[0], found[-1]):
        model, group = name.split("/")
        words = [
            "task=word_problem",
            f"model={model}",
            f"task.group={group}",
            "seed=2",
            "task.words=8",
        ]
        assert config_hash(cfg) == config_hash(compose_config(words))


def test_guesses_are_means_over_buckets():
    guess = 100 * GROUPS["s5"]().guess(8)
    assert guesses("s5", [4, 8]) == pytest.approx([guess[:4].mean(), guess[4:].mean()])
