"""One HTML page of a bench, without network: a click on a cell shows its curves and some rows."""

import json
import re
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from tape_exp.bench.board import Board
from tape_exp.bench.tasks import Entry
from tape_exp.data.problems import PROBLEMS
from tape_exp.machine.files import write_atomically
from tape_exp.machine.seeding import seed_for
from tape_exp.paper.ceilings import MARK
from tape_exp.paper.records import Record
from tape_exp.paper.values import Value

HERE = Path(__file__).parent
ROWS = 3  # of each task


def write(board: Board, path: Path) -> Path:
    """Write the page of a board."""
    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined
    )
    environment.trim_blocks = environment.lstrip_blocks = True
    data = {entry.name: of_task(board, entry) for entry in board.bench.entries}
    text = environment.get_template("page.html").render(
        title=f"{board.bench.title}, scale {board.scale}",
        tasks=[entry.name for entry in board.bench.entries],
        rows=[row_of(board, model) for model in board.order],
        caption=board.caption(),
        data=re.sub("[<>&]", lambda match: f"\\u{ord(match[0]):04x}", json.dumps(data)),
    )
    write_atomically(path, text)
    return path


def row_of(board: Board, model: str) -> dict[str, Any]:
    """A model's cells: text, and how many percent they are filled; None where there is none."""
    place = board.places.get(model)
    cells = {
        task: {"text": str(cell), "percent": cell.number} if isinstance(cell, Value) else None
        for task, cell in board.scores[model].items()
    }
    name = model + (MARK if model in board.ceilings else "")
    return {"model": model, "name": name, "rank": str(place[0]) if place else "", "cells": cells}


def of_task(board: Board, entry: Entry) -> dict[str, Any]:
    """What a click on a cell of a task shows: a curve of each model, and rows of the test."""
    curves, trained = {}, None
    for model in board.order:
        runs = board.bench.runs(board.records, model, entry.name)
        found = [by_length(entry, record) for record in runs]
        shared = sorted(set.intersection(*map(set, found))) if found else []
        if shared:
            curves[model] = [[n, sum(f[n] for f in found) / len(found)] for n in shared]
            task = runs[0]["config"]["task"]
            keys = ("train_length", "train_letters", "train_digits")
            trained = next((task[key] for key in keys if key in task), None)
    unit = PROBLEMS[entry.name].unit if entry.name in PROBLEMS else "digits or letters"
    return {
        "summary": entry.summary,
        "unit": unit,
        "trained": trained,
        "curves": curves,
        "rows": samples(entry.name, trained),
    }


def by_length(entry: Entry, record: Record) -> dict[int, float]:
    """A run's score at each length that its record has; of addition, of two equal lengths."""
    if record["config"]["task"]["name"] == "arithmetic":
        grid = record.get("heatmap", [])
        diagonal = {n: row[n - 1] for n, row in enumerate(grid, 1) if len(row) >= n}
        return {n: value for n, value in diagonal.items() if value is not None}
    begin = f"test/{entry.measure}@"
    found = {k.removeprefix(begin): v for k, v in record["metrics"].items() if k.startswith(begin)}
    return {int(n): value for n, value in found.items() if n.isdigit()}


def samples(task: str, trained: int | None) -> list[list[tuple[str, bool]]]:
    """Rows of a problem of the battery, symbol by symbol, and whether it is scored."""
    if task not in PROBLEMS or trained is None:
        return []
    problem = PROBLEMS[task]
    length = problem.lengths(min(trained, 8))[-1:] or [trained]
    tokens, scored = problem.rows(seed_for(0, "test", length[0]), 0, ROWS, length)
    return [
        list(zip(problem.text(row), map(bool, marked), strict=False))
        for row, marked in zip(tokens.tolist(), scored.tolist(), strict=True)
    ]
