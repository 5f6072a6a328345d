"""Tables for papers in LaTeX, with the packages booktabs and graphicx."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from tabulate import LATEX_ESCAPE_RULES

from tape_exp.results.tables import Column, Table

ONE_COLUMN = 55  # letters of a line that fit into a column of the page
WHOLE_PAGE = 105  # and into its width; a wider table is made smaller
LEFT_OUT = ("scale", "commit")  # columns that a paper does not print
COMMANDS = {  # symbol -> what it is in the mathematics of LaTeX
    "±": r"\pm",
    "→": r"\to",
    "×": r"\times",
    "·": r"\cdot",
    "−": "-",
    "≤": r"\le",
    "≥": r"\ge",
    "√": r"\surd",
    "†": r"\dagger",
    "ᵀ": r"^\top",
    "²": "^2",
    "φ": r"\varphi",
    "χ": r"\chi",
    "ψ": r"\psi",
}
SYMBOLS = str.maketrans({symbol: f"${command}$" for symbol, command in COMMANDS.items()})
SYMBOLS |= str.maketrans({"–": "--", "…": r"\dots{}", "|": "$|$"})  # and in its text
ESCAPES = str.maketrans(LATEX_ESCAPE_RULES)


def tex(text: str) -> str:
    r"""Replace in a text what LaTeX takes for commands, and symbols that it lacks.

    >>> tex("25 % ± 3")
    '25 \\% $\\pm$ 3'
    """
    return text.translate(ESCAPES).translate(SYMBOLS)


@dataclass(frozen=True)
class Head:
    """The heading of a column: below that of its group, if it has one."""

    group: str
    own: str


def latex(table: Table, name: str) -> str:
    """Write a table that fits a page: columns of one quantity below one heading, across both
    columns of the page where it is wide, and smaller where it is wider than that.

    Its caption says what is shown and what ± is; the rest of ours, and the commits, are comments.
    """
    columns = [column for column in table.columns if column.name not in LEFT_OUT]
    headings, rows = Table(columns, table.rows, table.labels).text()
    heads = heads_of(columns, headings)
    labels = sum(column.name in table.labels for column in columns)
    lines = [*head_lines(heads), r"\midrule", *body_lines(rows, labels)]
    sides = "l" * labels + "r" * (len(columns) - labels)
    tabular = [rf"\begin{{tabular}}{{{sides}}}", r"\toprule", *lines, r"\bottomrule"]
    tabular.append(r"\end{tabular}")
    width = width_of(heads, rows)
    if width > WHOLE_PAGE:
        tabular = [r"\resizebox{\textwidth}{!}{%", *tabular[:-1], r"\end{tabular}}"]
    kind = "table*" if width > ONE_COLUMN else "table"
    shown, further = caption_parts(table.caption)
    comments = [r"\usepackage{booktabs, graphicx}", *further, *commits_of(table)]
    small = [r"\small", r"\setlength{\tabcolsep}{4pt}"] if kind == "table*" else []
    return "\n".join(
        [
            *(f"% {comment}" for comment in comments),
            rf"\begin{{{kind}}}[t]",
            r"\centering",
            rf"\caption{{{tex(shown)}}}",
            rf"\label{{tab:{name}}}",
            *small,
            *tabular,
            rf"\end{{{kind}}}",
            "",
        ]
    )


@dataclass(frozen=True)
class Parts:
    """A heading in parts: ``ours PG-19 64`` is of the group ``PG-19``, and its own ``ours 64``."""

    heading: str
    template: str  # of its column
    group: str = ""  # empty where it has no last word such as a length
    own: str = ""


def parts_of(column: Column, heading: str) -> Parts:
    """Take the heading of a column apart.

    >>> parts_of(Column("{who} PG-19 {n}", "ours", {"n": 64}), "ours PG-19 64").group
    'PG-19'
    """
    who = f"{column.who} " if column.who and heading.startswith(f"{column.who} ") else ""
    match = re.fullmatch(r"(.+)[ @](\S+)", heading.removeprefix(who))
    if match is None or not column.who:
        return Parts(heading, column.template)
    return Parts(heading, column.template, match[1], f"{who}{match[2]}")


def heads_of(columns: Sequence[Column], headings: Sequence[str]) -> list[Head]:
    """Group neighbours of one template whose headings differ only in their last word, such as a
    length.

    >>> columns = [Column("PG-19 {n}", "ours", {"n": n}) for n in (64, 128)]
    >>> heads_of(columns, ["PG-19 64", "PG-19 128"])
    [Head(group='PG-19', own='64'), Head(group='PG-19', own='128')]
    """
    parts = []
    for column, heading in zip(columns, headings, strict=True):
        parts.append(parts_of(column, heading))
    heads = []
    for (_, group), neighbours in groupby(parts, lambda part: (part.template, part.group)):
        members = [*neighbours]
        for part in members:
            if group and len(members) > 1:
                heads.append(Head(group.rstrip(","), part.own))
            else:
                heads.append(Head("", part.heading))
    return heads


def head_lines(heads: Sequence[Head]) -> list[str]:
    """Write one line of headings, or where there are groups two, and a rule below each group."""
    own = " & ".join(tex(head.own) for head in heads) + r" \\"
    if not any(head.group for head in heads):
        return [own]
    cells = []
    rules = []
    place = 1
    for group, members in groupby(heads, lambda head: head.group):
        count = len([*members])
        if group:
            cells.append(rf"\multicolumn{{{count}}}{{c}}{{{tex(group)}}}")
            rules.append(rf"\cmidrule(lr){{{place}-{place + count - 1}}}")
        else:
            cells += [""] * count
        place += count
    return [" & ".join(cells) + r" \\", " ".join(rules), own]


def body_lines(rows: Sequence[Sequence[str]], labels: int) -> list[str]:
    """Write a line for each row; a label is not repeated, and space is above a new first one."""
    lines = []
    before: Sequence[str] = []
    for row in rows:
        cells = list(row)
        if labels > 1 and before:
            if row[0] == before[0]:
                cells[0] = ""
            else:
                lines.append(r"\addlinespace")
        lines.append(" & ".join(map(tex, cells)) + r" \\")
        before = row
    return lines


def width_of(heads: Sequence[Head], rows: Sequence[Sequence[str]]) -> int:
    """Count the letters of a line, with two between columns."""
    widths = [len(head.own) for head in heads]
    for row in rows:
        widths = [max(width, len(cell)) for width, cell in zip(widths, row, strict=True)]
    return sum(widths) + 2 * len(widths)


def caption_parts(caption: str) -> tuple[str, list[str]]:
    """Split a caption into what is printed and the other sentences: the first one is printed, with
    that of the intervals, or else with the second.

    >>> caption_parts("Sums. Exact match. Mean ± interval.")
    ('Sums. Mean ± interval.', ['Exact match.'])
    """
    first, *others = re.split(r"(?<=[.!?]) (?=[A-Z†+])", caption)
    chosen = next((sentence for sentence in others if "±" in sentence), None)
    if chosen is None and others:
        chosen = others[0]
    if chosen is None:
        return first, []
    others.remove(chosen)
    return f"{first} {chosen}", others


def commits_of(table: Table) -> list[str]:
    """Say which commits the rows are of, as a sentence; none where nothing tells."""
    cells = [str(row.get("commit") or "") for row in table.rows]
    commits = sorted({commit for cell in cells for commit in cell.split()})
    return [f"Commits: {' '.join(commits)}"] if commits else []
