"""Records on disk: adding, reading, selecting; and what the committed ones must have."""

import subprocess
from fnmatch import fnmatchcase

import numpy as np
import pytest

from tape_exp.results.derived import DERIVED
from tape_exp.results.query import fits, where
from tape_exp.results.store import (
    add_records,
    merged,
    read_records,
)
from tape_exp.settings import folders
from tape_exp.settings.compose import compose_config
from tests.artifacts.fakes import record, runs


def test_a_record_is_a_line_and_one_of_the_same_run_is_replaced(tmp_path):
    add_records(tmp_path, runs("rope", [20.0, 21.0]))
    add_records(tmp_path, runs("rope", [22.123456789123]))
    (path,) = tmp_path.glob("*.jsonl")
    assert path.name == "arithmetic.jsonl"
    found = {r["seed"]: r["metrics"]["test/exact_match"] for r in read_records(tmp_path)}
    assert found == {0: 22.1234568, 1: 21.0}


def test_matrices_are_beside_the_lines(tmp_path):
    matrix = np.arange(6.0).reshape(2, 3)
    add_records(
        tmp_path, [record("tape", 0, {"a": 1.0}, matrices={"attention@1": matrix.tolist()})]
    )
    (found,) = read_records(tmp_path)
    assert np.array_equal(found["matrices"]["attention@1"], matrix)
    anew = found | {"matrices": {"attention@1": matrix + 1}, "started": "2027"}
    add_records(tmp_path, [anew])
    assert np.array_equal(read_records(tmp_path)[0]["matrices"]["attention@1"], matrix + 1)
    assert "matrices" not in next(tmp_path.glob("*.jsonl")).read_text()


def test_committed_records_have_the_derived_metrics_that_are_announced():
    """And no other number of theirs, such as the seed, is taken for a metric."""
    found = set()
    for run in read_records():
        for name in run.metrics.keys() - run.measured.keys():
            metric = name.removesuffix("_low").removesuffix("_high")
            kinds = [kind for kind in DERIVED if fnmatchcase(metric, kind)]
            assert kinds, (run.name, name)
            found.update(kinds)
    assert found == set(DERIVED)


def test_a_line_that_is_no_record_is_named_and_left_out(tmp_path, capsys):
    add_records(tmp_path, runs("rope", [20.0]))
    path = tmp_path / "arithmetic.jsonl"
    path.write_text(path.read_text() + '{"run": "half\n')
    assert len(read_records(tmp_path)) == 1
    assert f"{path}, line 2, is not a record" in capsys.readouterr().err


def test_a_record_fits_what_its_config_has():
    keys = runs("rope", [20.0], task={"optim": {"lr": 0.001}})[0].settings
    assert fits(keys, where(["model=rope", "task=arithmetic", "task.optim.lr=1e-3"]))
    assert not fits(keys, where(["task.optim.new=3"]))
    assert where(["checkpoint=some/where"]) == {"checkpoint": "where"}, "records have no folders"
    assert where(["task.rows={text:8,passkey:2}"]) == {"task.rows.text": 8, "task.rows.passkey": 2}
    assert fits(keys, where(["scale.text=local", "logger=none"]))
    assert not fits(keys, where(["task.optim.lr=0.003"]))
    assert fits(keys, where(["trainer.precision=32-true"]))


@pytest.mark.parametrize("text", ["on", "010", "1_000", "1e-3", "null", "[1e-3,no]", "'1:30'"])
def test_a_value_is_asked_for_as_it_is_composed(text):
    word = f"+task.toy={text}"
    assert where([word])["task.toy"] == compose_config([word]).task.toy


def test_scrolls_are_one_file_and_one_task():
    one = record("rope", 0, {"a": 1.0}, task={"name": "scrolls_qasper", "dataset": "qasper"})
    assert one.settings["task"] == "scrolls"


def test_a_generated_set_of_scrolls_has_the_score_of_the_set():
    task = {"name": "scrolls_qmsum", "dataset": "qmsum"}
    run = record("rope", 0, {"builtin_qmsum/rouge/geometric_mean": 70.0}, task=task)
    assert run.metrics["qmsum/score"] == 70.0


@pytest.mark.long
def test_the_words_of_a_record_compose_its_config():
    """Of one committed run of each task: what a page shows is what runs it again."""
    of_task = {run["config"]["task"]["name"]: run for run in read_records()}
    for run in of_task.values():
        cfg = compose_config(run.overrides)
        assert cfg.model.name == run["config"]["model"]["name"]
        assert cfg.task.name == run["config"]["task"]["name"]
        assert cfg.seed == run["seed"]


@pytest.mark.skipif(folders.INSTALLED, reason="outside a clone there are no commits")
def test_the_commit_of_every_record_can_be_checked_out():
    commits = {r["git"]["commit"] for r in read_records()} - {None}
    asked = ["git", "rev-parse", "--is-shallow-repository"]
    if subprocess.check_output(asked, cwd=folders.ROOT, text=True).strip() == "true":
        pytest.skip("a shallow clone has few commits")
    for commit in commits:
        found = subprocess.run(["git", "cat-file", "-e", commit], cwd=folders.ROOT)
        assert found.returncode == 0, commit


def test_of_a_run_in_several_places_the_one_that_was_made_last_is_shown():
    """Made anew in runs/ it is newer there; else the copies are equal, and the last place's."""
    old, new = (record("rope", 0, {"val/loss": 1.0}, started=f"2026-0{n}") for n in (1, 2))
    assert merged([new], [old], [old]) == merged([old], [new]) == [new]
    other = record("rope", 1, {"val/loss": 1.0}, started="2025")
    assert merged([old], [other]) == [other, old]
    here, there = old | {"place": "here"}, old | {"place": "there"}
    assert merged([here], [there]) == [there]


def test_an_older_record_of_a_run_replaces_no_newer_one(tmp_path):
    (first,) = runs("rope", [1.0])
    later = {**first, "started": "2026-02-02T00:00:00", "steps": 2}
    earlier = {**first, "started": "2025-02-02T00:00:00", "steps": 1}
    for order in ((later, earlier), (earlier, later)):
        for one in order:
            add_records(tmp_path, [one])
        assert [one["steps"] for one in read_records(tmp_path)] == [2]
