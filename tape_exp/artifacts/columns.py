"""The columns of an artifact: a column of its YAML, for each value of its placeholders, and for the
paper and for us.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tape_exp.artifacts.rows import Row, fill
from tape_exp.artifacts.specs import ColumnSpec
from tape_exp.results.tables import Column


@dataclass(frozen=True, kw_only=True)
class ArtifactColumn(Column):
    """A column of a table that knows what is in its cells."""

    spec: ColumnSpec = field(default_factory=ColumnSpec)

    def has(self, row: Row) -> bool:
        """Say whether it has a cell in a row: ``rows: {size: [5 digits]}`` leaves out others."""
        return has_row(self.spec, row)

    def metric_of(self, row: Row) -> str:
        """Name the metric of a row: ``perplexity@512`` of ``perplexity@{n}``."""
        return fill(self.spec.metric, self.at | row.labels)


def has_row(spec: ColumnSpec, row: Row) -> bool:
    """Say whether the columns of a key of the YAML have a cell in a row."""
    return all(row.labels[name] in labels for name, labels in spec.rows.items())


@dataclass(frozen=True)
class Place:
    """Where a column measures: the values of its placeholders for us, and for the paper; None
    where one of the two has nothing there.
    """

    ours: dict[str, Any] | None
    paper: dict[str, Any] | None


def columns_of(
    template: str,
    spec: ColumnSpec,
    values: Mapping[str, Sequence[Any]],
    papers_lengths: Sequence[Any],
) -> list[ArtifactColumn]:
    """Make the columns of a key of the YAML: at each place one of the paper and one of ours, as far
    as there are some.

    Args:
        template: the heading, with placeholders.
        values: placeholder -> its values in our records.
        papers_lengths: those of the paper's numbers; empty where they are not by length.

    >>> spec = ColumnSpec(paper="{n}", metric="loss@{n}", each={"n": [8, 16]})
    >>> [column.name for column in columns_of("{who} {n}", spec, {"n": [8, 16]}, [])]
    ['paper 8', 'ours 8', 'paper 16', 'ours 16']
    """
    titles = {name: known for name, known in spec.each.items() if isinstance(known, Mapping)}
    signed = spec.lead is not None
    columns = []
    for place in places_of(spec, values, papers_lengths):
        sides = []
        if spec.paper and place.paper is not None:
            sides.append(("paper", place.paper))
        if spec.is_ours and place.ours is not None:
            sides.append(("ours", place.ours))
        for who, at in sides:
            column = ArtifactColumn(
                template, who, at, titles=titles, digits=spec.digits, signed=signed, spec=spec
            )
            columns.append(column)
    return columns


def places_of(
    spec: ColumnSpec, values: Mapping[str, Sequence[Any]], papers_lengths: Sequence[Any]
) -> list[Place]:
    """List the places of a column: the product of what its placeholders stand for.

    The lengths that ``each: {n: task.test_lengths}`` reads from our records are beside the paper's
    own.
    """
    if spec.paper and papers_lengths and len(spec.each) == 1:
        ((name, listed),) = spec.each.items()
        if isinstance(listed, str) and values[name] != [None]:
            return lengths_from_longest(name, values[name], papers_lengths)
    places = []
    for combination in itertools.product(*values.values()):
        at = dict(zip(values, combination, strict=True))
        places.append(Place(at, at))
    return places


def lengths_from_longest(name: str, ours: Sequence[Any], paper: Sequence[Any]) -> list[Place]:
    """Pair our lengths and the paper's own as values of a placeholder, the longest beside the
    longest: 64 without a number of the paper, then 128 beside 1,024.

    >>> for place in lengths_from_longest("n", [64, 128], [1024]):
    ...     print(place.ours, place.paper)
    {'n': 64} None
    {'n': 128} {'n': 1024}
    """
    places = []
    for length, papers_length in itertools.zip_longest(reversed(ours), reversed(paper)):
        at = None if length is None else {name: length}
        papers_at = None if papers_length is None else {name: papers_length}
        places.append(Place(at, papers_at))
    return places[::-1]
