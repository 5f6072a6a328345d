"""The values of a table: numbers with their intervals, and what is missing and why.

An artifact makes a :class:`Table` of them. Markdown, LaTeX, CSV, the page of ``make report``, W&B's
tables and the verdicts on claims are views of it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from statistics import mean, stdev
from typing import Any

from scipy.special import stdtrit


@dataclass(frozen=True)
class Value:
    """A number, the ends of its interval, and how both are written.

    Args:
        number: in the unit of its column; a mean where ``n`` is more than 1.
        low, high: the ends of its interval; None where a single seed leaves none.
        n: over how many seeds, or rounds of a timing, it was taken.
        form: a format string that may name ``number``, ``low``, ``high`` and ``half``, which is
            half the width of a symmetric interval.
    """

    number: float
    low: float | None = None
    high: float | None = None
    n: int = 1
    form: str = "{number:.2f}"

    def __str__(self) -> str:
        half = None if self.high is None else self.high - self.number
        return self.form.format(number=self.number, low=self.low, high=self.high, half=half)


@dataclass(frozen=True)
class Missing:
    """An empty cell. The page of ``make report`` says why it is empty."""

    reason: str

    def __str__(self) -> str:
        return ""


NOT_RUN = Missing("not run")
NOT_REPORTED = Missing("the paper gives no number")
NOTHING = Missing("does not apply")

Key = str | tuple[str, str | int]
"""What a column holds: ``"model"``, or whose number at what, ``("ours", 512)``."""

Cell = Value | Missing | str
Row = dict[Key, Cell]


@dataclass(frozen=True)
class Column:
    """A column: its key, its heading (by default the key's words) and its unit."""

    key: Key
    name: str = ""
    unit: str = ""

    @property
    def heading(self) -> str:
        """The name, and the unit in brackets where there is one."""
        words = (self.key,) if isinstance(self.key, str) else self.key
        return (self.name or " ".join(map(str, words))) + (f" ({self.unit})" if self.unit else "")


@dataclass(frozen=True)
class Table:
    """Rows of values under columns.

    Args:
        rows: cells by the key of their column; a key that a row lacks does not apply to it.
        caption: what was measured, by whom and under which conditions.
        label: key of the column that names what a row measured, a model or a method.
        part: key of the column that divides the rows into parts, each with every label.
        quantity: what columns with keys such as ``("ours", 512)`` hold.
    """

    columns: Sequence[Column]
    rows: Sequence[Row]
    caption: str = ""
    label: str = "model"
    part: str = ""
    quantity: str = ""

    def headings(self) -> list[str]:
        """The headings of the columns."""
        return [column.heading for column in self.columns]

    def cells(self) -> list[list[Cell]]:
        """The cells of every row, in the order of the columns."""
        return [[row.get(column.key, NOTHING) for column in self.columns] for row in self.rows]

    def values(self, key: Key, **where: object) -> dict[str, Value]:
        """The values of a column by the label of their row; empty cells are left out.

        Args:
            where: key and text of another column, for the rows that are asked for.
        """
        rows = [row for row in self.rows if all(str(row[k]) == str(v) for k, v in where.items())]
        return known({str(row[self.label]): row.get(key, NOTHING) for row in rows})


def known(cells: Mapping[str, Cell]) -> dict[str, Value]:
    """Those of some cells that hold a value."""
    return {name: cell for name, cell in cells.items() if isinstance(cell, Value)}


def interval(values: Sequence[float]) -> tuple[float, float | None]:
    """The mean and the half-width of its 95 % confidence interval, by Student's t over seeds; None
    for a single value.
    """
    if len(values) < 2:
        return mean(values), None
    return mean(values), float(stdtrit(len(values) - 1, 0.975)) * stdev(values) / len(values) ** 0.5


def over_seeds(values: Sequence[float], digits: int = 2) -> Value | Missing:
    """The mean over seeds, written ``26.32 ± 0.41``; one seed has no interval, none has not run."""
    if not values:
        return NOT_RUN
    centre, half = interval(values)
    form = f"{{number:.{digits}f}}"
    if half is None:
        return Value(centre, form=form)
    form += f" ± {{half:.{digits}f}}"
    return Value(centre, centre - half, centre + half, len(values), form)


def mean_of(records: Sequence[dict[str, Any]], metric: str, digits: int = 2) -> Value | Missing:
    """A metric over the seeds that have it, as :func:`over_seeds` gives it."""
    return over_seeds([r["metrics"][metric] for r in records if metric in r["metrics"]], digits)


def over_runs(values: Sequence[Value], digits: int = 2) -> Value | Missing:
    """As :func:`over_seeds`, of runs that each have an interval over their samples: that of a
    single run is kept.
    """
    return values[0] if len(values) == 1 else over_seeds([v.number for v in values], digits)


def reported(number: float | None, digits: int = 2) -> Value | Missing:
    """A number of the paper's, which is of one seed, or its absence."""
    return NOT_REPORTED if number is None else Value(number, form=f"{{number:.{digits}f}}")


def integer(number: int) -> Value:
    """A whole number, written with a comma at every thousand."""
    return Value(number, form="{number:,}")


ORIGIN = tuple(map(Column, ("seeds", "scale", "commit")))
"""The last columns of a table: where its numbers come from."""


def origin(records: Sequence[dict[str, Any]], scale: str) -> Row:
    """Cells of the columns :data:`ORIGIN`: how many seeds, which scale, which commits; empty where
    nothing has run.

    Where the seeds ran in several precisions, as ``auto`` chose them on a CPU and on a GPU, the
    scale's cell names these.
    """
    if not records:
        return {column.key: NOT_RUN for column in ORIGIN}
    precisions = sorted({r["precision"] for r in records if "precision" in r})
    return {
        "seeds": integer(len({r["seed"] for r in records})),
        "scale": f"{scale} ({', '.join(precisions)})" if len(precisions) > 1 else scale,
        "commit": " ".join(sorted({commit(r) for r in records})),
    }


def commit(record: dict[str, Any]) -> str:
    """The first seven digits of a record's commit, and a + where tracked files differed from it."""
    return (record["git"]["commit"] or "unknown")[:7] + ("+" if record["git"]["dirty"] else "")


def pairs(published: Sequence[int], measured: Sequence[int]) -> list[Column]:
    """The columns ``("paper", length)`` and ``("ours", length)``: the longest next to the longest,
    and so on downwards.
    """
    keys: list[tuple[str, int]] = []
    for theirs, ours in zip_longest(reversed(published), reversed(measured)):
        pair = [("paper", theirs), ("ours", ours)]
        keys = [(whose, length) for whose, length in pair if length is not None] + keys
    return [Column(key) for key in keys]


def columns(names: Iterable[str]) -> list[Column]:
    """Columns with these keys, which are their headings too."""
    return [Column(name) for name in names]
