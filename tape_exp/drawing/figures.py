"""What a figure of an artifact is: data with a title, which draws itself as a picture."""

import dataclasses
import functools
import hashlib
import json
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from PIL import Image

from tape_exp.drawing.curves import Curves
from tape_exp.drawing.heatmap import Heatmaps
from tape_exp.drawing.page import KINDS
from tape_exp.drawing.patterns import Patterns

Figure = Curves | Heatmaps | Patterns


def redraw(figure: Figure, path: Path) -> list[Path]:
    """Draw PDF, SVG and PNG, unless those beside ``path``, the PNG, were drawn from the same data
    by the same code; returns their paths.
    """
    mark, files = mark_of(figure), [path.with_suffix(f".{kind}") for kind in KINDS]
    if not all(_has_mark(file, mark) for file in files):
        figure.draw(path, mark, KINDS)
    return files


def _has_mark(path: Path, mark: str) -> bool:
    """Whether a file was drawn from what the mark stands for."""
    if path.suffix == ".png":
        return mark_in(path) == mark
    return path.exists() and mark.encode() in path.read_bytes()


def mark_of(figure: Figure) -> str:
    """A hash of what a picture depends on: its data, the code of this folder, and matplotlib."""
    data = json.dumps(dataclasses.asdict(figure), sort_keys=True, default=_plain)
    return hashlib.sha256(f"{_code()} {type(figure).__name__} {data}".encode()).hexdigest()[:16]


def mark_in(path: Path) -> str | None:
    """The mark that a PNG holds; None where there is none, or no PNG."""
    try:
        with Image.open(path) as picture:
            picture.load()  # all of it: half a file is drawn again
            return picture.info.get("Source")
    except (OSError, SyntaxError, ValueError):  # what Pillow raises for a damaged PNG
        return None


@functools.cache
def _code() -> str:
    """The versions of what draws."""
    sources = "".join(path.read_text() for path in sorted(Path(__file__).parent.glob("*.py")))
    return hashlib.sha256(f"{matplotlib.__version__} {sources}".encode()).hexdigest()


def _plain(value: Any) -> Any:
    """Arrays, paths and sets as JSON has them."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    return sorted(value) if isinstance(value, set | frozenset) else str(value)
