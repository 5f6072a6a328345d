"""A comparison of any models on any task, without a YAML of its own."""

import csv
import shutil
from pathlib import Path

import pytest

from tape_exp.paper import __main__ as paper
from tape_exp.paper import artifacts, compare, page
from tape_exp.paper.runner import Outcome
from tape_exp.settings import folders
from tape_exp.settings.errors import ConfigError
from tests.paper.test_artifacts import TINY, fake_record


@pytest.fixture
def results(tmp_path, monkeypatch):
    folder = tmp_path / "results"
    folder.mkdir()
    shutil.copy(artifacts.RESULTS / "paper.yaml", folder)
    for module in (artifacts, paper):
        monkeypatch.setattr(module, "RESULTS", folder)
    monkeypatch.setattr(folders, "RECORDS", folder / "records")
    return folder


def rows_of(folder) -> dict[str, dict[str, str]]:
    with (folder / "tables" / "compare_arithmetic-smoke.csv").open() as file:
        return {row["model"]: row for row in csv.DictReader(file)}


def test_what_is_missing_runs_and_the_table_is_printed(results, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = [
        "compare",
        "task=arithmetic",
        "model=rope,kerple_log",
        "seeds=0,1",
        f"runs={tmp_path}/runs",
        *TINY,
    ]
    assert paper.main(words) == 0
    said = capsys.readouterr().out
    assert "| Kerple-log |" in said
    assert Path(said.splitlines()[-1]).exists(), "a path that opens from the current folder"
    assert str(tmp_path) not in said[said.index("| model") :]
    own = tmp_path / "runs" / ".compare"
    assert len(list((own / "records").glob("*.json"))) == 4
    assert [path.name for path in results.iterdir()] == ["paper.yaml"]
    rows = rows_of(own)
    assert list(rows) == ["rope", "kerple_log"]
    assert {row["seeds"] for row in rows.values()} == {"2"}
    assert set(rows["rope"]) >= {"parameters", "val/loss", "test/exact_match"}
    assert not any(column.endswith("_stderr") for column in rows["rope"])
    assert paper.main(words) == 0
    assert capsys.readouterr().out.count("recorded.") == 4
    other = [word.replace("rope,kerple_log", "rope") for word in words]
    assert paper.main(other) == 2
    told = capsys.readouterr().err
    assert "has kerple_log too; add it to model=rope, keep this one beside it with --name" in told
    wrong = [word.replace("kerple_log", "tope") for word in words]
    assert paper.main(wrong) == 2
    assert "model=tope is not known." in capsys.readouterr().err, (
        "and not of the table that is kept"
    )
    first = [word.replace("seeds=0,1", "seeds=1") for word in words]
    assert paper.main([*first, "--name", "second"]) == 0
    kept = (own / "tables" / "second-smoke.csv").read_text()
    assert {row["seeds"] for row in csv.DictReader(kept.splitlines())} == {"1"}
    assert paper.main([*other, "--name", "alone"]) == 0
    assert list(rows_of(own)) == ["rope", "kerple_log"]
    assert (own / "tables" / "alone-smoke.md").exists()
    assert paper.main([*other, "--record"]) == 0
    assert len(list((results / "records").glob("*.json"))) == 2
    assert list(rows_of(results)) == ["rope"]


def test_a_table_is_replaced_by_the_same_comparison_and_by_one_with_more_models(
    results, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(paper, "work", lambda *_: Outcome())
    record = fake_record("rope", 0, 10.0, train_digits=6) | {"parameters": 1}
    record["config"]["task"]["optim"]["lr"] = 0.003
    every = [record | {"seed": seed} for seed in (0, 1)]
    monkeypatch.setattr(paper, "read_records", lambda *_: every)
    runs = f"runs={tmp_path}/runs"

    def told(*words: str) -> tuple[int, str]:
        return paper.main(["compare", "task=arithmetic", runs, *words]), capsys.readouterr().err

    lr, digits = "task.optim.lr=3e-3", "task.train_digits=6"
    assert told("model=rope", "seeds=0,1", lr, digits) == (0, "")
    same = ["task.train_digits=6", "++task.optim.lr=0.003", "task.optim.clip=1", "peft=none"]
    assert told("model=rope,tape", "seeds=0,1", *same) == (0, "")
    for words in (["task.optim.lr=0.004", digits], [lr], [lr, digits, "task.optim.clip=2"]):
        status, reason = told("model=rope", "seeds=0,1", *words)
        assert status == 2
        assert "holds another comparison; keep this one beside it with --name" in reason
    assert told("model=tape", lr, digits)[0] == 2
    assert told("model=rope", lr, digits) == (
        0,
        "warning: other seeds of these runs are recorded; seeds=0,1 shows them too.\n",
    )


def test_the_table_of_an_earlier_call_is_no_answer(results, tmp_path, capsys, monkeypatch):
    words = ["compare", "task=arithmetic", "model=rope", f"runs={tmp_path}/runs", *TINY]
    artifact, scale, _ = compare.requested(words[1:])
    old = tmp_path / "runs" / ".compare" / "tables" / f"{artifact.name}-{scale}.md"
    old.parent.mkdir(parents=True)
    old.write_text(artifact.subject(scale))
    monkeypatch.setattr(paper, "work", lambda *_: Outcome(failed=["rope: no memory"]))
    assert paper.main(words) == 1
    assert "There is no table: none of these runs is recorded." in capsys.readouterr().err
    assert not old.exists()


def test_columns_are_the_metrics_that_are_asked_for(tmp_path):
    artifact, scale, seeds = compare.requested(
        ["task=arithmetic", "model=rope,tape", "metrics=ood/exact_match", "seeds=0,1,2"]
    )
    assert (scale, seeds, artifact.models, artifact.overrides) == (
        "smoke",
        [0, 1, 2],
        ["rope", "tape"],
        [],
    )
    assert "seeds=0,1,2" in artifact.command(scale).split()
    records = [
        fake_record("rope", seed, value) | {"parameters": 1234}
        for seed, value in ((0, 10.0), (1, 12.0), (2, 11.0))
    ]
    found = artifact.collect("smoke", records)
    page.render(artifact, "smoke", found, tmp_path)
    rows = rows_of(tmp_path)
    assert list(rows["rope"]) == [
        "model",
        "parameters",
        "ood/exact_match",
        "ood/exact_match low",
        "ood/exact_match high",
        "seeds",
        "scale",
        "commit",
    ]
    assert (rows["rope"]["ood/exact_match"], rows["rope"]["parameters"]) == ("11", "1234")
    assert "| 11.00 ± 2.48 " in (tmp_path / "tables/compare_arithmetic-smoke.md").read_text()
    assert set(rows["tape"].values()) == {"tape", ""}
    artifact.metrics = ["odd/exact_match"]
    with pytest.raises(
        ConfigError, match=r"metrics=odd/exact_match is not known\. Did you mean 'ood/exact_match'"
    ):
        page.render(artifact, "smoke", found, tmp_path)


def test_diagnostics_are_columns_only_where_they_are_asked_for():
    causal = "causal/no_attention/ood/exact_match"
    record = fake_record("tape", 0, 10.0) | {"parameters": 1234}
    record["metrics"] |= {causal: 3.0, "failures/ood/eos_early": 50.0}
    for words, shown in (([], False), ([f"metrics=ood/exact_match,{causal}"], True)):
        artifact, scale, _ = compare.requested(["task=arithmetic", "model=tape", *words])
        keys = [column.key for column in artifact.cells(scale, {"tape": [record]}).columns]
        assert "ood/exact_match" in keys
        assert (causal in keys) == shown
        assert "failures/ood/eos_early" not in keys


def test_a_comparison_that_is_kept_has_its_columns_before_it_has_records():
    """Metrics are checked where there are records."""
    artifact, *_ = compare.requested(["task=arithmetic", "model=rope", "metrics=ood/exact_match"])
    table = artifact.table(artifact.scales()[0], {})
    assert table.headings()[:3] == ["model", "parameters", "ood/exact_match"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["model=rope"], "a comparison needs task=, as in task=arithmetic."),
        (["task=arithmetic"], "a comparison needs model=, as in model=rope,tape."),
        (
            ["task=arithmetic", "model=rope", "seed=0"],
            "seed=0 is no word of a comparison; seeds are given as seeds=0,1,2",
        ),
        (
            ["task=arithmetic", "model=rope", "fig_addition"],
            "fig_addition is no word of a comparison",
        ),
        (
            ["task=arithmetic", "model=rope,tape,rope"],
            "model=rope,tape,rope names rope twice; name each once.",
        ),
        (
            ["task=arithmetic", "model=rope", "metrics=val/loss,val/loss"],
            "metrics=val/loss,val/loss names val/loss twice",
        ),
        (["task=arithmetic", "model=rope,tpae"], "model=tpae is not known. Did you mean 'tape'?"),
        (["task=arithmetic", "model=rope", "scale=tiny"], "scale=tiny is not known."),
    ],
)
def test_mistakes_of_a_comparison_are_one_sentence(words, message, results, capsys):
    assert paper.main(["compare", *words]) == 2
    told = capsys.readouterr().err
    assert message in told
    assert told.count("\n") == 1
