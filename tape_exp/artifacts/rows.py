"""The rows of an artifact: the products of its dimensions, each with the overrides of its runs."""

import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tape_exp.artifacts.specs import RowBlock
from tape_exp.results.record import Record


@dataclass
class Row:
    """A row of the table."""

    labels: dict[str, str]
    overrides: list[str]  # of its runs
    seeds: int | None = None  # how many these have; None: as many as are asked for


def rows_of(
    block: RowBlock,
    values: Mapping[str, Any],
    listed: Callable[[str], list[Any]],
) -> list[Row]:
    """Multiply the dimensions of a block into rows, the last dimension varying first.

    Args:
        values: what placeholders in overrides stand for.
        listed: the values that records have at a key.

    >>> from tape_exp.artifacts.specs import block_of
    >>> block = block_of({"size": {"5 digits": ["scale=digits5"]}, "model": ["rope", "tape"]})
    >>> for row in rows_of(block, {}, lambda key: []):
    ...     print(row.labels, row.overrides)
    {'size': '5 digits', 'model': 'rope'} ['scale=digits5', 'model=rope']
    {'size': '5 digits', 'model': 'tape'} ['scale=digits5', 'model=tape']
    """
    rows = [Row({}, [], block.seeds)]
    for name, labels in block.dimensions.items():
        if isinstance(labels, str):
            labels = labels_of_records(listed(labels))
        longer = []
        for row, (label, overrides) in itertools.product(rows, labels.items()):
            filled = [fill(override, values) for override in overrides]
            longer.append(Row({**row.labels, name: label}, [*row.overrides, *filled], row.seeds))
        rows = longer
    return rows


def labels_of_records(found: Sequence[Any]) -> dict[str, list[str]]:
    """Turn the first list that records have at a key into labels without overrides; where there is
    none, one empty label holds the place.

    >>> labels_of_records([[0, 1]]), labels_of_records([])
    ({'0': [], '1': []}, {'': []})
    """
    labels = found[0] if found else [""]
    return {str(label): [] for label in labels}


def label_of(row: Row) -> str:
    """Name a row as lists of runs do: ``tape 5 digits``."""
    return " ".join(reversed([*row.labels.values()]))


def by_outer_labels(rows: Iterable[Row]) -> dict[tuple[str, ...], list[Row]]:
    """Group rows by their labels of all dimensions but the last: those of a group are compared.

    >>> from tape_exp.artifacts.specs import block_of
    >>> sizes = {"five": ["scale=digits5"], "eight": ["scale=digits8"]}
    >>> block = block_of({"size": sizes, "model": ["rope", "tape"]})
    >>> rows = rows_of(block, {}, lambda key: [])
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
