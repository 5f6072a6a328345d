"""The pass key figure: pooled seeds, the paper beside ours, and the runs that each method begins
from.
"""

import pytest

from tape_exp.drawing import curves, heatmap
from tape_exp.paper import artifacts, extension, page, runner
from tape_exp.paper.claims import FLOOR
from tape_exp.paper.passkey import points
from tests.paper.test_artifacts import shown
from tests.paper.test_language import record

LENGTHS = [96, *range(128, 513, 64)]


@pytest.fixture
def artifact():
    """Four methods that need nothing beyond what every model has; two of them are the paper's."""
    loaded = artifacts.load("fig_passkey")
    methods = {
        "base": "checkpoint=c4",
        "lora": "model.theta=2e4",
        "tape": "model.theta=3e4",
        "theta": "model.theta=1e6",
    }
    loaded.methods = {name: ["model=rope", word] for name, word in methods.items()}
    loaded.__post_init__()
    return loaded


def trial_record(artifact, method: str, seed: int, shares: list[float]) -> dict:
    metrics = {f"passkey/accuracy@{n}": share for n, share in zip(LENGTHS, shares, strict=True)}
    return record(artifact, method, seed, metrics, heatmap=[shares] * 4 + [[None] * 8])


@pytest.fixture
def records(artifact) -> list[dict]:
    falling = [[100.0, 100, 95, 90, 40, 10, 5, 0], [100.0, 90, 85, 80, 30, 0, 5, 0]]
    found = [trial_record(artifact, "lora", seed, shares) for seed, shares in enumerate(falling)]
    return [
        *found,
        trial_record(artifact, "tape", 0, [100.0] * 7 + [95.0]),
        trial_record(artifact, "base", 0, [0.0] * 8),
    ]


def test_table_has_pooled_intervals_beside_the_paper(artifact, records, tmp_path):
    written = page.render(artifact, "smoke", artifact.collect("smoke", records), tmp_path)
    drawn = [path for path in written[3:] if path.suffix == ".png"]
    assert [path.name for path in drawn] == ["fig_passkey-smoke.png", "fig_passkey-smoke-depth.png"]
    assert all(path.read_bytes()[:4] == b"\x89PNG" for path in drawn)
    rows = {row["method"]: row for row in shown(artifact, records)}
    assert list(rows) == ["base", "lora", "tape", "theta"]
    assert (rows["tape"]["paper 7168"], rows["tape"]["ours 448"]) == (
        "95",
        "100.0 [84, 100]",
    )  # Wilson, 20 of 20
    assert rows["lora"]["ours 320"] == "35.0 [22, 50]"  # 14 of 40 in two seeds
    assert rows["lora"]["seeds"] == "2"
    assert (rows["theta"]["paper 8192"], rows["theta"]["ours 512"], rows["theta"]["seeds"]) == (
        "95",
        "",
        "",
    )
    assert (rows["base"]["paper 1024"], rows["base"]["ours 96"]) == ("", "0.0 [0, 16]")


def test_where_no_key_is_found_a_sentence_stands_for_the_figure(artifact, tmp_path):
    found = [trial_record(artifact, name, 0, [0.0] * 8) for name in ("lora", "tape", "theta")]
    artifact.rivals = ["lora", "theta"]
    collected = {"smoke": artifact.collect("smoke", found)}
    written = page.render(artifact, "smoke", collected["smoke"], tmp_path)
    assert not [path for path in written if path.suffix == ".png"]
    assert "No figure: no method finds a key at any length" in page.section(
        artifact, collected, {"artifacts": {}}, tmp_path
    )
    found[1]["metrics"][f"passkey/accuracy@{LENGTHS[0]}"] = 50.0
    collected = {"smoke": artifact.collect("smoke", found)}
    assert len(artifact.shown("smoke", collected["smoke"])) == 2
    assert artifact.verdict("smoke", collected["smoke"]).holds == FLOOR


def test_lines_and_panels_are_those_of_the_records(artifact, records, tmp_path, monkeypatch):
    drawn, figures = {}, []
    monkeypatch.setattr(heatmap, "draw", lambda panels, path, *_: drawn.update(panels) or path)
    monkeypatch.setattr(curves, "save", lambda picture, path, *_: figures.append(picture) or path)
    page.render(artifact, "smoke", artifact.collect("smoke", records), tmp_path)
    assert list(drawn) == ["base  0.0 %", "LoRA  51.9 %", "TAPE  99.4 %"]
    grid = drawn["LoRA  51.9 %"]
    assert grid.to_rows() == [[100.0, 95.0, 90.0, 85.0, 35.0, 5.0, 5.0, 0.0]] * 4 + [[None] * 8]
    assert (grid.columns, grid.trained) == ([str(n) for n in LENGTHS], (5, 4))
    ours, paper = (
        {line.get_label(): line for line in axis.get_lines()} for axis in figures[0].axes
    )
    assert list(ours["LoRA"].get_ydata()) == [100, 95, 90, 85, 35, 5, 5, 0]
    assert list(ours["LoRA"].get_xdata()) == LENGTHS
    assert list(paper) == ["LoRA", "TAPE", "theta scaling"]
    assert list(paper["TAPE"].get_ydata()) == [100, 100, 100, 100, 100, 100, 95, 100]
    assert paper["LoRA"].get_color() == ours["LoRA"].get_color()
    assert paper["LoRA"].get_color() != paper["TAPE"].get_color()


def test_nothing_but_the_base_can_be_drawn(artifact, records, tmp_path):
    paths = page.render(artifact, "smoke", artifact.collect("smoke", records[-1:]), tmp_path)
    assert all(path.exists() for path in paths)


def test_each_method_begins_from_the_run_that_its_checkpoint_names(artifact, monkeypatch):
    """A task's name is made with the method's own choices; a folder or file is there already."""
    artifact.methods["lora"] = [
        "model=rope",
        "model.theta=2e4",
        "checkpoint=pg19_proof_pile",
        "task.new_tokens=9",
    ]
    artifact.methods["tape"] = ["model=tape", "checkpoint=/somewhere/a.ckpt"]
    made = []
    monkeypatch.setattr(runner, "run_and_record", lambda cfg, _: made.append(cfg))
    monkeypatch.setattr(runner, "read_records", list)
    extra = ["task.trials=2", "trainer=cpu", "scale.text=local"]
    assert runner.work(runner.missing([artifact], "smoke", [3], extra)) == runner.Outcome()
    steps = [
        (cfg.task.name, cfg.checkpoint, cfg.model.name, cfg.model.get("theta")) for cfg in made
    ]
    assert steps == [
        ("c4", None, "rope", 10000.0),
        ("passkey", "c4", "rope", 10000.0),
        ("pg19_proof_pile", None, "rope", 2e4),
        ("passkey", "pg19_proof_pile", "rope", 2e4),
        ("passkey", "/somewhere/a.ckpt", "tape", 10000.0),
        ("passkey", None, "rope", 1e6),
    ]
    assert all((cfg.seed, cfg.trainer.name, cfg.scale.text) == (3, "cpu", "local") for cfg in made)
    assert made[3].task.new_tokens == 9
    assert made[3].task.trials == 2


def test_every_seed_of_a_method_comes_before_the_next_seed(artifact):
    order = [(name, cfg.seed) for name, cfg in artifact.configs("smoke", [0, 1])]
    assert order == [(name, seed) for seed in (0, 1) for name in ("base", "lora", "tape", "theta")]
    assert isinstance(artifact, extension.Methods)


def test_pooled_points_weigh_every_trial(artifact, records):
    (both, *_), (one, *_) = points(records[:2], LENGTHS), points(records[:1], LENGTHS)
    assert both.number == one.number == 100
    assert both.low > one.low  # 40 trials say more than 20
