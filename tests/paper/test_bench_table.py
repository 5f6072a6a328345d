"""Table bench: the paper's numbers beside ours, errors of questions, rows of the paper that have
not run.
"""

import pytest

from tape_exp.paper import artifacts, page
from tests.paper.test_artifacts import shown
from tests.paper.test_language import record


def metrics(value: float, error: float | None = 2.0) -> dict[str, float]:
    names = (
        "mmlu_humanities",
        "mmlu_social_sciences",
        "mmlu_stem",
        "mmlu_other",
        "arc_challenge",
        "arc_easy",
    )
    found = {f"benchmarks/{name}": value for name in names}
    return found | ({} if error is None else {f"benchmarks/{name}_stderr": error for name in names})


def rows_of(artifact, records, into):
    paths = page.render(artifact, "smoke", artifact.collect("smoke", records), into)
    return paths[0].read_text(), {row["method"]: row for row in shown(artifact, records)}


def test_methods_stand_beside_the_papers(tmp_path):
    artifact = artifacts.load("tab_bench")
    artifact.methods = artifact.methods | {"tape": ["model=tape", "peft=none", "checkpoint=extend"]}
    records = [record(artifact, "base", seed, metrics(30.0 + seed, 2.0 + seed)) for seed in (0, 1)]
    records.append(record(artifact, "tape", 0, metrics(50.0)))
    text, rows = rows_of(artifact, records, tmp_path)
    assert set(rows) == {"base", "lora", "longlora", "theta", "tape", "tape_embeddings"}
    assert (rows["base"]["paper STEM"], rows["base"]["ours STEM"]) == ("", "30.50 (SE 2.50)")
    assert (rows["tape"]["paper humanities"], rows["tape"]["ours humanities"]) == (
        "37.96 (SE 0.69)",
        "50.00 (SE 2.00)",
    )
    assert (rows["lora"]["paper ARC easy"], rows["lora"]["ours ARC easy"]) == (
        "74.28 (SE 0.90)",
        "",
    )
    assert (rows["base"]["seeds"], rows["tape"]["seeds"], rows["lora"]["seeds"]) == ("2", "1", "")
    assert "generated questions" in text


def test_generated_questions_are_found_under_either_name():
    artifact = artifacts.load("tab_bench")
    named = {f"builtin_{name}": value for name, value in metrics(30.0).items()}
    for given in (metrics(30.0), named):
        found = artifact.collect("smoke", [record(artifact, "base", 0, given)])
        ours = artifact.cells("smoke", found).values(("ours", "arc_easy"))
        assert str(ours["base"]) == "30.00 (SE 2.00)"


def test_a_caption_says_which_questions(tmp_path):
    artifact = artifacts.load("tab_bench")
    artifact.at = {"smoke": ["task.source=hub", "task.limit=5"]}
    text, rows = rows_of(artifact, [record(artifact, "base", 0, metrics(30.0, None))], tmp_path)
    assert rows["base"]["ours other"] == "30.00"
    assert "the first 5 of each subject" in text
    assert "generated" not in text


def test_the_papers_errors_are_of_the_papers_accuracies():
    """Typed right: of ARC and of MMLU's groups, the error that the number of questions leaves
    (MMLU's is pooled).
    """
    questions = {
        "arc_challenge": 1172,
        "arc_easy": 2376,
        "mmlu_humanities": 4705,
        "mmlu_social_sciences": 3077,
    }
    questions |= {"mmlu_stem": 3153, "mmlu_other": 3107}
    for row in artifacts.load("tab_bench").paper()["accuracy"].values():
        assert set(row) == set(questions)
        for name, (value, error) in row.items():
            expected = 100 * (value / 100 * (1 - value / 100) / questions[name]) ** 0.5
            assert error == pytest.approx(expected, abs=0.03), name


def test_no_lead_of_tape_in_the_papers_table_is_beyond_its_error():
    """On ARC challenge less than half of one standard error; elsewhere below two standard errors of
    a difference, as if each method had been asked other questions.
    """
    accuracy = dict(artifacts.load("tab_bench").paper()["accuracy"])  # all tests share the file's
    tape = accuracy.pop("tape")
    leads = [
        (name, value - rival, (error**2 + rivals_error**2) ** 0.5)
        for row in accuracy.values()
        for (name, (value, error)), (rival, rivals_error) in zip(
            tape.items(), (row[name] for name in tape), strict=True
        )
    ]
    closest = min(lead for name, lead, _ in leads if name == "arc_challenge")
    assert closest == pytest.approx(46.25 - 45.65)
    assert closest < tape["arc_challenge"][1] / 2
    assert all(lead < 2 * error for _, lead, error in leads)
    assert max(lead / error for _, lead, error in leads) == pytest.approx(1.80, abs=0.005)
