"""The colour, marker and dash of every encoding, the same in all pictures and on all pages.

A family of encodings shares a hue, and its members differ in marker and dash. The hues are Okabe
and Ito's, some of them darker so that they are seen on white, and stay apart for those who see no
red or no green; on a dark page each has a lighter one.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

MARKERS = "osD^vPX*h"
DASHES = ("-", "--", "-.", ":")


@dataclass(frozen=True)
class Look:
    """How a line is drawn.

    Args:
        colour: on white.
        dark: on a dark page.
        marker: matplotlib's name; empty: none.
        dash: matplotlib's name of the line's pattern.
    """

    colour: str
    dark: str
    marker: str
    dash: str = "-"


GUIDE = Look("#6b6b6b", "#a7a7a7", "", "--")  # what the others are compared with

# (on white, on dark) and the family; new members come last, so that the others keep their looks
FAMILIES: dict[tuple[str, str], Sequence[str]] = {
    ("#0072b2", "#56b4e9"): (
        *("rope", "xpos", "p_rope", "pope", "selective_rope", "repo", "grape", "rope_window"),
        *("rnope_swa", "ssmax", "rope_theta", "rope_linear", "rope_ntk", "rope_yarn"),
    ),
    ("#000000", "#f0f0f0"): ("nope", "sinusoidal", "learned", "base", "unigram"),
    ("#269bb0", "#3b8ff2"): ("randpe", "abacus", "coupling", "lora", "longlora", "theta"),
    ("#009e73", "#00845c"): ("fire", "t5", "kerple_log", "kerple_power", "fire_randpe"),
    ("#d55e00", "#f57c1f"): (
        *("tape", "tape_householder", "tape_yarn", "tape_tensor", "tape_randpe", "tape_full"),
        *("tape_fourier", "tape_public_addition", "tape_no_attention", "tape_no_feed_forward"),
        *("tape_neither", "tape_no_tensor", "tape_no_equivariance", "tape_i1", "tape_i2"),
        *("tape_i8", "tape_i16", "tape_separate", "tape_embeddings"),
    ),
    ("#8f1d66", "#c04a9c"): ("alibi", "grape_additive", "alibi_randpe"),
    ("#8a4dff", "#8a4dff"): ("path", "fox", "path_fox", "wall"),
    ("#5c4410", "#f0dc82"): ("cope", "dape"),
}
COLOURS = [*FAMILIES]


def _member(family: int, number: int) -> Look:
    """The look of the n-th member of a family: no two of the first 36 share marker and dash."""
    marker = MARKERS[(family + number) % len(MARKERS)]
    return Look(*COLOURS[family], marker, DASHES[number % len(DASHES)])


LOOKS = {
    name: _member(family, number)
    for family, names in enumerate(FAMILIES.values())
    for number, name in enumerate(names)
}
FREE = [
    look
    for number in range(36)
    for family in range(len(COLOURS))
    if (look := _member(family, number)) not in LOOKS.values()
]


def look_of(name: str) -> Look:
    """The look of a model or method; of one that is not known here, a look that its name gives."""
    name = name.rstrip("†")
    number = int(hashlib.sha256(name.encode()).hexdigest(), 16)
    return LOOKS.get(name) or FREE[number % len(FREE)]


def looks_of(names: Iterable[str]) -> dict[str, Look]:
    """The looks of names that are drawn together; where two would share one, the later name has the
    next that is free.
    """
    found: dict[str, Look] = {}
    for name in dict.fromkeys(names):
        look = look_of(name)
        if look in found.values():
            look = next(other for other in FREE if other not in found.values())
        found[name] = look
    return found


def series(number: int) -> Look:
    """The look of the n-th of some things that are no encodings."""
    return replace(_member(number % len(COLOURS), 0), dash=DASHES[number // len(COLOURS) % 4])


def graded(number: int, of: int, marker: str = "") -> Look:
    """The look of the n-th of some things that are in an order, such as layers, from dark to light;
    on a dark page from light to dark.
    """
    share = number / max(of - 1, 1)
    light, dark = (_hex(0.62 * share), _hex(1 - 0.62 * share))
    return Look(light, dark, marker, DASHES[number % 2])


def _hex(share: float) -> str:
    import matplotlib

    rgb = matplotlib.colormaps["viridis"](share)[:3]
    return "#" + "".join(f"{round(255 * channel):02x}" for channel in rgb)
