"""A picture that a notebook shows, of what is drawn to a file."""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.Image import Image


def image_of(draw: Callable[[Path], Path]) -> "Image":
    """Draw to a file that is removed, and return the picture."""
    from PIL import Image

    with TemporaryDirectory() as folder, Image.open(draw(Path(folder, "figure.png"))) as image:
        return image.copy()
