"""Every encoding has a look of its own, which those who see no red or no green can tell too."""

from itertools import combinations, product

import numpy as np
import pytest
from tape_exp.drawing.looks import COLOURS, LOOKS, look_of, looks_of

from tape_exp.paper import artifacts
from tape_exp.settings.plugins import names_in

# Machado, Oliveira and Fernandes (2009), severity 1, on linear RGB
SEEN = {
    "all colours": np.eye(3),
    "no red": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "no green": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
}
XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
APART = 20  # CIE76; a difference of 2 is just seen


def lab(colour: str, seen: np.ndarray) -> np.ndarray:
    channels = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    x, y, z = np.cbrt(XYZ @ np.clip(seen @ linear, 0, 1) / XYZ.sum(1))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize(("seen", "page"), product(SEEN, (0, 1)))
def test_hues_stay_apart(seen, page):
    found = {pair[page]: lab(pair[page], SEEN[seen]) for pair in COLOURS}
    near = {
        (a, b): distance
        for a, b in combinations(found, 2)
        if (distance := np.linalg.norm(found[a] - found[b])) < APART
    }
    assert not near


def test_every_yaml_has_a_look_and_no_two_share_one():
    assert {*names_in("model")} - {"layers"} <= {*LOOKS}  # a pattern has those of its entries
    assert len({(look.colour, look.marker, look.dash) for look in LOOKS.values()}) == len(LOOKS)


@pytest.mark.parametrize("name", artifacts.names())
def test_what_an_artifact_shows_together_can_be_told_apart(name):
    models = getattr(artifacts.load(name), "models", [])
    looks = looks_of(models)
    assert [*looks] == [*dict.fromkeys(models)]
    assert len({(look.colour, look.marker, look.dash) for look in looks.values()}) == len(looks)
    assert all(looks[model] == look_of(model) for model in models), "the same everywhere"


def test_an_encoding_of_ones_own_has_a_look_that_stays():
    own = [f"own{n}" for n in range(60)]
    assert looks_of(["tape", "toy"])["toy"] == looks_of(["toy", "rope"])["toy"] == look_of("toy")
    assert look_of("toy") not in LOOKS.values()
    assert len({*looks_of([*LOOKS, *own]).values()}) == len(LOOKS) + len(own), "none is shared"
    assert look_of("abacus†") == look_of("abacus")
