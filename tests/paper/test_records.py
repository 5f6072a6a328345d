"""Which records are of a config: a key that one side lacks counts."""

import json

import pytest

from tape_exp.paper import records
from tape_exp.paper.records import matches
from tape_exp.runs.identity import identity_of, without_folders
from tape_exp.settings import folders
from tape_exp.settings.compose import compose_config


def record_of(identity: dict) -> dict:
    return {"config": json.loads(json.dumps(without_folders(identity))), "precision": "32-true"}


@pytest.mark.parametrize(
    "word",
    ["+model.window=8", "+model.ssmax=true", "+task.index_hints=true", "+task.optim.position_lr=3"],
)
def test_a_key_that_one_side_lacks_makes_another_run(word):
    """In both directions: of a plain record asked for with the key, and of one with it."""
    plain, added = (
        identity_of(compose_config(["model=tape", "task=arithmetic", *words]))
        for words in ([], [word])
    )
    assert matches(record_of(plain), plain)
    assert matches(record_of(added), added)
    assert not matches(record_of(plain), added)
    assert not matches(record_of(added), plain)


def test_a_key_that_the_yaml_has_gained_makes_no_other_run():
    """Where it has the YAML's value, as in ``task=scrolls``, whose name has the dataset's."""
    usual = identity_of(compose_config(["task=scrolls", "task.dataset=quality"]))
    changed = identity_of(
        compose_config(["task=scrolls", "task.dataset=quality", "task.answer_limit=7"])
    )
    older = record_of(usual)
    del older["config"]["task"]["answer_limit"]
    assert matches(older, usual)
    assert not matches(older, changed)


def test_runs_of_a_debug_mode_are_no_records_outside_a_clone(monkeypatch):
    """As they are none within one: ``paper run`` records none of them."""
    words = ["model=tape", "task=arithmetic"]
    plain, short = (
        record_of(identity_of(compose_config([*words, *further])))
        | {"run": name, "seed": 0, "started": "2026-01-01"}
        for name, further in (("plain", []), ("short", ["debug=overfit"]))
    )
    monkeypatch.setattr(folders, "INSTALLED", True)
    monkeypatch.setattr(records, "read_records", list)
    monkeypatch.setattr(records, "records_of_runs", lambda folder: [plain, short])
    assert records.known_records() == [plain]
