"""What overrides compose to is read again only where it would be composed the same."""

import shutil

import pytest

from tape_exp.results import compositions
from tape_exp.runs.identity import recorded_config
from tape_exp.settings import folders, plugins
from tape_exp.settings.compose import compose_config
from tape_exp.settings.errors import ConfigError

WORDS = ("model=tape", "task=arithmetic", "scale=smoke", "task.optim.lr=0.1")


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """A working directory of its own, in which nothing is kept yet."""
    monkeypatch.setattr(folders, "HERE", tmp_path)
    monkeypatch.setattr(folders, "INSIDE", True)
    forget()
    yield tmp_path
    forget()


def forget():
    """Be another process."""
    compositions._read.cache_clear()
    compositions._version.cache_clear()


def test_what_is_kept_is_what_is_composed(here, monkeypatch):
    expected = recorded_config(compose_config(WORDS))
    assert compositions.composed(WORDS) == expected
    forget()
    monkeypatch.setattr(compositions, "compose_config", None)
    assert compositions.composed(WORDS) == expected


def test_nothing_is_kept_of_mistakes_outside_a_clone_and_of_other_folders(here, monkeypatch):
    with pytest.raises(ConfigError):
        compositions.composed(("model=tpae",))
    compositions.composed((*WORDS, "hydra.searchpath=[pkg://examples]"))
    monkeypatch.setattr(folders, "INSIDE", False)
    compositions.composed(WORDS)
    assert not [*here.rglob("*.jsonl")]


def test_an_edited_config_is_composed_anew_and_the_older_ones_go(here, monkeypatch):
    conf = here / "conf"
    (conf / "model").mkdir(parents=True)
    shutil.copy(folders.CONF / "model" / "tape.yaml", conf / "model")
    places = [folders.CONF, conf]
    monkeypatch.setattr(plugins, "conf_folders", lambda: places)
    compositions.composed(WORDS)
    (before,) = here.rglob("*.jsonl")
    (conf / "model" / "tape.yaml").write_text("name: tape\n")
    forget()
    compositions.composed(WORDS)
    (after,) = here.rglob("*.jsonl")
    assert before != after


def test_a_line_that_was_cut_off_is_composed_anew(here):
    expected = compositions.composed(WORDS)
    (kept,) = here.rglob("*.jsonl")
    kept.write_bytes(kept.read_bytes()[:-20])
    forget()
    assert compositions.composed(WORDS) == expected
