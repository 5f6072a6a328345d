"""Tables of values, which an artifact returns.

Markdown, LaTeX, CSV, the page of ``make report``, W&B's tables, curves and the verdicts on claims
are views of them.
"""

import csv
import io
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from tape_exp.drawing.markdown import aligned
from tape_exp.drawing.plots import Line, Panel
from tape_exp.drawing.style import styles_of
from tape_exp.machine.files import write_atomically
from tape_exp.paper.values import NOT_RUN, NOTHING, Cell, Value, integer, known
from tape_exp.settings.naming import display_name

Key = str | tuple[str, str | int]
"""What a column holds: ``"model"``, or whose number at what, ``("ours", 512)``."""

Row = dict[Key, Cell]


@dataclass(frozen=True)
class Column:
    """A column: its key, its heading (by default the key's words) and its unit.

    ``shown`` is the heading for readers where ``name`` has the name of a config in it.
    """

    key: Key
    name: str = ""
    unit: str = ""
    shown: str = ""

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


ORIGIN = tuple(map(Column, ("seeds", "scale", "commit")))
"""The last columns of a table: where its numbers come from."""


def origin(records: Sequence[dict[str, Any]], scale: str) -> Row:
    """The cells of the columns :data:`ORIGIN`: seeds, scale and commits; empty without a run.

    Where the seeds ran in several precisions, as ``auto`` chose them on a CPU and on a GPU, the
    scale's cell names these.
    """
    if not records:
        return {column.key: NOT_RUN for column in ORIGIN}
    precisions = sorted({r["precision"] for r in records if "precision" in r})
    return {
        "seeds": integer(len({r["seed"] for r in records})),
        "scale": f"{scale} ({', '.join(precisions)})" if len(precisions) > 1 else scale,
        "commit": commits(records),
    }


def commits(records: Iterable[dict[str, Any]]) -> str:
    """The commits of records, each once, by their first seven digits: those at which runs began
    and those at which they went on. A + where tracked files differed from one of a run's.
    """
    found = set()
    for git in (record["git"] for record in records):
        changed = "+" if git["dirty"] else ""
        for commit in (git["commit"], *git.get("later", ())):
            found.add((commit or "unknown")[:7] + changed)
    return " ".join(sorted(found))


def pairs(published: Sequence[int], measured: Sequence[int]) -> list[Column]:
    """The columns ``("paper", length)`` and ``("ours", length)``, paired from the longest down."""
    keys: list[tuple[str, int]] = []
    for theirs, ours in zip_longest(reversed(published), reversed(measured)):
        pair = [("paper", theirs), ("ours", ours)]
        keys = [(whose, length) for whose, length in pair if length is not None] + keys
    return [Column(key) for key in keys]


def columns(names: Iterable[str]) -> list[Column]:
    """Columns with these keys, which are their headings too."""
    return [Column(name) for name in names]


NAMED = ("model", "method", "corpus")  # columns that hold the names of configs and data sets


def for_readers(table: Table) -> Table:
    """The table with models, methods and data sets as readers call them, not as configs do."""
    keys = {*NAMED, table.label}
    rows = [
        {k: display_name(c) if k in keys and isinstance(c, str) else c for k, c in row.items()}
        for row in table.rows
    ]
    head = [replace(column, name=column.shown or _named(column)) for column in table.columns]
    return replace(table, columns=head, rows=rows)


def _named(column: Column) -> str:
    """The name of a column for readers: that of ``("ours", "qmsum")`` is ``ours QMSum``."""
    if column.name or isinstance(column.key, str):
        return column.name
    words = " ".join(map(str, column.key)).split(" ")
    return " ".join(map(display_name, words))


def write(stem: Path, table: Table) -> list[Path]:
    """Write ``stem``.md, .tex and .csv, and return their paths."""
    files = {".md": markdown(table), ".tex": latex(table), ".csv": comma(table)}
    for suffix, text in files.items():
        write_atomically(stem.with_name(stem.name + suffix), text)
    return [stem.with_name(stem.name + suffix) for suffix in files]


def markdown(table: Table) -> str:
    """A table with aligned pipes and its caption below; a cell's own pipe is escaped."""
    text = [[cell.replace("|", r"\|") for cell in row] for row in _text(for_readers(table))]
    return "\n".join([*aligned(text), "", table.caption, ""])


def on_terminal(table: Table, width: int) -> str:
    """A table with its caption below, a line for each column where the lines are too long for the
    width and would be shorter so.
    """
    text = _text(for_readers(table))
    lines, turned = aligned(text), aligned([list(column) for column in zip(*text, strict=True)])
    if max(map(len, lines)) > max(width, max(map(len, turned))):
        lines = turned
    caption = textwrap.wrap(table.caption, min(width, 120))
    return "\n".join([*lines, "", *caption, ""])


def latex(table: Table) -> str:
    """A booktabs table."""
    head, *rows = ["  " + " & ".join(map(_tex, row)) + r" \\" for row in _text(for_readers(table))]
    lines = [r"\begin{table}", r"  \centering", rf"  \caption{{{_tex(table.caption)}}}"]
    lines += [rf"  \begin{{tabular}}{{l{'r' * (len(table.columns) - 1)}}}", r"  \toprule", head]
    lines += [r"  \midrule", *rows, r"  \bottomrule", r"  \end{tabular}", r"\end{table}", ""]
    return "\n".join(lines)


def comma(table: Table) -> str:
    """Comma-separated values for programs: names as configs have them, and plain numbers.

    A column with intervals is followed by two, ``<heading> low`` and ``<heading> high``, with their
    ends. Fractions have six digits.
    """
    columns = []
    for heading, *cells in zip(table.headings(), *table.cells(), strict=True):
        texts = [_plain(cell.number) if isinstance(cell, Value) else str(cell) for cell in cells]
        columns.append([heading, *texts])
        for end, numbers in _ends(cells).items():
            columns.append([f"{heading} {end}", *map(_plain, numbers)])
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(zip(*columns, strict=True))
    return text.getvalue()


def _plain(number: float | None) -> str:
    """A number as programs read it; nothing for None."""
    if number is None:
        return ""
    return str(int(number)) if float(number).is_integer() else f"{number:.6g}"


def _ends(cells: Iterable[Cell]) -> dict[str, list[float | None]]:
    """The lower and the upper ends of a column with intervals; the mean of two seeds has none."""
    values = [cell if isinstance(cell, Value) and not cell.seeds else None for cell in cells]
    ends = {end: [getattr(value, end, None) for value in values] for end in ("low", "high")}
    return {end: x for end, x in ends.items() if any(number is not None for number in x)}


def _text(table: Table) -> list[list[str]]:
    """The headings and the cells as they are written."""
    return [[*table.headings()], *([str(cell) for cell in row] for row in table.cells())]


SPECIAL = {character: f"\\{character}" for character in "&%_#${}"}
SPECIAL |= {
    "\\": r"\textbackslash{}",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "–": "--",
    "…": r"\dots{}",
}
SYMBOLS = {
    "±": r"\pm",
    "→": r"\to",
    "≤": r"\le",
    "≥": r"\ge",
    "×": r"\times",
    "·": r"\cdot",
    "−": "-",
    "ᵀ": r"^\top",
    "√": r"\surd",
    "†": r"\dagger",
    "χ": r"\chi",
    "²": r"^2",
}
SYMBOLS |= {"<": "<", ">": ">", "|": "|"}
TEX = str.maketrans(SPECIAL | {character: f"${command}$" for character, command in SYMBOLS.items()})


def _tex(text: str) -> str:
    return text.translate(TEX)


def plain(table: Table) -> tuple[list[str], list[list[Any]]]:
    """Headings and rows in which a number is a number and an empty cell is None.

    A column whose values have intervals is followed by two columns with their ends, whose headings
    say what these are of.
    """
    headings: list[str] = []
    columns: list[list[Any]] = []
    for heading, cells in zip(table.headings(), zip(*table.cells(), strict=True), strict=True):
        values = [cell if isinstance(cell, Value) else None for cell in cells]
        texts = any(isinstance(cell, str) for cell in cells)  # W&B wants one type in a column
        headings.append(heading)
        columns.append(
            [str(cell) for cell in cells] if texts else [v.number if v else None for v in values]
        )
        kinds = {v.kind: None for v in values if v and v.low is not None and not v.seeds}
        for end, numbers in _ends(cells).items():
            headings.append(f"{heading}, {end} ({' or '.join(kinds)})")
            columns.append(numbers)
    return headings, [list(row) for row in zip(*columns, strict=True)]


def curves(table: Table, across: str = "length (tokens)") -> list[Panel]:
    """Panels of three or more columns like ``("ours", 64)`` for each part, with a line per row."""
    numbered: dict[str, list[int]] = {}
    for column in table.columns:
        if not isinstance(column.key, str) and isinstance(column.key[1], int):
            numbered.setdefault(str(column.key[0]), []).append(column.key[1])
    looks = styles_of(dict.fromkeys(str(row[table.label]) for row in table.rows))
    panels = []
    for part in sorted({str(row.get(table.part, "")) for row in table.rows}):
        rows = [row for row in table.rows if str(row.get(table.part, "")) == part]
        for name in sorted(name for name, places in numbered.items() if len(places) > 2):
            lines = []
            for row in rows:
                cells = [(place, row.get((name, place))) for place in numbered[name]]
                points = [(place, cell) for place, cell in cells if isinstance(cell, Value)]
                label = str(row[table.label])
                shown = display_name(label)
                lines += [line_of(shown, points, style=looks[label])] if points else []
            title = display_name(name).replace("_", " ")
            title = f"{display_name(part)}: {title}" if part else title
            if lines:
                panels.append(Panel(title, across, table.quantity, lines))
    return panels


def line_of(name: str, points: Iterable[tuple[float, Value]], **how: Any) -> Line:
    """A line through values, with the ends of their intervals."""
    places, values = zip(*points, strict=True)
    ends = ([v.low for v in values], [v.high for v in values])
    return Line(name, list(places), [v.number for v in values], *ends, **how)
