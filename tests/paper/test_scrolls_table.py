"""Table scrolls and the QuALITY examples: the paper beside ours, data set by data set."""

import csv
from itertools import chain

from tape_exp.paper import artifacts, page
from tape_exp.paper.claims import FLOOR, YES
from tape_exp.paper.scrolls import GUESSED
from tape_exp.settings.naming import display_name
from tests.paper.test_artifacts import shown
from tests.paper.test_language import record


def test_scores_stand_beside_the_papers(tmp_path):
    artifact = artifacts.load("tab_scrolls")
    assert set(artifact.paper()["scores"]) == set(artifact.models)
    metrics = {
        "quality/exact_match": 12.5,
        "quality/exact_match_low": 5.0,
        "quality/exact_match_high": 20.0,
    }
    summaries = {
        f"qmsum/rouge/geometric_mean{end}": value
        for end, value in (("", 9.0), ("_low", 8.0), ("_high", 10.0))
    }
    records = [record(artifact, "tape/quality", 0, metrics)]
    records += [record(artifact, "tape/qmsum", seed, summaries) for seed in (0, 1)]
    rows = {row["model"]: row for row in shown(artifact, records)}
    assert list(rows) == artifact.models
    tape = rows["tape"]
    assert (tape["paper quality"], tape["ours quality"]) == ("11.60", "12.50 [5.0, 20.0]")
    assert (tape["paper qmsum"], tape["ours qmsum"]) == ("12.42", "9.00 (9.00, 9.00)")
    assert (tape["ours qasper"], tape["paper qasper"]) == ("", "11.52")
    assert tape["seeds"] == "2"
    assert rows["nope"]["paper qmsum"] == rows["rope"]["ours quality"] == ""


def test_generated_text_is_found_under_either_name_and_nope_is_no_rival():
    artifact = artifacts.load("tab_scrolls")
    metrics = {f"quality/exact_match{end}": 12.5 for end in ("", "_low", "_high")}
    for given in (metrics, {f"builtin_{name}": value for name, value in metrics.items()}):
        found = artifact.collect("smoke", [record(artifact, "tape/quality", 0, given)])
        table = artifact.table("smoke", found)
        assert table.values(("ours", "quality"))["tape"].number == 12.5
        assert "tested only against RoPE, ALiBi, RandPE, FIRE and xPos." in table.caption
        assert "Guessing one of the answers reaches 33.33 on ContractNLI and 25.00" in table.caption
        for run in chain(*found.values()):
            run["config"]["task"]["source"] = "local"
        caption = artifact.table("smoke", found).caption
        assert "naive baseline" in caption
        assert "66.00 on ContractNLI" in caption


def test_answers_that_guessing_gives_decide_nothing():
    """Every lead here is clear, but below a guess none shows that a question was understood."""
    artifact = artifacts.load("tab_scrolls")

    def outcome(dataset: str, ours: float, theirs: float, source: str = "builtin") -> str:
        key = f"{dataset}/exact_match"
        records = [
            record(artifact, f"{model}/{dataset}", seed, dict(metrics))
            for model in ("tape", *artifact.rivals)
            for seed in (0, 1)
            for value in [(ours if model == "tape" else theirs) + seed / 100]
            for metrics in [{key: value, f"{key}_low": value - 1, f"{key}_high": value + 1 + seed}]
        ]
        found = artifact.collect("smoke", records)
        for run in chain(*found.values()):
            run["config"]["task"]["source"] = source
        contests = artifact.contests("smoke", found)
        return next(each for each in contests if each.where == display_name(dataset)).outcome()

    assert [outcome("quality", ours, 1.0) for ours in (11.6, 25.9, 27.0)] == [FLOOR, FLOOR, YES]
    assert outcome("contract_nli", 33.0, 10.0) == FLOOR
    assert [outcome("contract_nli", ours, 40.0) for ours in (65.0, 69.0)] == [YES, YES]
    assert [outcome("contract_nli", ours, 40.0, "hub") for ours in (65.0, 69.0)] == [FLOOR, YES]


def test_no_score_of_the_paper_on_quality_reaches_a_guess():
    scores = artifacts.load("tab_scrolls").paper()["scores"]
    assert max(of_model["quality"] for of_model in scores.values()) == 23.68 < GUESSED["quality"]
    assert scores["tape"]["quality"] == 11.6


def test_answers_stand_side_by_side(tmp_path):
    artifact = artifacts.load("tab_quality_examples")
    samples = {
        model: [
            {
                "id": "a",
                "question": "Which | one?\n(A) x",
                "references": "x",
                "prediction": f"of {model}",
            }
        ]
        for model in ("rope", "tape")
    }
    records = [
        record(artifact, f"{model}/quality", 0, {}, samples=rows) for model, rows in samples.items()
    ]
    written = page.render(artifact, "smoke", artifact.collect("smoke", records), tmp_path)
    assert "the first questions, seed 0" in written[0].read_text()
    (row,) = csv.DictReader(written[2].open())
    assert row["question"] == "Which / one? (A) x"
    assert (row["reference"], row["rope"], row["tape"], row["fire"]) == (
        "x",
        "of rope",
        "of tape",
        "",
    )
