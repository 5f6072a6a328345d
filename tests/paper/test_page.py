"""results/README.md: the table of claims, what runs took and would take; costs.json agrees with
today's configs.
"""

import csv
import json

import pytest

from tape_exp.paper import __main__ as paper
from tape_exp.paper import artifacts, costs, page
from tape_exp.paper.artifacts import RESULTS, SCALES
from tape_exp.paper.runner import Outcome
from tape_exp.runs.identity import identity_of
from tape_exp.runs.record import dump_record
from tape_exp.settings import folders
from tape_exp.training.from_config import build_task
from tests.paper.test_artifacts import fake_record

AGAIN = "the configs have changed: run `tape-exp paper cost` and commit results/costs.json"
NOTHING: page.AtScales = {scale: {} for scale in SCALES}


def stand_in(model: str, value: float, seed: int = 0) -> dict:
    facts = {
        "seconds": {"training": 100.0, "checkpoints": 50.0, "evaluation": 30.0},
        "hardware": {"cpu": "a CPU", "gpus": []},
    }
    return fake_record(model, seed, value) | facts | {"run": f"{model}-{seed}"}


@pytest.fixture
def artifact():
    return artifacts.load("fig_addition")


def test_the_largest_scale_that_can_be_judged_counts(artifact):
    every = {m: [stand_in(m, 20.0)] for m in artifact.models}
    assert page.judged(artifact, {"smoke": every, "small": {}})[0] == "smoke"
    assert page.judged(artifact, {"smoke": every, "small": {"tape": every["tape"]}})[0] == "smoke"
    assert page.judged(artifact, {"smoke": every, "small": every})[0] == "small"
    assert page.judged(artifact, {"smoke": {}, "small": {"tape": every["tape"]}})[0] == "small"
    scale, verdict = page.judged(artifact, NOTHING)
    assert (scale, verdict.ours, verdict.holds) == ("", "", "not tested")


def test_rows_and_costs_are_those_of_the_records(artifact, tmp_path):
    every = {m: [stand_in(m, 40.0 if m == "tape" else 20.0)] for m in artifact.models}
    every["rope"][0]["config"]["checkpoint"] = "c4"
    known = {"fig_addition": {"runs": 15, "tokens": 1, "gpu_hours": 9.5}}
    (tmp_path / "costs.json").write_text(
        json.dumps({"gpu": "H100", "utilisation": 0.4, "artifacts": known})
    )
    none = artifacts.load("tab_perplexity")
    found = {"fig_addition": {"smoke": every, "small": {}, "paper": {}}, "tab_perplexity": NOTHING}
    text = page.page([artifact, none], found, page.claims([artifact, none], found), tmp_path)
    head, *rows = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in text.splitlines()
        if line.startswith("|")
    ]
    assert head == [column.heading for column in page.CLAIMS]
    assert rows[1][:2] == ["[fig_addition](#fig_addition)", artifact.claim]
    assert rows[1][3].startswith("TAPE 40.00, ")
    assert rows[1][4:] == ["in this order, one seed", "smoke", "1"]
    assert rows[2][1:] == ["–", "", "", "–", "", ""]
    assert (
        "5 recorded at scale smoke took 11 minutes on a CPU, without those that they begin from."
        in text
    )
    assert "15 runs, of three seeds and with those that they begin from, 9.5 H100-hours" in text
    assert "at 40 % of its peak" in text
    assert (
        "Recorded runs that an artifact shows: 5 at scale smoke, 0.2 hours one after the other."
        in text
    )
    yarn = artifacts.load("fig_addition_yarn")
    other = {**stand_in("tape", 20.0), "run": "another"}
    other["config"]["scale"] = "rung5"
    shared = {"tape": [other, *every["tape"], *every["tape"]]}
    twice = found | {"fig_addition_yarn": {"smoke": shared, "small": {}, "paper": {}}}
    text = page.page([artifact, yarn], twice, page.claims([artifact, yarn], twice), tmp_path)
    assert "5 at scale smoke, 0.2 hours one after the other; 1 at scale rung5, " in text
    assert "2 recorded at scale smoke (1 at rung5) took" in text
    text = page.page([artifact, none], found, page.claims([artifact, none], found), tmp_path)
    assert (
        "Not run yet: scale small (needs a GPU); scale paper (needs a GPU).\n"
        in text.split("## tab_perplexity")[0]
    )
    assert "not estimated yet" in text.split("## tab_perplexity")[1]


def test_an_artifact_that_is_not_of_the_papers_scale_has_no_command_for_it():
    table = artifacts.load("tab_encodings")
    command = "`tape-exp paper run tab_encodings scale=smoke seeds=0,1,2`"
    assert page.effort(table, NOTHING, {"artifacts": {}}) == f"To run what is missing: {command}."


def test_empty_cells_have_their_reason(artifact):
    every = {m: [stand_in(m, 20.0)] for m in artifact.models}
    assert artifact.gaps({"smoke": every, "small": every, "paper": every}) == []
    del every["rope"], every["nope"]
    told = artifact.gaps({"smoke": {}, "small": every, "paper": {}})
    assert told == [
        "scale smoke (needs nothing but time)",
        "RoPE, NoPE at scale small (needs a GPU)",
        "scale paper (needs a GPU)",
    ]
    assert "the weights of Llama-2-7B" in artifacts.load("tab_tune_ppl").gaps(NOTHING)[-1]
    assert artifacts.load("tab_flops").gaps(NOTHING) == ["scale smoke (needs nothing but time)"]


def test_render_writes_the_claims(tmp_path, monkeypatch):
    folder = tmp_path / "results"
    (folder / "records").mkdir(parents=True)
    (folder / "paper.yaml").write_text((RESULTS / "paper.yaml").read_text())
    for place in (artifacts, paper):
        monkeypatch.setattr(place, "RESULTS", folder)
    monkeypatch.setattr(folders, "RECORDS", folder / "records")
    monkeypatch.setattr(paper, "names", lambda: ["fig_addition"])
    for model in ("rope", "tape"):
        (folder / "records" / f"{model}.json").write_text(dump_record(stand_in(model, 30.0)))
    assert paper.main(["render", "fig_addition"]) == 0
    with (folder / "tables" / "claims.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert (row["artifact"], row["scale"], row["holds"]) == ("fig_addition", "smoke", "not tested")
    assert "NoPE, FIRE)" in row["ours"]
    assert (folder / "README.md").read_text().startswith("# Results\n\n| artifact ")


def test_what_no_record_stands_behind_is_removed(tmp_path, monkeypatch):
    folder = tmp_path / "results"
    for name in (
        "tables/fig_addition-smoke.md",
        "figures/fig_addition-smoke-old.png",
        "tables/fig_addition_20-smoke.md",
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("old")
    (folder / "paper.yaml").write_text((RESULTS / "paper.yaml").read_text())
    for place in (artifacts, paper):
        monkeypatch.setattr(place, "RESULTS", folder)
    monkeypatch.setattr(folders, "RECORDS", folder / "records")
    monkeypatch.setattr(paper, "names", lambda: ["fig_addition", "fig_addition_20"])
    assert paper.main(["render", "fig_addition"]) == 0
    assert [path.name for path in folder.rglob("fig_*")] == ["fig_addition_20-smoke.md"], (
        "it was not asked for"
    )
    assert "### Scale" not in (folder / "README.md").read_text()


def test_records_of_other_settings_are_told(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(folders, "RECORDS", tmp_path / "records")
    monkeypatch.setattr(paper, "render_artifacts", lambda *_, **__: 0)
    monkeypatch.setattr(paper, "work", lambda *_: Outcome())
    artifact = artifacts.load("fig_addition")
    (tmp_path / "records").mkdir()
    for seed, word in enumerate(("task.train_digits=5", "task.train_digits=4")):
        label, cfg = next(artifact.configs("smoke", [seed], [word]))
        told = stand_in(label, 20.0, seed) | {"config": identity_of(cfg)}
        (tmp_path / "records" / f"{seed}.json").write_text(dump_record(told))
    assert paper.main(["run", "fig_addition", "seeds=0,1", "task.train_digits=4"]) == 0
    assert "1 records of fig_addition are of other settings (task.train_digits=4)" in caplog.text
    caplog.clear()
    assert paper.main(["run", "fig_addition", "seeds=0,1", "logger=none"]) == 0
    assert "other settings" not in caplog.text


def test_the_committed_costs_name_every_artifact():
    known = costs.read(RESULTS)
    assert sorted(known["artifacts"]) == artifacts.names(), AGAIN
    assert known["all"]["gpu_hours"] <= sum(c["gpu_hours"] for c in known["artifacts"].values()) + 1


def test_the_committed_costs_are_those_of_the_configs(artifact):
    """Of one artifact that trains, and of one that begins from runs of another task."""
    known = costs.read(RESULTS)["artifacts"]
    configs = [cfg for _, cfg in artifact.configs("paper", [0])]
    tasks = [build_task(cfg) for cfg in configs]
    tokens = sum(t.optim.max_steps * t.optim.batch * t.arch.train_length for t in tasks)
    assert (known["fig_addition"]["runs"], known["fig_addition"]["tokens"]) == (
        3 * len(configs),
        3 * tokens,
    ), AGAIN
    assert costs.cost(artifacts.load("fig_dp_layers")) == known["fig_dp_layers"], AGAIN
    pretraining = build_task(artifacts.compose_config(["task=c4", "scale=paper"]))
    optim = pretraining.optim
    assert (
        known["fig_dp_layers"]["tokens"]
        == 3 * optim.max_steps * optim.batch * pretraining.arch.train_length
    )
    assert known["fig_dp_layers"]["runs"] == 6


def test_runs_that_artifacts_share_are_counted_once(tmp_path, monkeypatch):
    monkeypatch.setattr(costs, "_needed", lambda cfg: {"runs": 1, "tokens": 10, "gpu_hours": 2.0})
    both = [
        artifacts.load("fig_dp_layers"),
        artifacts.load("fig_pattern"),
    ]  # both begin from c4, and tape is in both
    told = json.loads(costs.write(both, tmp_path).read_text())
    assert {name: c["runs"] for name, c in told["artifacts"].items()} == {
        "fig_dp_layers": 6,
        "fig_pattern": 12,
    }
    assert told["all"] == {"runs": 12, "tokens": 120, "gpu_hours": 24.0}
