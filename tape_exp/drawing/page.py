"""How a picture is put on a page: its width in a column of a paper, its type, its files."""

import functools
import io
import math
import re
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from tape_exp.machine.files import write_atomically

P = ParamSpec("P")
T = TypeVar("T")

SINGLE, DOUBLE = 3.25, 6.75  # inches: a column of a paper of two columns, and both
TYPE = 7.0  # points, at these widths
TITLE = 8.0
WIDE = 0.56  # of a letter, as a part of its height: DejaVu Sans on average
KINDS = ("pdf", "svg", "png")  # the PNG last: it is there when all are
STYLE: dict[str, Any] = {
    "font.family": "DejaVu Sans",  # which matplotlib carries
    "font.size": TYPE,
    "figure.titlesize": TITLE,
    "axes.titlesize": TYPE + 0.5,
    "axes.labelsize": TYPE,
    "xtick.labelsize": TYPE - 0.5,
    "ytick.labelsize": TYPE - 0.5,
    "legend.fontsize": TYPE - 0.5,
    "axes.linewidth": 0.6,
    "axes.titlepad": 4,
    "axes.labelpad": 2.5,
    "axes.grid.which": "major",
    "grid.linewidth": 0.4,
    "grid.alpha": 0.35,
    "lines.linewidth": 1.1,
    "lines.markersize": 3.5,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.minor.width": 0.4,
    "ytick.minor.width": 0.4,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "xtick.minor.size": 1.5,
    "ytick.minor.size": 1.5,
    "xtick.major.pad": 2,
    "ytick.major.pad": 2,
    "legend.frameon": False,
    "legend.handlelength": 2.6,
    "legend.columnspacing": 1.4,
    "pdf.fonttype": 42,  # TrueType
    "svg.fonttype": "path",
    "svg.hashsalt": "tape_exp",
}
DPI = 200
LARGE = 150_000  # bytes of a PNG
# A file says neither when it was made nor by whom, so that the same picture has the same bytes.
METADATA: dict[str, dict[str, Any]] = {
    "png": {"Software": None},
    "pdf": {"CreationDate": None},
    "svg": {"Date": None},
}
MARKED = {"png": "Source", "pdf": "Keywords", "svg": "Source"}  # what holds the mark of a picture


def in_print(draw: Callable[P, T]) -> Callable[P, T]:
    """The function, with the type and the lines of a paper."""

    @functools.wraps(draw)
    def drawn(*given: P.args, **named: P.kwargs) -> T:
        import matplotlib

        with matplotlib.rc_context(STYLE):  # type: ignore[arg-type]
            return draw(*given, **named)

    return drawn


def new_figure(width: float, height: float, title: str = "", layout: Any = "constrained") -> Any:
    """A figure of this many inches, a title on top of that, which needs no screen."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    title = fitted(title, width, TITLE)
    lines = title.count("\n") + 1 if title else 0
    figure = Figure(figsize=(width, height + lines * 1.35 * TITLE / 72), layout=layout)
    FigureCanvasAgg(figure)
    engine: Any = figure.get_layout_engine()
    engine.set(w_pad=0.03, h_pad=0.03)
    if title:
        figure.suptitle(title)
    return figure


def fitted(text: str, width: float, points: float = TYPE) -> str:
    """A text in lines that are no longer than so many inches."""
    return textwrap.fill(text, max(8, math.floor(width * 72 / (WIDE * points)))) if text else ""


@in_print
def save(figure: Any, path: Path, mark: str = "", kinds: Sequence[str] = ("png",)) -> Path:
    """Write ``path`` as each of the kinds, whole or not at all; the same bytes for the same figure.

    A ``mark`` is written into them as what they were drawn from.
    """
    for kind in kinds:
        picture = io.BytesIO()
        metadata = METADATA[kind] | ({MARKED[kind]: mark} if mark else {})
        figure.savefig(picture, dpi=DPI, format=kind, metadata=metadata)
        content = picture.getvalue()
        if kind == "svg":
            content = shorter(content.decode()).encode()
        elif kind == "png" and len(content) > LARGE:
            content = in_few_colours(content, mark)
        write_atomically(path.with_name(f"{path.stem}.{kind}"), content)
    return path


def shorter(svg: str) -> str:
    """An SVG with coordinates of two decimals, hundredths of a point, without indentation, with the
    style of a line's markers said once, and with short names for what is named.
    """

    def rounded(match: re.Match[str]) -> str:  # but for the scale of the letters
        return match[0] if match[0].startswith("scale") else f"{float(match[0]):.2f}"

    short = re.sub(r"scale\([^)]*\)|\d+\.\d{3,}", rounded, svg)
    lines = re.sub(r"\s*\n\s*", "\n", short).replace("\nL ", "L")
    once = re.sub(r"<g( clip-path=[^>]*)>\n((?:<use [^>]*/>\n)+)", _said_once, lines)
    return _named_briefly(once)


def _named_briefly(svg: str) -> str:
    """An SVG whose elements are named n0, n1 … where something refers to them, else not at all."""
    use = r'((?:href="|url\()#)([^")]+)'
    used = dict.fromkeys(match[2] for match in re.finditer(use, svg))
    brief = {name: f"n{k}" for k, name in enumerate(used)}

    def name(match: re.Match[str]) -> str:
        return f' id="{brief[match[1]]}"' if match[1] in brief else ""

    svg = re.sub(r' id="([^"]*)"', name, svg)
    return re.sub(use, lambda match: match[1] + brief[match[2]], svg)


def _said_once(markers: re.Match[str]) -> str:
    """A group of markers whose common style is the group's."""
    styles = {*re.findall(r' style="[^"]*"', markers[2])}
    if len(styles) != 1:
        return markers[0]
    (style,) = styles
    return f"<g{markers[1]}{style}>\n{markers[2].replace(style, '')}"


def in_few_colours(png: bytes, mark: str) -> bytes:
    """A PNG in 256 colours, which are enough for lines."""
    from PIL import Image, PngImagePlugin

    said, picture = PngImagePlugin.PngInfo(), io.BytesIO()
    if mark:
        said.add_text(MARKED["png"], mark)
    few = Image.open(io.BytesIO(png)).convert("RGB").quantize(256, dither=Image.Dither.NONE)
    few.save(picture, format="png", optimize=True, pnginfo=said, dpi=(DPI, DPI))
    return picture.getvalue()
