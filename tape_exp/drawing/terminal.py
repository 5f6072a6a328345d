"""Numbers and heatmaps on a terminal: coloured blocks, or where there are no colours tenths."""

from itertools import zip_longest
from typing import Any

import matplotlib
import numpy as np
from rich.console import Console
from rich.text import Text

from tape_exp.drawing.heatmap import COLOURS, ticks
from tape_exp.runs.evaluation import Heatmap

GAP = "   "  # between two heatmaps


class Terminal(Console):
    """A console that leaves it to its caller what to do where nobody reads it any more."""

    def on_broken_pipe(self) -> None:
        """Raise the BrokenPipeError, where rich itself ends the process."""
        raise


def brief(value: float, digits: int) -> str:
    """A number in few characters: ``2.3341``, and below 0.01 ``8.3e-04``."""
    return f"{value:.{digits}f}" if abs(value) >= 0.01 or value == 0 else f"{value:.1e}"


def print_heatmaps(panels: dict[str, Heatmap], console: Console | None = None) -> None:
    """Print grids side by side, what was seen in training framed, and below them what they show."""
    console = console or Terminal()
    blocks = [_block(name, heatmap, console) for name, heatmap in panels.items()]
    for group in _fitting(blocks, console.width):
        for lines in zip_longest(*group):
            parts = [
                line or Text(" " * block[0].cell_len)
                for line, block in zip(lines, group, strict=True)
            ]
            whole = Text(GAP).join(parts)
            whole.rstrip()
            console.print(whole, no_wrap=True, highlight=False)
    for sentence in _legend(panels, console):
        console.print(sentence, highlight=False, soft_wrap=True)


def _block(name: str, heatmap: Heatmap, console: Console) -> list[Text]:
    """The lines of one grid, all equally long: its name, its columns' names, its rows."""
    rows, columns = heatmap.values.shape
    height, width = heatmap.trained if all(heatmap.trained) else (0, 0)
    side, below, corner = "|-+" if console.options.ascii_only else "│─┘"
    beside = bool(width) and width < columns  # else no column is beyond what was seen
    names = dict(zip(*ticks(rows, heatmap.rows), strict=True))
    left = max(map(len, names.values())) + 1
    cell = max(2, *(len(label) + 1 for label in heatmap.columns or [""]))
    head = ""
    for place, label in zip(*ticks(columns, heatmap.columns), strict=True):
        head = head.ljust(left + cell * (place - 1) + (beside and place > width)) + label
    lines = [Text(name, style="bold"), Text(head)]
    for row, values in enumerate(heatmap.values, 1):
        line = Text(f"{names.get(row, ''):>{left - 1}} ")
        for column, value in enumerate(values, 1):
            line.append(*_cell(value, cell, console.is_terminal))
            if beside and column == width:
                line.append(side if row <= height else " ")
        lines.append(line)
        if row == height < rows:
            lines.append(Text(" " * left + below * (cell * width) + (corner if beside else "")))
    longest = max(line.cell_len for line in lines)
    for line in lines:
        line.pad_right(longest - line.cell_len)
    return lines


def _cell(value: float, width: int, coloured: bool) -> tuple[str, str]:
    if np.isnan(value):
        return "··".ljust(width), ""
    if not coloured:
        return str(min(int(value // 10), 9)).ljust(width), ""
    red, green, blue = (int(255 * c) for c in matplotlib.colormaps[COLOURS](value / 100)[:3])
    return " " * width, f"on rgb({red},{green},{blue})"


def _fitting(blocks: list[list[Text]], width: int) -> list[list[list[Text]]]:
    """Blocks in rows that fit the terminal."""
    rows: list[list[list[Text]]] = [[]]
    for block in blocks:
        used = sum(other[0].cell_len + len(GAP) for other in rows[-1])
        if rows[-1] and used + block[0].cell_len > width:
            rows.append([])
        rows[-1].append(block)
    return rows


def _legend(panels: dict[str, Heatmap], console: Console) -> list[Any]:
    """What colours or digits mean, and the two axes."""
    first = next(iter(panels.values()))
    missing = any(np.isnan(heatmap.values).any() for heatmap in panels.values())
    if console.is_terminal:
        scale = Text("0 ")
        for tenth in range(11):
            scale.append(*_cell(10 * tenth, 2, True))
        scale.append(f" 100  {first.title}" + ("; ·· not evaluated" if missing else ""))
    else:
        empty = "; ·· = not evaluated" if missing else ""
        scale = Text(f"{first.title} in tens: 9 = 90 to 100{empty}")
    framed = any(all(heatmap.trained) for heatmap in panels.values())
    axes = {"rows": first.row_label, "columns": first.column_label}
    named = "; ".join(f"{axis}: {label}" for axis, label in axes.items() if label)
    return [scale, named, *(["framed: seen in training"] if framed else [])]
