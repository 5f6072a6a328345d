"""Ceilings among models: encodings that are told which tokens are digits, and so are no rivals."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

from tape_exp.drawing.curves import Curves
from tape_exp.drawing.figures import Figure
from tape_exp.drawing.heatmap import Heatmaps
from tape_exp.drawing.patterns import Patterns
from tape_exp.paper.tables import Table
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.folders import ROOT
from tape_exp.settings.targets import locate

MARK = "†"
TOLD = f"{MARK} told which tokens are digits"
POSITIONS = "tape_exp.models.positions."


def ceilings(records: Mapping[str, Sequence[Mapping[str, Any]]]) -> set[str]:
    """The names of the models in some records whose encoding knows digits."""
    configs = [run.get("config") or {} for runs in records.values() for run in runs]
    models = [config.get("model") for config in configs]
    return {m["name"] for m in models if isinstance(m, dict) and knows_digits(m)}


def knows_digits(model: Mapping[str, Any]) -> bool:
    """Whether a model of some config has an encoding, in any layer, with ``knows_digits``."""
    layers = model.get("layers") or [model]
    return any(_knows_digits(layer.get("_target_")) for layer in layers)


@cache
def _knows_digits(target: Any) -> bool:
    """Whether the class that a record names has ``knows_digits``.

    Encodings whose file, and those that it imports encodings from, do not speak of it are not
    imported: they would bring torch, which takes seconds.
    """
    if not isinstance(target, str) or not _speaks_of_it(target.rpartition(".")[0]):
        return False
    try:
        return bool(getattr(locate(target, "model"), "knows_digits", False))
    except ConfigError:  # a record of a class that is no more
        return False


def _speaks_of_it(module: str) -> bool:
    path = ROOT / f"{module.replace('.', '/')}.py"
    if not module.startswith(POSITIONS) or module == f"{POSITIONS}base" or not path.is_file():
        return False
    text = path.read_text()
    others = re.findall(rf"^from ({re.escape(POSITIONS)}\w+) import", text, re.MULTILINE)
    return "knows_digits" in text or any(map(_speaks_of_it, others))


def marked(text: str, names: Iterable[str]) -> str:
    """The text with the mark after each of the names."""
    for name in names:
        text = re.sub(rf"\b{re.escape(name)}\b(?!{MARK})", name + MARK, text)
    return text


def marked_table(table: Table, names: set[str]) -> Table:
    """The table with the mark in its labels, and what it means in its caption."""
    if not names:
        return table
    rows = [{**row, table.label: marked(str(row[table.label]), names)} for row in table.rows]
    words = "the others must find out which these are: a ceiling, and no rival"
    return replace(table, rows=rows, caption=f"{table.caption} {TOLD}; {words}.")


def marked_figure(figure: Figure, names: set[str]) -> Figure:
    """The figure with the mark in its legend and the titles of its panels, and with what it means
    in its own; a picture that another program drew stays as it is.
    """
    if not names:
        return figure
    words = partial(marked, names=names)
    panels: Any = None
    if isinstance(figure, Curves):
        panels = [
            replace(
                panel,
                title=words(panel.title),
                lines=[replace(line, name=words(line.name)) for line in panel.lines],
            )
            for panel in figure.panels
        ]
    elif isinstance(figure, Heatmaps | Patterns):
        panels = {words(name): panel for name, panel in figure.panels.items()}
    else:
        return figure
    return replace(figure, panels=panels, title=f"{figure.title} ({TOLD})")
