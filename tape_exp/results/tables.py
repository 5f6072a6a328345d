"""Tables of values, and their views: Markdown, CSV, a terminal."""

import csv
import io
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tabulate import tabulate

from tape_exp.results.statistics import Value
from tape_exp.settings.naming import display_name

Cell = Value | str | None
NAMED = ("model", "method", "corpus", "artifact")  # dimensions whose labels are names of configs


@dataclass(frozen=True)
class Column:
    """A column of an artifact."""

    template: str  # its heading, with placeholders
    spec: dict[str, Any] = field(default_factory=dict)  # what its YAML says of its cells
    who: str = ""  # whose numbers it has: paper, ours; empty for a label
    at: dict[str, Any] = field(default_factory=dict)  # the placeholders' values

    @cached_property
    def name(self) -> str:
        """The heading for programs, with the names of configs: ``ours qasper``."""
        return self._heading(str)

    @cached_property
    def heading(self) -> str:
        """The heading for readers: ``ours Qasper``."""
        return self.spec.get("heading") or self._heading(lambda value: display_name(str(value)))

    def _heading(self, form: Any) -> str:
        text = self.template.replace("{who}", self.who)
        for name, value in self.at.items():
            titles = self.spec.get("each", {}).get(name)
            known = "" if value is None else value  # of a key that no record has
            title = titles[value] if isinstance(titles, dict) else form(known)
            text = text.replace(f"{{{name}}}", title)
        return text


@dataclass(frozen=True)
class Table:
    """Rows of cells by the names of their columns."""

    columns: Sequence[Column]
    rows: Sequence[Mapping[str, Cell]]
    labels: Sequence[str]  # the columns that say what a row is, the last of them the model
    caption: str = ""  # what was measured, by whom and under which conditions

    def text(self) -> tuple[list[str], list[list[str]]]:
        """Headings and cells as readers see them."""
        return [column.heading for column in self.columns], [
            [self._text(column, row.get(column.name)) for column in self.columns]
            for row in self.rows
        ]

    @staticmethod
    def _text(column: Column, cell: Cell) -> str:
        if isinstance(cell, Value):
            sign = "+" if "lead" in column.spec else ""
            return written(cell, column.spec.get("digits", 2), sign)
        return display_name(cell or "") if column.name in NAMED else cell or ""

    def markdown(self) -> str:
        """With aligned pipes; a cell's own pipe is escaped."""
        head, rows = self.text()
        cells = [[cell.replace("|", r"\|") for cell in row] for row in rows]
        return tabulate(cells, head, tablefmt="github", disable_numparse=True)

    def terminal(self) -> str:
        """With its caption; a line for each column where rows are too long for a terminal."""
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 1000
        head, rows = self.text()
        text = tabulate(rows, head, tablefmt="github", disable_numparse=True)
        if text.index("\n") > width:
            turned = [[name, *cells] for name, *cells in zip(head, *rows, strict=True)]
            text = tabulate(turned, tablefmt="github", disable_numparse=True)
        return "\n".join([text, "", *textwrap.wrap(self.caption, min(width, 120)), ""])

    def csv(self) -> str:
        """For programs: names as configs have them, and plain numbers.

        A column with intervals is followed by ``<heading> low`` and ``<heading> high``; the mean
        of two seeds has none.
        """
        columns = []
        for column in self.columns:
            cells = [row.get(column.name) for row in self.rows]
            columns.append([column.name, *map(plain, cells)])
            for end in ("low", "high"):
                ends = [
                    getattr(c, end) if isinstance(c, Value) and not c.pair else None for c in cells
                ]
                if any(number is not None for number in ends):
                    texts = ["" if n is None else plain(Value(n)) for n in ends]
                    columns.append([f"{column.name} {end}", *texts])
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(zip(*columns, strict=True))
        return text.getvalue()


def plain(cell: Cell) -> str:
    """A cell for programs: six digits of a fraction."""
    if not isinstance(cell, Value):
        return cell or ""
    whole = float(cell.number).is_integer()
    return str(int(cell.number)) if whole else f"{cell.number:.6g}"


def written(value: Value, digits: int = 2, sign: str = "") -> str:
    """``26.32 ± 0.41`` of several runs, ``26.32 (26.00, 26.64)`` of two, and in square brackets an
    interval that is asymmetric or of a single run over its samples.
    """
    if value.text:
        return value.text
    number = decimal(value.number, digits, sign)
    exact = is_small(value.number, digits)
    if value.pair:
        return f"{number} ({', '.join(decimal(each, digits) for each in value.pair)})"
    if value.low is None or value.high is None:
        return number
    half = (value.high - value.low) / 2
    if value.error:
        return f"{number} (SE {decimal(half, digits)})"
    if value.n > 1 and abs(value.high - half - value.number) < 1e-9 * max(1.0, abs(value.number)):
        return f"{number} ± {decimal(half, digits)}"
    ends = (decimal(e, digits) if exact else f"{e:.{digits}f}" for e in (value.low, value.high))
    return f"{number} [{', '.join(ends)}]"


def span(low: str, high: str, between: str = " to ") -> str:
    """``2 to 5``, and ``2`` where both ends are the same."""
    return low if low == high else f"{low}{between}{high}"


def decimal(number: float, digits: int, sign: str = "") -> str:
    """With that many decimals; a smaller number by its power of ten."""
    small = is_small(number, digits)
    return f"{number:{sign}.0e}" if small else f"{number:{sign}.{digits}f}"


def is_small(number: float, digits: int) -> bool:
    """Whether so many decimals would show 0 for a number that is not 0."""
    return 0 < abs(number) < 0.5 * 10.0**-digits
