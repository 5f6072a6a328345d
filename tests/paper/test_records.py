"""Which records are of a config: a key that one side lacks counts."""

import json
import subprocess

import pytest

from tape_exp.paper import records
from tape_exp.paper.compare import Compare
from tape_exp.paper.records import matches, read_records
from tape_exp.paper.runner import missing
from tape_exp.runs.identity import config_hash, identity_of, without_folders
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


def test_text_in_another_folder_of_that_name_makes_another_run(tmp_path):
    """A record has the last name only, so that the hash must tell which folder was read."""
    words = ["model=rope", "task=c4", "seed=0", "trainer=cpu"]
    ours, theirs = (
        ["scale.text=local", f"task.text.path={tmp_path / name}/texts"] for name in ("my", "your")
    )
    cfg = compose_config([*words, *ours])
    made = record_of(identity_of(cfg)) | {
        "config_hash": config_hash(cfg),
        "seed": 0,
        "started": "2026-01-01",
    }
    shown = Compare(name="of_text", title="", task="c4", models=["rope"], overrides=ours)
    other = Compare(name="of_text", title="", task="c4", models=["rope"], overrides=theirs)
    assert not missing([shown], "smoke", [0], ["trainer=cpu"], records=[made])
    assert missing([other], "smoke", [0], ["trainer=cpu"], records=[made])
    assert list(shown.collect("smoke", [made])) == ["rope"]
    assert not other.collect("smoke", [made])


def test_the_commit_of_every_record_can_be_checked_out():
    """It is in the history of the present one, and so in every clone."""

    def git(*words: str) -> str:
        command = ["git", "-C", str(folders.ROOT), *words]
        return subprocess.run(command, capture_output=True, text=True).stdout

    if git("rev-parse", "--is-shallow-repository").strip() != "false":
        pytest.skip("no whole history of the project's commits")
    history = set(git("rev-list", "HEAD").split())
    lost = {r["run"] for r in read_records() if r["git"]["commit"] not in history}
    assert not lost
