"""How figures look: type and width of a paper's column, a style for every model, and files.

A family of encodings shares a hue, and its members differ in shade, marker and dash. The hues are
Okabe and Ito's, some of them darker so that they are seen on white, and stay apart for readers who
see no red or no green.
"""

import io
import itertools
import math
import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from tape_exp.machine.files import write_atomically

WIDTH = 3.25  # inches: a column of a two-column paper
TYPE = 7.0  # points, at this width
SMALL = TYPE - 0.5
TITLE = 8.0
LETTER = 0.56  # mean width of a letter of DejaVu Sans, as a part of its height
SCALE = "YlGnBu"
DIVERGING = "RdBu_r"  # colour maps: the paper's, and one whose white is 0
DPI = 200
STYLE: dict[str, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana", "sans-serif"],  # matplotlib ships the first
    "font.size": TYPE,
    "figure.titlesize": TITLE,
    "axes.titlesize": TYPE + 0.5,
    "axes.labelsize": TYPE,
    "axes.linewidth": 0.6,
    "axes.titlepad": 4,
    "axes.labelpad": 2.5,
    "grid.linewidth": 0.4,
    "grid.alpha": 0.35,
    "lines.linewidth": 1.1,
    "lines.markersize": 3.5,
    "legend.fontsize": SMALL,
    "legend.frameon": False,
    "legend.handlelength": 2.0,
    "legend.columnspacing": 1.4,
    "pdf.fonttype": 42,  # TrueType
    "svg.fonttype": "none",  # text stays text: small files whose words can be found
    "svg.hashsalt": "tape_exp",
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "xtick.major.pad": 2,
    "ytick.major.pad": 2,
    "xtick.minor.width": 0.4,
    "ytick.minor.width": 0.4,
    "xtick.minor.size": 1.5,
    "ytick.minor.size": 1.5,
}
in_print = matplotlib.rc_context(STYLE)  # type: ignore[arg-type]  # decorates what draws
# No time and no author, so that the same data give the same bytes.
METADATA: dict[str, dict[str, Any]] = {
    "png": {"Software": None},
    "pdf": {"CreationDate": None},
    "svg": dict.fromkeys(("Date", "Creator", "Format", "Type")),
}

MARKERS = "osD^vPXhp<>d*"
DASHES = ("-", "--", "-.", ":")


@dataclass(frozen=True)
class LineStyle:
    """Colour, marker (empty: none) and dash of a line, as matplotlib names them."""

    colour: str
    marker: str
    dash: str = "-"


REFERENCE = LineStyle("#6b6b6b", "", "--")  # what the others are compared with


@dataclass(frozen=True)
class Family:
    """Models that are alike: the first has the first shade and the marker, in every figure; the
    n-th prefers the n-th shade, marker and dash from there.
    """

    members: str  # with spaces between them
    shades: Sequence[str]
    marker: str

    @property
    def names(self) -> list[str]:
        """List the members."""
        return self.members.split()


# A new encoding comes last in its family, so that those before it keep their looks; one that has no
# place here is drawn in a colour of none.
FAMILIES = (
    Family(
        "rope xpos p_rope pope selective_rope repo grape rope_window rnope_swa ssmax rope_theta"
        " rope_linear rope_ntk rope_yarn carope rerope rope_temperature",
        ("#0072b2", "#5fb0e6", "#00395a"),
        "o",
    ),
    Family(
        "nope sinusoidal learned base unigram nope_temperature",
        ("#000000", "#8a8a8a", "#4d4d4d"),
        "s",
    ),
    Family("randpe abacus coupling rfs", ("#269bb0", "#7fd0df", "#0f4f5b"), "D"),
    Family(
        "fire t5 kerple_log kerple_power fire_randpe bam", ("#009e73", "#6fd1b0", "#00523b"), "^"
    ),
    Family(
        "tape tape_householder tape_yarn tape_tensor tape_randpe tape_full tape_fourier"
        " tape_public_addition tape_no_attention tape_no_feed_forward tape_neither tape_no_tensor"
        " tape_no_equivariance tape_i1 tape_i2 tape_i8 tape_i16 tape_separate tape_embeddings"
        " tape_constant tape_unit tape_mlp tape_scale tape_unit_temperature tape_complex",
        ("#d55e00", "#e6ab02", "#7a2300", "#c1121f", "#f0936b"),
        "v",
    ),
    Family("alibi grape_additive alibi_randpe", ("#8f1d66", "#cf7fb4", "#4d0f37"), "P"),
    Family("path fox path_fox wall", ("#8a4dff", "#c0a3ff", "#4a1fa0"), "X"),
    Family("cope dape", ("#5c4410", "#b8965a"), ">"),
    Family("lora", ("#1f1f99",), "h"),
    Family("longlora", ("#009e73",), "p"),
    Family("theta", ("#8a4dff",), "<"),
)
KEPT = ("#e6298e", "#79a600")  # colours of none of them, for encodings of one's own
COLOURS = tuple(dict.fromkeys([*KEPT, *(family.shades[0] for family in FAMILIES)]))


def styles_of(names: Iterable[str]) -> dict[str, LineStyle]:
    """Choose the styles of names in one figure: no two have the same colour and marker, and as long
    as there are some, each has a colour and a marker that no other has.

    The first of a family always has its own. Other members have the shade of their place in the
    family, or another one that is free; what is in no family, as an encoding of one's own, has a
    colour of none.
    """
    every = list(dict.fromkeys(names))
    styles: dict[str, LineStyle] = {}
    for name in sorted(every, key=_rank):
        styles[name] = _free_style(name, [*styles.values()])
    return {name: styles[name] for name in every}


def categorical(number: int) -> LineStyle:
    """Choose the style of the n-th of some things that are not encodings."""
    colours = ("#1f1f99", *COLOURS)
    marker = MARKERS[number % len(MARKERS)]
    return LineStyle(colours[number % len(colours)], marker, DASHES[number % len(DASHES)])


def _rank(name: str) -> int:
    """Whose style is chosen first: that of the first of a family, then those of its members."""
    family = _family_of(name)
    if family is None:
        return 2
    return 0 if _plain(name) == family.names[0] else 1


def _plain(name: str) -> str:
    """Strip the mark from the name of a model that may have one."""
    return name.rstrip("†")


def _family_of(name: str) -> Family | None:
    """Find the family of a name; None of an encoding of one's own."""
    for family in FAMILIES:
        if _plain(name) in family.names:
            return family
    return None


def _free_style(name: str, taken: Sequence[LineStyle]) -> LineStyle:
    """Choose the style that a name would like best of those that differ from all that are taken."""
    family = _family_of(name)
    if family is None:
        colours: Sequence[str] = COLOURS
        markers: Sequence[str] = MARKERS[::-1]  # families have the first ones
        dash = "-"
    else:
        number = family.names.index(_plain(name))
        colours = _from(number, family.shades)
        markers = _from(number + MARKERS.index(family.marker), MARKERS)
        dash = DASHES[number % len(DASHES)]
    pairs = {(style.colour, style.marker) for style in taken}
    if _rank(name) == 0 and (colours[0], markers[0]) not in pairs:
        return LineStyle(colours[0], markers[0], dash)
    free = [pair for pair in itertools.product(colours, markers) if pair not in pairs]
    if not free:
        raise ValueError(f"a figure has no style for {name}: it has {len(taken)} lines already.")
    used = {style.colour for style in taken} | {style.marker for style in taken}
    colour, marker = min(free, key=lambda pair: (pair[0] in used, pair[1] in used))
    return LineStyle(colour, marker, dash)


def _from(number: int, items: Sequence[str]) -> tuple[str, ...]:
    """List all items, beginning with the n-th."""
    begin = number % len(items)
    return (*items[begin:], *items[:begin])


def new_figure(height: float, title: str = "") -> Figure:
    """Make a figure of so many inches and its title above; it needs no display."""
    title = fitted(title, WIDTH, TITLE)
    above = (title.count("\n") + 1) * 1.35 * TITLE / 72 if title else 0
    figure = Figure(figsize=(WIDTH, height + above), layout="constrained")
    engine: Any = figure.get_layout_engine()
    engine.set(w_pad=0.03, h_pad=0.03)
    figure.suptitle(title)
    return figure


def fitted(text: str, width: float, points: float = TYPE) -> str:
    """Wrap a text into as few lines of at most so many inches as it needs, of about the same
    length.
    """
    if not text:
        return ""
    room = max(8, math.floor(width * 72 / (LETTER * points)))  # letters
    lines = textwrap.wrap(text, room, break_long_words=False)
    for letters in range(math.ceil(len(text) / len(lines)), room):
        narrower = textwrap.wrap(text, letters, break_long_words=False)
        if len(narrower) == len(lines):
            return "\n".join(narrower)
    return "\n".join(lines)


# In the value of an attribute: decimals after the second, line breaks before a command of a path,
# and the space after one.
UNSEEN = re.compile(rb"(?<=\.\d\d)\d+|\n(?=[A-Zz])|(?<=\n[A-Z]) ")


@in_print
def save(figure: Figure, path: Path) -> Path:
    """Write a figure atomically; the suffix of its path is its format."""
    content = io.BytesIO()
    kind = path.suffix[1:]
    engine = figure.get_layout_engine()
    if engine:  # an engine that stays lets savefig draw once more, for the layout
        engine.execute(figure)
        figure.set_layout_engine(None)
    figure.savefig(content, dpi=DPI, format=kind, metadata=METADATA[kind])
    drawn = content.getvalue()
    write_atomically(path, without_unseen(drawn) if kind == "svg" else drawn)
    return path


def without_unseen(svg: bytes) -> bytes:
    """Leave out of an SVG what nobody sees, since git keeps every byte: indents, places beyond a
    hundredth of a point, and spaces within paths.

    >>> without_unseen(b'<g>\\n  <path d="M 12.345678 0 \\nL 3.5 4.25 \\n"/>')
    b'<g>\\n<path d="M 12.34 0L3.5 4.25\\n"/>'
    """
    without_indents = re.sub(rb"\s*\n\s*", b"\n", svg)
    return re.sub(rb'="[^"]+"', lambda value: UNSEEN.sub(b"", value[0]), without_indents)
