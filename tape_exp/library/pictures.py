"""Pictures of one run: ``te.plot``."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tape_exp.library.comparison import compare
from tape_exp.library.image import image_of
from tape_exp.results.record import Record
from tape_exp.runs.metrics import read_metrics
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.naming import display_name, task_title
from tape_exp.training.loaded_run import LoadedRun

if TYPE_CHECKING:
    from PIL.Image import Image

NAMES = {"train/loss": "training", "val/loss": "validation"}


def plot(
    run: LoadedRun | dict[str, Any], text: str | Sequence[int] = "", losses: bool = False
) -> "Image":
    """Draw a run's results by length, its attention to a text, or its losses.

    Example::

        te.plot(run).save("accuracy.png")
        te.plot(run, "21+9=12")  # a notebook shows it
        te.plot(run, losses=True)

    Args:
        run: a run, or a record, which has no attention.
        text: where each layer looks in it is drawn, the mean over heads.
        losses: of training and validation by step: every point of a run, those that a record has.

    Returns:
        A picture, which a notebook shows and ``save`` writes.

    Raises:
        ConfigError: no result of the run is by length, or it has trained nothing.
    """
    if not isinstance(run, LoadedRun | dict):
        raise ConfigError(
            f"plot takes a run, as te.load gives it, or a record, and not a {type(run).__name__}."
        )
    if losses:
        return image_of(_losses(run))
    if text:
        if not isinstance(run, LoadedRun):
            raise ConfigError("plot shows attention to a text of a run, as te.load gives it.")
        return _attention(run, text)
    return _by_length(Record(run.record if isinstance(run, LoadedRun) else run))


def _attention(run: LoadedRun, text: str | Sequence[int]) -> "Image":
    """Draw the mean over heads of each layer's attention."""
    from tape_exp.drawing.matrices import run_matrices

    means = {}
    for layer, probabilities_HTT in run.attention(text).items():
        means[f"attention@{layer}"] = probabilities_HTT.mean(0).numpy()
    title = f"Attention of {_title_of(run.record)}, mean over heads"
    return image_of(partial(run_matrices, means, title=title, symbols=run.symbols(text)))


def _by_length(record: Record) -> "Image":
    """Draw the grid of a record, or its curve."""
    from tape_exp.artifacts.figures.grids import mean_grid
    from tape_exp.drawing.plots import GridPanel, grids

    if "axes" in record:
        grid = mean_grid([record])
        # The rows of what varies in its length only are measures, which have no mean.
        mean = f"mean {np.nanmean(grid.values):.1f} %" if grid.row_label else ""
        panel = GridPanel(mean, grid)
        return image_of(partial(grids, [panel], title=_title_of(record)))
    picture = compare(record)[1] if "config" in record else None
    if picture is None:
        raise ConfigError(
            "no result of this run is by length; plot(run, text) shows attention, and "
            "plot(run, losses=True) its losses."
        )
    return picture


def _title_of(record: Mapping[str, Any]) -> str:
    """Say of which run a picture is: ``TAPE on arithmetic, seed 0``; of what a decoder gave, which
    has no config, nothing.
    """
    if "config" not in record:
        return ""
    config = record["config"]
    model = display_name(config["model"]["name"])
    return f"{model} on {task_title(config['task'])}, seed {record.get('seed', 0)}"


def _losses(run: LoadedRun | dict[str, Any]) -> Callable[[Path], Path]:
    """Make the figure of the losses of one run."""
    from tape_exp.drawing.plots import Line, Panel, curves
    from tape_exp.drawing.style import categorical

    lines = []
    for number, (name, points) in enumerate(_points(run).items()):
        if points:
            style = categorical(number)
            lines.append(Line(NAMES.get(name, name), [*points], [*points.values()], style=style))
    if not lines:
        raise ConfigError("this run has no losses: it trained nothing, or its curve is not kept.")
    panel = Panel("", "step", "loss (nats)", lines, log_y=True)
    record = run.record if isinstance(run, LoadedRun) else run
    return partial(curves, [panel], title=_title_of(record))


def _points(run: LoadedRun | dict[str, Any]) -> dict[str, dict[int, float]]:
    """Return the losses of a run: name -> step -> value."""
    points: dict[str, dict[int, float]] = {}
    if isinstance(run, LoadedRun):
        rows = read_metrics(run.folder / "metrics.jsonl")
        for name in ("train/loss", "val/loss"):
            points[name] = {row["step"]: row[name] for row in rows if name in row}
    else:
        for name, curve in run.get("curves", {}).items():
            points[name] = dict(zip(curve["step"], curve["value"], strict=True))
    return points
