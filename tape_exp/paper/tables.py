"""Tables in Markdown, LaTeX and CSV, and the interval of a mean."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from scipy.special import stdtrit

from tape_exp.machine.files import write_atomically

ORIGIN = ("seeds", "scale", "commit")


def interval(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and half-width of its 95 % confidence interval (Student's t over seeds); None with a
    single value.
    """
    if len(values) < 2:
        return mean(values), None
    return mean(values), float(stdtrit(len(values) - 1, 0.975)) * stdev(values) / len(values) ** 0.5


def mean_text(values: Sequence[float], digits: int = 2) -> str:
    """``26.32 ± 0.41``, or the value alone for one seed, or nothing for none."""
    if not values:
        return ""
    centre, half = interval(values)
    return f"{centre:.{digits}f}" + ("" if half is None else f" ± {half:.{digits}f}")


def origin(records: Sequence[dict[str, Any]], scale: str) -> list[str]:
    """Cells of the columns :data:`ORIGIN`: how many seeds, which scale, which commits; empty where
    nothing has run.

    Where the seeds ran in several precisions, as ``auto`` chose them on a CPU and on a GPU, the
    scale's cell names these.
    """
    if not records:
        return ["", "", ""]
    precisions = sorted({r["precision"] for r in records if "precision" in r})
    told = f"{scale} ({', '.join(precisions)})" if len(precisions) > 1 else scale
    return [str(len(records)), told, " ".join(sorted({commit(r) for r in records}))]


def commit(record: dict[str, Any]) -> str:
    """Seven digits of the commit that a record is of, and a + where tracked files differed from
    it.
    """
    return (record["git"]["commit"] or "unknown")[:7] + ("+" if record["git"]["dirty"] else "")


def write(
    stem: Path, columns: Sequence[str], rows: Sequence[Sequence[str]], caption: str
) -> list[Path]:
    """``stem``.md, .tex and .csv; returns their paths."""
    files = {
        ".md": markdown(columns, rows, caption),
        ".tex": latex(columns, rows, caption),
        ".csv": comma(columns, rows),
    }
    for suffix, text in files.items():
        write_atomically(stem.with_name(stem.name + suffix), text)
    return [stem.with_name(stem.name + suffix) for suffix in files]


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]], caption: str) -> str:
    """A table with aligned pipes and its caption below."""
    widths = [max(len(line[i]) for line in (columns, *rows)) for i in range(len(columns))]

    def line(cells: Sequence[str]) -> str:
        return (
            "| "
            + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
            + " |"
        )

    ruler = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([line(columns), ruler, *map(line, rows), "", caption, ""])


def latex(columns: Sequence[str], rows: Sequence[Sequence[str]], caption: str) -> str:
    """A booktabs table."""

    def line(cells: Sequence[str]) -> str:
        return "  " + " & ".join(_tex(cell) for cell in cells) + r" \\"

    body = [line(columns), r"  \midrule", *map(line, rows)]
    head = [r"\begin{table}", r"  \centering", rf"  \caption{{{_tex(caption)}}}"]
    head += [rf"  \begin{{tabular}}{{l{'r' * (len(columns) - 1)}}}", r"  \toprule"]
    return "\n".join([*head, *body, r"  \bottomrule", r"  \end{tabular}", r"\end{table}", ""])


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
}
SYMBOLS |= {"<": "<", ">": ">", "|": "|"}
TEX = str.maketrans(SPECIAL | {character: f"${command}$" for character, command in SYMBOLS.items()})


def _tex(text: str) -> str:
    return text.translate(TEX)


def comma(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Comma-separated values."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([columns, *rows])
    return text.getvalue()
