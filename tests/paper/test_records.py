"""Which records are of a config: a key that one side lacks counts."""

import json

import pytest

from tape_exp.paper.records import matches
from tape_exp.runs.identity import identity_of, without_folders
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
