"""A figure of an artifact: data with a title, drawn by :mod:`tape_exp.drawing.plots`."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tape_exp.drawing import plots
from tape_exp.runs.evaluation import Heatmap


@dataclass(frozen=True)
class Curves:
    """Panels of lines, ``options`` as :func:`~tape_exp.drawing.plots.curves` has them.

    Args:
        suffix: what the name of its file ends with; None: it is drawn on the page of ``make
            report`` only.
    """

    title: str
    panels: list[plots.Panel]
    suffix: str | None = ""
    options: Mapping[str, Any] = field(default_factory=dict)

    def draw(self, path: Path) -> Path:
        """Write the figure."""
        return plots.curves(self.panels, path, self.title, **self.options)


@dataclass(frozen=True)
class Heatmaps:
    """Grids."""

    title: str
    panels: dict[str, Heatmap]
    suffix: str | None = ""

    def draw(self, path: Path) -> Path:
        """Write the figure."""
        return plots.grids(self.panels, path, self.title)


@dataclass(frozen=True)
class Patterns:
    """Matrices."""

    title: str
    panels: dict[str, np.ndarray]
    suffix: str | None = ""
    causal: Collection[str] = ()
    label: str | Mapping[str, str] = ""

    def draw(self, path: Path) -> Path:
        """Write the figure."""
        return plots.matrices(self.panels, path, self.title, label=self.label, causal=self.causal)


Figure = Curves | Heatmaps | Patterns
