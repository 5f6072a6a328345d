"""Tables of values, and their views: Markdown, CSV, a terminal."""

import csv
import io
import shutil
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tabulate import tabulate

from tape_exp.results.statistics import Value
from tape_exp.settings.naming import display_name

Cell = Value | str | None
OF_CONFIGS = ("model", "method", "corpus", "artifact")  # columns with names of configs


@dataclass(frozen=True)
class Column:
    """A column of a table.

    >>> Column("{who} {set}", "ours", {"set": "qasper"}).heading
    'ours Qasper'
    """

    template: str  # its heading, with placeholders
    who: str = ""  # whose numbers it has: paper, ours; empty for a label
    at: dict[str, Any] = field(default_factory=dict)  # placeholder -> its value
    digits: int = 2  # decimals of its numbers
    signed: bool = False  # whether positive numbers have a plus
    # placeholder -> its values -> what headings call them; default: their display names
    titles: Mapping[str, Mapping[Any, str]] = field(default_factory=dict)

    @cached_property
    def name(self) -> str:
        """Return the heading for programs, with the names of configs: ``ours qasper``."""
        return self._heading(str)

    @cached_property
    def heading(self) -> str:
        """Return the heading for readers: ``ours Qasper``."""
        return self._heading(lambda value: display_name(str(value)))

    def _heading(self, form: Callable[[Any], str]) -> str:
        text = self.template.replace("{who}", self.who)
        for name, value in self.at.items():
            if name in self.titles:
                title = self.titles[name][value]
            elif value is None:  # of a key that no record has
                title = form("")
            else:
                title = form(value)
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
        """Return the headings and the rows of cells as readers see them.

        >>> columns = [Column("model"), Column("loss", digits=1)]
        >>> Table(columns, [{"model": "rope", "loss": Value(2.34)}], ["model"]).text()
        (['model', 'loss'], [['RoPE', '2.3']])
        """
        rows = []
        for row in self.rows:
            rows.append([self._text(column, row.get(column.name)) for column in self.columns])
        return [column.heading for column in self.columns], rows

    @staticmethod
    def _text(column: Column, cell: Cell) -> str:
        if isinstance(cell, Value):
            return written(cell, column.digits, "+" if column.signed else "")
        text = cell or ""
        return display_name(text) if column.name in OF_CONFIGS else text

    def markdown(self) -> str:
        """Write it with aligned pipes; a cell's own pipe is escaped."""
        head, rows = self.text()
        escaped = []
        for row in rows:
            escaped.append([cell.replace("|", r"\|") for cell in row])
        return tabulate(escaped, head, tablefmt="github", disable_numparse=True)

    def terminal(self) -> str:
        """Write it with its caption; where rows are too long for a terminal, turned by 90 degrees:
        each of its columns is a line.
        """
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 1000
        head, rows = self.text()
        text = tabulate(rows, head, tablefmt="github", disable_numparse=True)
        if text.index("\n") > width:
            turned = list(zip(head, *rows, strict=True))
            text = tabulate(turned, tablefmt="github", disable_numparse=True)
        return "\n".join([text, "", *textwrap.wrap(self.caption, min(width, 120)), ""])

    def csv(self) -> str:
        """Write it for programs: names as configs have them, and plain numbers.

        A column with intervals is followed by ``<heading> low`` and ``<heading> high``; the mean
        of two seeds has none over seeds.

        >>> columns = [Column("model"), Column("loss")]
        >>> table = Table(columns, [{"model": "rope", "loss": Value(2.34, 2.0, 2.68)}], ["model"])
        >>> print(table.csv(), end="")
        model,loss,loss low,loss high
        rope,2.34,2,2.68
        """
        columns = []
        for column in self.columns:
            cells = [row.get(column.name) for row in self.rows]
            columns.append([column.name, *map(plain, cells)])
            intervals = [interval_of(cell) for cell in cells]
            lows = [low for low, _ in intervals]
            highs = [high for _, high in intervals]
            if any(lows):
                columns.append([f"{column.name} low", *lows])
            if any(highs):
                columns.append([f"{column.name} high", *highs])
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(zip(*columns, strict=True))
        return text.getvalue()


def plain(cell: Cell) -> str:
    """Write a cell for programs: a number with six digits, a whole one without a point.

    >>> plain(Value(2 / 3)), plain(Value(12.0)), plain("rope"), plain(None)
    ('0.666667', '12', 'rope', '')
    """
    if not isinstance(cell, Value):
        return cell or ""
    if float(cell.number).is_integer():
        return str(int(cell.number))
    return f"{cell.number:.6g}"


def interval_of(cell: Cell) -> tuple[str, str]:
    """Write the ends of a cell's interval for programs; both are empty where it has none.

    >>> interval_of(Value(2.34, 2.0, 2.68)), interval_of("rope")
    (('2', '2.68'), ('', ''))
    """
    if not isinstance(cell, Value) or cell.pair:
        return "", ""
    low = "" if cell.low is None else plain(Value(cell.low))
    high = "" if cell.high is None else plain(Value(cell.high))
    return low, high


def written(value: Value, digits: int = 2, sign: str = "") -> str:
    """Write a value for readers: with ± the interval of several runs, in round brackets the numbers
    of two in the place of Student's interval, and in square ones an interval that is asymmetric or
    of one run over its samples.

    >>> written(Value(26.32, 25.91, 26.73, n=3)), written(Value(26.32, 25.9, 26.5))
    ('26.32 ± 0.41', '26.32 [25.90, 26.50]')
    >>> runs = {0: Value(26.0), 1: Value(26.64)}
    >>> written(Value(26.32, 22.26, 30.39, runs, over_seeds=True, n=2))
    '26.32 (26.00, 26.64)'
    >>> written(Value(3e-8, -7.0 + 3e-8, 7.0 + 3e-8, n=3), digits=0, sign="+")
    '+0 ± 7'
    """
    if value.text:
        return value.text
    half = 0.0 if value.low is None or value.high is None else (value.high - value.low) / 2
    is_rounding = abs(value.number) < 1e-6 * half  # records have 9 digits
    number = decimal(0.0 if is_rounding else value.number, digits, sign)
    if value.pair:
        return f"{number} ({', '.join(decimal(each, digits) for each in value.pair)})"
    if value.low is None or value.high is None:
        return number
    if value.error:
        return f"{number} (SE {decimal(half, digits)})"
    is_symmetric = abs(value.high - half - value.number) < 1e-9 * max(1.0, abs(value.number))
    if value.n > 1 and is_symmetric:
        return f"{number} ± {decimal(half, digits)}"
    if is_small(value.number, digits):
        return f"{number} [{decimal(value.low, digits)}, {decimal(value.high, digits)}]"
    return f"{number} [{value.low:.{digits}f}, {value.high:.{digits}f}]"


def span(low: str, high: str, between: str = " to ") -> str:
    """Write a range from low to high, and one number where both ends are the same.

    >>> span("2", "5"), span("2", "2")
    ('2 to 5', '2')
    """
    return low if low == high else f"{low}{between}{high}"


def decimal(number: float, digits: int, sign: str = "") -> str:
    """Write a number with that many decimals; a smaller one by its power of ten.

    >>> decimal(0.126, 2), decimal(0.126, 2, "+"), decimal(0.0004, 2)
    ('0.13', '+0.13', '4e-04')
    """
    if is_small(number, digits):
        return f"{number:{sign}.0e}"
    return f"{number:{sign}.{digits}f}"


def is_small(number: float, digits: int) -> bool:
    """Say whether so many decimals would show 0 for a number that is not 0."""
    return 0 < abs(number) < 0.5 * 10.0**-digits
