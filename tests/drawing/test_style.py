"""Colours, markers and dashes of lines: no two of one figure are alike."""

import pytest

from tape_exp.artifacts.artifact import Artifact, load, names
from tape_exp.drawing.style import DASHES, FAMILIES, styles_of
from tape_exp.settings.folders import CONF

MINE = ["mine", "mine too", "a third"]
OWN = {family.names[0]: (family.shades[0], family.marker) for family in FAMILIES}


def last_labels(artifact: Artifact) -> list[str]:
    """The models and methods of an artifact, which are the lines of its figures."""
    labels: list[str] = []
    for block in artifact.rows:
        *_, of_last = block.dimensions.values()
        labels += of_last
    return list(dict.fromkeys(labels))


FIGURES = {name: last_labels(load(name)) for name in names()}
FIGURES["every model"] = sorted(path.stem for path in (CONF / "model").glob("*.yaml"))


@pytest.mark.parametrize("name", FIGURES)
def test_no_two_lines_of_a_figure_have_the_same_colour_and_marker(name):
    labels = [*FIGURES[name], *MINE]
    styles = styles_of(labels)
    assert list(styles) == labels
    pairs = [(style.colour, style.marker) for style in styles.values()]
    assert len({*pairs}) == len(labels)


def test_an_encoding_of_ones_own_has_a_colour_and_a_marker_that_no_other_has():
    others = ["rope", "nope", "randpe", "fire", "tape", "alibi", "tape_tensor", "kerple_log"]
    styles = styles_of([*MINE, *others])
    for name in MINE:
        further = [style for other, style in styles.items() if other != name]
        assert styles[name].colour not in {style.colour for style in further}
        assert styles[name].marker not in {style.marker for style in further}
    assert styles_of(MINE[:1])["mine"] == styles["mine"]


def test_the_first_of_a_family_looks_the_same_in_every_figure():
    assert len({*OWN.values()}) == len(OWN)
    for labels in ([*OWN], [*reversed(OWN)], ["path", "theta", *MINE]):
        for name, style in styles_of(labels).items():
            if name in OWN:
                assert (style.colour, style.marker, style.dash) == (*OWN[name], DASHES[0])


def test_members_of_a_family_differ_in_colour_as_long_as_it_has_shades():
    styles = styles_of(["tape", "tape_householder", "tape_randpe", "tape_public_addition"])
    assert len({style.colour for style in styles.values()}) == 4
