"""How figures look: type and width of a paper's column, a style for every model, and files.

A family of encodings shares a hue, and its members differ in marker and dash. The hues are Okabe
and Ito's, some of them darker so that they are seen on white, and stay apart for readers who see no
red or no green.
"""

import hashlib
import io
import math
import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
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
    **{f"{axis}tick.labelsize": SMALL for axis in "xy"},
    **{f"{axis}tick.major.{key}": n for axis in "xy" for key, n in (("width", 0.6), ("size", 2.5))},
    **{f"{axis}tick.minor.{key}": n for axis in "xy" for key, n in (("width", 0.4), ("size", 1.5))},
    **{f"{axis}tick.major.pad": 2 for axis in "xy"},
}
in_print = matplotlib.rc_context(STYLE)  # type: ignore[arg-type]  # decorates what draws
# No time and no author, so that the same data give the same bytes.
METADATA: dict[str, dict[str, Any]] = {
    "png": {"Software": None},
    "pdf": {"CreationDate": None},
    "svg": dict.fromkeys(("Date", "Creator", "Format", "Type")),
}

MARKERS = "osD^vPX*h"
DASHES = ("-", "--", "-.", ":")


@dataclass(frozen=True)
class LineStyle:
    """Colour, marker (empty: none) and dash of a line, as matplotlib names them."""

    colour: str
    marker: str
    dash: str = "-"


REFERENCE = LineStyle("#6b6b6b", "", "--")  # what the others are compared with

# New members come last, so that the others keep their styles.
FAMILIES: dict[str, Sequence[str]] = {
    "#0072b2": (
        *("rope", "xpos", "p_rope", "pope", "selective_rope", "repo", "grape", "rope_window"),
        *("rnope_swa", "ssmax", "rope_theta", "rope_linear", "rope_ntk", "rope_yarn"),
        *("carope", "rerope", "rope_temperature"),
    ),
    "#000000": ("nope", "sinusoidal", "learned", "base", "unigram", "nope_temperature"),
    "#269bb0": ("randpe", "abacus", "coupling", "rfs"),
    "#009e73": ("fire", "t5", "kerple_log", "kerple_power", "fire_randpe", "bam"),
    "#d55e00": (
        *("tape", "tape_householder", "tape_yarn", "tape_tensor", "tape_randpe", "tape_full"),
        *("tape_fourier", "tape_public_addition", "tape_no_attention", "tape_no_feed_forward"),
        *("tape_neither", "tape_no_tensor", "tape_no_equivariance", "tape_i1", "tape_i2"),
        *("tape_i8", "tape_i16", "tape_separate", "tape_embeddings", "tape_constant", "tape_unit"),
        *("tape_mlp", "tape_scale", "tape_unit_temperature", "tape_complex"),
    ),
    "#8f1d66": ("alibi", "grape_additive", "alibi_randpe"),
    "#8a4dff": ("path", "fox", "path_fox", "wall"),
    "#5c4410": ("cope", "dape"),
    "#1f1f99": ("lora", "longlora", "theta"),
}
COLOURS = [*FAMILIES]


def _member(family: int, number: int) -> LineStyle:
    """The style of the n-th member of a family: no two of the first 36 share marker and dash."""
    marker = MARKERS[(family + number) % len(MARKERS)]
    return LineStyle(COLOURS[family], marker, DASHES[number % len(DASHES)])


STYLES = {
    name: _member(family, number)
    for family, names in enumerate(FAMILIES.values())
    for number, name in enumerate(names)
}


def style_of(name: str, taken: Iterable[LineStyle] = ()) -> LineStyle:
    """The style of a model or method; of an unknown one, or where that is ``taken``, one that
    depends on the name.
    """
    style = STYLES.get(name.rstrip("†"))
    number = int(hashlib.sha256(name.encode()).hexdigest(), 16)
    while style is None or style in taken:
        style = _member(number % len(COLOURS), number // len(COLOURS) % 36)
        number += 1
    return style


def styles_of(names: Iterable[str]) -> dict[str, LineStyle]:
    """The styles of names in one figure; their own colours, where five have that of one family."""
    styles: dict[str, LineStyle] = {}
    for name in dict.fromkeys(names):
        styles[name] = style_of(name, styles.values())
    if max(Counter(style.colour for style in styles.values()).values(), default=0) < 5:
        return styles
    return {name: categorical(number) for number, name in enumerate(styles)}


def categorical(number: int) -> LineStyle:
    """The style of the n-th of some things that are not encodings."""
    dash = DASHES[number // len(COLOURS) % len(DASHES)]
    return replace(_member(number % len(COLOURS), 0), dash=dash)


def new_figure(height: float, title: str = "") -> Figure:
    """A figure of so many inches and its title above; it needs no display."""
    title = fitted(title, WIDTH, TITLE)
    above = (title.count("\n") + 1) * 1.35 * TITLE / 72 if title else 0
    figure = Figure(figsize=(WIDTH, height + above), layout="constrained")
    engine: Any = figure.get_layout_engine()
    engine.set(w_pad=0.03, h_pad=0.03)
    figure.suptitle(title)
    return figure


def fitted(text: str, width: float, points: float = TYPE) -> str:
    """A text in as few lines of at most so many inches as it needs, of about the same length."""
    if not text:
        return ""
    wrap = partial(textwrap.wrap, text, break_long_words=False)
    letters = max(8, math.floor(width * 72 / (LETTER * points)))
    lines = wrap(letters)
    alike = range(math.ceil(len(text) / len(lines)), letters)
    return "\n".join(next((each for n in alike if len(each := wrap(n)) == len(lines)), lines))


FURTHER = re.compile(rb"(?<=\.\d\d)\d+|\n(?=[A-Zz])|(?<=\n[A-Z]) ")  # decimals, and space in paths


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
    if kind == "svg":  # places to a hundredth of a point, no indents: git keeps every byte
        drawn = re.sub(rb"\s*\n\s*", b"\n", drawn)
        drawn = re.sub(rb'="[^"]+"', lambda part: FURTHER.sub(b"", part[0]), drawn)
    write_atomically(path, drawn)
    return path
