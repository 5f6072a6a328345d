"""What a figure of an artifact is: data with a title, which draws itself as a picture.

The page of ``make report`` draws the same data interactively.
"""

from dataclasses import dataclass
from pathlib import Path

from tape_exp.drawing.curves import Curves
from tape_exp.drawing.heatmap import Heatmaps
from tape_exp.drawing.patterns import Patterns
from tape_exp.machine.files import write_atomically


@dataclass(frozen=True)
class Picture:
    """A PNG that another program drew."""

    title: str
    source: Path
    suffix: str | None = ""

    def draw(self, path: Path) -> Path:
        """Copy it, whole or not at all."""
        write_atomically(path, self.source.read_bytes())
        return path


Figure = Curves | Heatmaps | Patterns | Picture
