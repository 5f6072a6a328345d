"""One HTML page of a bench, without network: a click on a cell shows its curves and some rows."""

import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from tape_exp.bench.board import THEIRS, Board
from tape_exp.bench.tasks import Entry, guess_at
from tape_exp.data.groups import GROUPS
from tape_exp.data.problems import PROBLEMS
from tape_exp.data.retrieval import DIGITS, KINDS
from tape_exp.drawing.looks import looks_of
from tape_exp.machine.files import write_atomically
from tape_exp.machine.seeding import seed_for
from tape_exp.paper.ceilings import MARK
from tape_exp.paper.tables import for_readers
from tape_exp.paper.values import Value
from tape_exp.settings.naming import display_name

HERE = Path(__file__).parent
ROWS, SHORT = 3, 8  # of each task, and their length


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
        further={
            f"Differences to {THEIRS}": for_readers(board.leads()),
            "Learning rates": for_readers(board.search()),
        },
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
    name = display_name(model) + (MARK if model in board.ceilings else "")
    return {"model": model, "name": name, "rank": str(place[0]) if place else "", "cells": cells}


def of_task(board: Board, entry: Entry) -> dict[str, Any]:
    """What a click on a cell of a task shows: a curve of each model, and rows of the test."""
    curves: dict[str, list[tuple[int, float]]] = {}
    seeds, trained, digits = {}, None, DIGITS
    for model in board.order:
        runs = board.bench.runs(board.records, model, entry.name)
        found = [entry.by_length(record) for record in runs]
        shared = sorted(set.intersection(*map(set, found))) if found else []
        if shared:
            curves[model] = [(n, sum(f[n] for f in found) / len(found)) for n in shared]
            seeds[model] = [(n, f[n]) for f in found for n in shared] if len(found) > 1 else []
            task = runs[0]["config"]["task"]
            keys = ("train_length", "train_letters", "train_digits")
            trained = next((task[key] for key in keys if task.get(key) is not None), None)
            digits = task.get("digits", digits)
    return {
        "summary": entry.summary,
        "unit": unit(entry.name),
        "names": {model: display_name(model) for model in curves},
        "looks": {model: asdict(look) for model, look in looks_of(curves).items()},
        "trained": trained,
        "curves": curves,
        "seeds": seeds,
        "guess": guess(entry, sorted({n for curve in curves.values() for n, _ in curve})),
        "rows": samples(entry.name, trained, digits),
    }


def guess(entry: Entry, lengths: Sequence[int]) -> list[tuple[int, float]]:
    """What the best guess from nearby reaches at each length, where tokens are scored."""
    if entry.measure != "token_accuracy":
        return []
    return [(n, round(guess_at(entry.name, n), 2)) for n in lengths]


def unit(task: str) -> str:
    """What a length of a task counts."""
    if task in PROBLEMS:
        return PROBLEMS[task].unit
    return "letters" if task in GROUPS else "tokens" if task in KINDS else "digits"


def samples(task: str, trained: int | None, digits: int) -> list[list[tuple[str, bool]]]:
    """Short rows of a task, part by part, and whether it is scored; of addition none.

    Args:
        digits: of a number that a text hides.
    """
    key = seed_for(0, "page", task)
    generator = np.random.default_rng(key)
    if task in KINDS:
        asked = [KINDS[task].ask(generator, 1, depth, digits) for depth in (0.2, 0.5, 0.8)]
        return [[(question.write(3), False), (question.answer, True)] for question in asked]
    if task in GROUPS:
        group = GROUPS[task]()
        letters = generator.choice(group.letters, (ROWS, SHORT))
        rows = np.stack([letters, group.states(letters)], 2)
        return [[(f" {n}", bool(i % 2)) for i, n in enumerate(row.flatten())] for row in rows]
    if task not in PROBLEMS or trained is None:
        return []
    problem = PROBLEMS[task]
    length = problem.lengths(min(trained, SHORT))[-1:] or [trained]
    tokens, scored = problem.rows(key, 0, ROWS, length)
    return [
        list(zip(problem.text(row), map(bool, marked), strict=False))
        for row, marked in zip(tokens.tolist(), scored.tolist(), strict=True)
    ]
