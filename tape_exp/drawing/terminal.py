"""Numbers and heatmaps on a terminal: percentages, on coloured blocks where there are colours."""

import numpy as np
from rich.columns import Columns
from rich.console import Console
from rich.text import Text

from tape_exp.results.evaluation import Heatmap


class Terminal(Console):
    """A console that leaves it to its caller what to do where nobody reads it any more."""

    def on_broken_pipe(self) -> None:
        """Raise the BrokenPipeError, where rich itself ends the process."""
        raise


def brief(value: float, digits: int) -> str:
    """Write a number in few characters: ``2.3341``, and below 0.01 ``8.3e-04``."""
    return f"{value:.{digits}f}" if abs(value) >= 0.01 or value == 0 else f"{value:.1e}"


def print_heatmaps(panels: dict[str, Heatmap], console: Console | None = None) -> None:
    """Print grids side by side, what was seen in training framed, and below them a legend."""
    console = console or Terminal()
    first = next(iter(panels.values()))
    tens = any(_width(grid, False) > console.width for grid in panels.values())
    blocks = [_block(name, grid, console, tens) for name, grid in panels.items()]
    console.print(Columns(blocks, padding=(0, 3)), highlight=False)
    legend = f"{first.title} in tens: 9 = 90 to 100" if tens else first.title
    if any(np.isnan(grid.values).any() for grid in panels.values()):
        legend += "; · = not evaluated"
    sentences = [legend]
    axes = {"rows": first.row_label, "columns": first.column_label}
    named = [f"{axis}: {label}" for axis, label in axes.items() if label]
    if named:
        sentences.append("; ".join(named))
    if all(first.trained):
        has_longer_rows = first.trained[0] < len(first.values)
        sentences.append(f"{'framed' if has_longer_rows else 'left of the bar'}: seen in training")
    for sentence in sentences:
        console.print(sentence, highlight=False, soft_wrap=True)


def _cell_width(grid: Heatmap, tens: bool) -> int:
    """Count the letters of a cell and the space after it."""
    return max(2 if tens else 4, *(len(head) + 1 for head in grid.columns or [""]))


def _width(grid: Heatmap, tens: bool) -> int:
    """Count the letters of a line of a grid, with the names of its rows and its frame."""
    names = max(map(len, grid.rows or ["00"]))
    return names + 1 + grid.values.shape[1] * _cell_width(grid, tens) + 1


def _block(name: str, grid: Heatmap, console: Console, tens: bool) -> Text:
    """Write a grid below its name: the columns' names, and a line for each row."""
    from tape_exp.drawing.plots import ticks

    rows, columns = grid.values.shape
    height, width = grid.trained if all(grid.trained) else (0, 0)
    framed = 0 < width < columns  # else no column is beyond what was seen
    side, below, corner = "|-+" if console.options.ascii_only else "│─┘"
    names = ticks(rows, grid.rows)
    heads = ticks(columns, grid.columns)
    left = max(map(len, names.values())) + 1
    cell = _cell_width(grid, tens)
    head = ""
    for n in range(1, columns + 1):
        head += heads.get(n, "").rjust(cell - 1).ljust(cell) + " " * (framed and n == width)
    lines = [Text(name, style="bold"), Text(" " * left + head)]
    for row, values in enumerate(grid.values, 1):
        line = Text(f"{names.get(row, ''):>{left - 1}} ")
        for column, value in enumerate(values, 1):
            line.append(*_cell(value, cell, tens, console.is_terminal))
            line.append((side if row <= height else " ") if framed and column == width else "")
        lines.append(line)
        if row == height < rows:
            lines.append(Text(" " * left + below * (cell * width) + corner * framed))
    return Text("\n", no_wrap=True).join(lines)


def _cell(value: float, width: int, tens: bool, coloured: bool) -> tuple[str, str]:
    """Choose a cell's text and style: its percent or tens, on a terminal in the figures' colour
    too.
    """
    if np.isnan(value):
        return "·".rjust(width - 1) + " ", ""
    number = min(int(value // 10), 9) if tens else round(value)
    text = str(number).rjust(width - 1) + " "
    if not coloured:
        return text, ""
    import matplotlib

    red, green, blue = (int(255 * c) for c in matplotlib.colormaps["YlGnBu"](value / 100)[:3])
    return text, f"{'white' if value > 60 else 'black'} on rgb({red},{green},{blue})"
