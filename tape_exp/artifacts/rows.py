"""The rows of an artifact: the products of its dimensions, each with the overrides of its runs."""

import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tape_exp.results.record import Record


@dataclass
class Row:
    """A row of the table."""

    labels: dict[str, str]
    words: list[str]  # the overrides of its runs
    seeds: int | None = None  # how many these have; None: as many as are asked for


def rows_of(
    block: Mapping[str, Any],
    values: Mapping[str, Any],
    listed: Callable[[str], list[Any]],
) -> list[Row]:
    """Multiply the dimensions of a block into rows, the last dimension varying first.

    Args:
        block: dimension -> its labels, as the YAML has them.
        values: what placeholders in overrides stand for.
        listed: the values that records have at a key.

    >>> block = {"size": {"5 digits": ["scale=digits5"]}, "model": ["rope", "tape"]}
    >>> for row in rows_of(block, {}, lambda key: []):
    ...     print(row.labels, row.words)
    {'size': '5 digits', 'model': 'rope'} ['scale=digits5', 'model=rope']
    {'size': '5 digits', 'model': 'tape'} ['scale=digits5', 'model=tape']
    """
    rows = [Row({}, [], block.get("seeds"))]
    for name in dimensions_of(block):
        labels = overrides_by_label(name, block[name], listed)
        longer = []
        for row, (label, overrides) in itertools.product(rows, labels.items()):
            words = [fill(word, values) for word in overrides]
            longer.append(Row({**row.labels, name: label}, [*row.words, *words], row.seeds))
        rows = longer
    return rows


def overrides_by_label(
    name: str, labels: Any, listed: Callable[[str], list[Any]]
) -> dict[str, list[str]]:
    """Map each label of a dimension to its overrides: the labels are names of configs, or keys of a
    mapping, or what records list at a key.

    >>> overrides_by_label("model", ["rope"], lambda key: [])
    {'rope': ['model=rope']}
    >>> overrides_by_label("layer", "task.layers", lambda key: [[0, 1]])
    {'0': [], '1': []}
    """
    if isinstance(labels, str):
        found = next(iter(listed(labels)), [""])
        return {str(label): [] for label in found}
    if isinstance(labels, list):
        return {str(label): [f"{name}={label}"] for label in labels}
    return {str(label): list(words or ()) for label, words in labels.items()}


def dimensions_of(block: Mapping[str, Any]) -> list[str]:
    """Name the dimensions of a product of rows."""
    return [name for name in block if name not in ("seeds", "scales")]


def label_of(row: Row) -> str:
    """Name a row as lists of runs do: ``tape 5 digits``."""
    return " ".join(reversed([*row.labels.values()]))


def by_outer_labels(rows: Iterable[Row]) -> dict[tuple[str, ...], list[Row]]:
    """Group rows by their labels of all dimensions but the last: those of a group are compared.

    >>> sizes = {"five": ["scale=digits5"], "eight": ["scale=digits8"]}
    >>> rows = rows_of({"size": sizes, "model": ["rope", "tape"]}, {}, lambda key: [])
    >>> {labels: len(group) for labels, group in by_outer_labels(rows).items()}
    {('five',): 2, ('eight',): 2}
    """
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        outer = tuple(row.labels.values())[:-1]
        groups.setdefault(outer, []).append(row)
    return groups


def fill(text: str, values: Mapping[str, Any]) -> str:
    """Replace each ``{name}`` by what is known; None is ``null``.

    >>> fill("task.window={n}, {other}", {"n": None})
    'task.window=null, {other}'
    """

    def value_at(match: re.Match[str]) -> str:
        name = match[1]
        if name not in values:
            return match[0]
        return "null" if values[name] is None else str(values[name])

    return re.sub(r"\{(\w+)\}", value_at, text)


def once(runs: Iterable[Sequence[Record]]) -> list[Record]:
    """List the runs of several rows or columns, each once."""
    by_name: dict[str, Record] = {}
    for some in runs:
        for run in some:
            by_name[run.name] = run
    return [*by_name.values()]
