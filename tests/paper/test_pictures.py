"""The committed pictures are those of the records, and say nothing in the words of configs."""

import re

import pytest
from tape_exp.drawing.figures import mark_in, mark_of

from tape_exp.paper import page
from tape_exp.paper.__main__ import collect
from tape_exp.paper.artifacts import RESULTS
from tape_exp.paper.figure_kinds import Curves

KEY = re.compile(r"[a-z0-9]+_[a-z]+|[a-z]+/[a-z]+|@\d")  # tape_no_attention, val/loss, products@3


@pytest.fixture(scope="module")
def drawn():
    """(artifact, scale, records) of all that is recorded."""
    every, collected = collect()
    return [
        (artifact, scale, records)
        for artifact in every
        for scale, records in collected[artifact.name].items()
        if records
    ]


def test_pictures_are_drawn_from_the_records_by_this_code(drawn):
    found = [(p, f) for each in drawn for p, f in page.pictures(*each, RESULTS)]
    old = [path.name for path, figure in found if mark_in(path) != mark_of(figure)]
    assert not old, "run `tape-exp paper render` and commit results/"
    there = {path.name for path in (RESULTS / "figures").glob("*.png")}
    assert there == {path.name for path, _ in found}


def test_figures_speak_the_language_of_the_field(drawn):
    """Those of the page too."""
    words = set()
    for artifact, scale, records in drawn:
        for figure in artifact.shown(scale, records):
            words.add(figure.title)
            words |= {*figure.panels} if not isinstance(figure, Curves) else set()
            for panel in figure.panels if isinstance(figure, Curves) else []:
                words |= {panel.title, panel.xlabel, panel.ylabel}
                words |= {line.name for line in panel.lines}
    assert not [word for word in words if KEY.search(word)]
    assert not {"tape", "rope", "fire", "nope"} & {part for word in words for part in word.split()}
