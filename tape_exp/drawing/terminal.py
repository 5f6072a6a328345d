"""Numbers and heatmaps on a terminal: coloured blocks, or without colours tenths."""

import numpy as np
from rich.columns import Columns
from rich.console import Console
from rich.text import Text

from tape_exp.runs.evaluation import Heatmap


class Terminal(Console):
    """A console that leaves it to its caller what to do where nobody reads it any more."""

    def on_broken_pipe(self) -> None:
        """Raise the BrokenPipeError, where rich itself ends the process."""
        raise


def brief(value: float, digits: int) -> str:
    """A number in few characters: ``2.3341``, and below 0.01 ``8.3e-04``."""
    return f"{value:.{digits}f}" if abs(value) >= 0.01 or value == 0 else f"{value:.1e}"


def print_heatmaps(panels: dict[str, Heatmap], console: Console | None = None) -> None:
    """Print grids side by side, what was seen in training framed, and below them a legend."""
    console = console or Terminal()
    first, colours = next(iter(panels.values())), console.is_terminal
    blocks = [_block(name, grid, console) for name, grid in panels.items()]
    console.print(Columns(blocks, padding=(0, 3)), highlight=False)
    scale = Text(f"{first.title} in tens: 9 = 90 to 100")
    if colours:
        scale = Text.assemble("0 ", *(_cell(10 * n, 2, True) for n in range(11)))
        scale.append(f" 100  {first.title}")
    scale.append(
        "; ·· = not evaluated" if any(np.isnan(g.values).any() for g in panels.values()) else ""
    )
    axes = {"rows": first.row_label, "columns": first.column_label}
    framed = any(all(grid.trained) for grid in panels.values())
    sentences = [
        scale,
        "; ".join(f"{axis}: {label}" for axis, label in axes.items() if label),
        *(["framed: seen in training"] if framed else []),
    ]
    for sentence in sentences:
        console.print(sentence, highlight=False, soft_wrap=True)


def _block(name: str, grid: Heatmap, console: Console) -> Text:
    """A grid below its name: the columns' names, and a line for each row."""
    from tape_exp.drawing.plots import ticks

    rows, columns = grid.values.shape
    height, width = grid.trained if all(grid.trained) else (0, 0)
    side, below, corner = "|-+" if console.options.ascii_only else "│─┘"
    framed = bool(width) and width < columns  # else no column is beyond what was seen
    names, heads = (
        dict(zip(*ticks(*axis), strict=True))
        for axis in ((rows, grid.rows), (columns, grid.columns))
    )
    left, cell = (
        max(map(len, names.values())) + 1,
        max(2, *(len(name) + 1 for name in grid.columns or [""])),
    )
    head = "".join(
        heads.get(n, "").ljust(cell) + " " * (framed and n == width) for n in range(1, columns + 1)
    )
    lines = [Text(name, style="bold"), Text(" " * left + head)]
    for row, values in enumerate(grid.values, 1):
        line = Text(f"{names.get(row, ''):>{left - 1}} ")
        for column, value in enumerate(values, 1):
            line.append(*_cell(value, cell, console.is_terminal))
            line.append((side if row <= height else " ") if framed and column == width else "")
        lines.append(line)
        if row == height < rows:
            lines.append(Text(" " * left + below * (cell * width) + corner * framed))
    return Text("\n", no_wrap=True).join(lines)


def _cell(value: float, width: int, coloured: bool) -> tuple[str, str]:
    import matplotlib

    if np.isnan(value):
        return "··".ljust(width), ""
    if not coloured:
        return str(min(int(value // 10), 9)).ljust(width), ""
    red, green, blue = (int(255 * c) for c in matplotlib.colormaps["YlGnBu"](value / 100)[:3])
    return " " * width, f"on rgb({red},{green},{blue})"
