"""The campaign itself: it tries every key, tells a sentence from a traceback, and finds none."""

import random
import re

import pytest

from tape_exp.settings.compose import compose_config, known_keys
from tape_exp.settings.targets import HOMES
from tests.campaign import files, keys, text
from tests.campaign.__main__ import RIGHT
from tests.campaign.server import Commands, Outcome
from tests.campaign.world import ADDITION, copy_sources, kept

SENTENCE = "error: seed=x must be a number.\n"
TRACEBACK = 'Traceback (most recent call last):\n  File "x"\nValueError: y\n'


@pytest.mark.parametrize(
    ("status", "err", "verdict"),
    [
        (2, SENTENCE, "sentence"),
        (1, SENTENCE, "sentence"),
        (2, "usage: x\nx.py: error: y\n", "sentence"),
        (1, "", "silent"),
        (3, SENTENCE, "silent"),
        (1, TRACEBACK, "traceback"),
        (0, TRACEBACK, "traceback"),
        (1, "error: TypeError: 'int' object is not iterable\n", "unexplained"),
        (None, SENTENCE, "hang"),
        (-9, "", "killed"),
        (0, "", "accepted"),
        (85, "", "requeue"),
    ],
)
def test_how_a_command_ended(status, err, verdict):
    assert Outcome((), status, "", err, 1.0, 1.0).verdict == verdict


def test_every_key_is_tried_with_every_value():
    tried = {(case.key, case.kind) for case, _ in keys.cases(0, ["task=c4"])}
    cfg = known_keys(["task=c4"])
    leaves = {key for key in cfg if not any(other.startswith(f"{key}.") for other in cfg)}
    without_keys = {"task.text.where", "hydra", *HOMES}
    missing = {
        (key, kind)
        for key in leaves - without_keys
        for kind in (*keys.VALUES, "unknown key")
        if (key, kind) not in tried
    }
    assert not missing
    assert ("task.optim.position_lr", "negative") in tried, "a key that only the constructor has"


def test_a_sample_of_wrong_values_ends_in_sentences(tmp_path):
    """Of those that are refused before a run begins: the whole takes an hour."""
    cases = [
        case
        for case, _ in keys.cases(0, ["task=arithmetic"])
        if case.kind in ("wrong type", "unknown key")
    ][:12]
    with Commands(copy_sources(tmp_path)) as do:
        outcomes = [do("run", *case.words, f"runs={tmp_path}/runs") for case in cases]
        ran = do("run", *ADDITION, f"runs={tmp_path}/good")
        hung = do("run", *ADDITION, f"runs={tmp_path}/hung", kill=((0.0, 19),), limit=1.0)
    assert ran.verdict == "accepted", ran.err
    assert hung.verdict == "hang"
    assert [o.err for o in outcomes if o.verdict not in RIGHT] == []
    refused = [o for o in outcomes if o.verdict == "sentence"]
    assert len(refused) >= 8
    assert all(re.match(r"error: \S", o.sentence) for o in refused)


def test_what_is_broken_is_put_back(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "a.json").write_text('{"x": [1, 2]}')
    for name, _ in files.damages(folder / "a.json", random.Random(0)):
        with kept(folder):
            dict(files.damages(folder / "a.json", random.Random(0)))[name]()
        assert (folder / "a.json").read_text() == '{"x": [1, 2]}', name


def test_each_bad_text_differs_from_the_good_one(tmp_path):
    generator = random.Random(0)
    contents = text.contents(generator)
    assert sum(content == contents["good"] for content in contents.values()) == 1


def test_the_tiny_run_of_every_task_can_be_composed():
    for base in keys.BASES:
        words = keys.tiny(base)
        assert compose_config(words).task is not None
        assert len(words) > 5
