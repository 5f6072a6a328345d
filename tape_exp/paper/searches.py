"""A search as ``tape-exp tune`` records it: its table and its figure."""

import math
from collections.abc import Iterable, Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

from tape_exp.drawing.curves import Curves, Line, Panel
from tape_exp.drawing.looks import look_of
from tape_exp.paper.compare import deciding
from tape_exp.paper.records import Record, warn
from tape_exp.paper.tables import Row, Table, columns, commits
from tape_exp.paper.values import NOTHING, Value, integer
from tape_exp.settings import folders
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.files import read_json
from tape_exp.settings.naming import display_name

FOLDER = folders.ROOT / "results" / "searches"
STATES = ("finished", "given up", "failed")


def read_searches(folder: Path | None = None) -> list[Record]:
    """The records of a folder (default: results/searches), in the order of their names; one that is
    none, or has no finished trial, is named on stderr and left out.
    """
    return [record for path in sorted((folder or FOLDER).glob("*.json")) if (record := _read(path))]


def _read(path: Path) -> Record | None:
    try:
        record: Record = read_json(path)
        if any(best_of(record, model) for model in record["models"]):
            table(record), figure(record)
            return record
        warn(f"{path} has no finished trial and is left out.")
    except ConfigError as error:
        warn(f"{error} It is left out.")
    except (KeyError, TypeError, ValueError, AttributeError, IndexError):
        warn(f"{path} is no record of a search and is left out; restore or remove it.")
    return None


def require_no_loss(new: Record) -> None:
    """Raise :class:`ConfigError` where the record of a search would replace one with more in it."""
    path = FOLDER / f"{new['search']}.json"
    old = _read(path) if path.is_file() else None
    if old is None:
        return
    for model in old["models"]:
        before, now = _finished(old, model), _finished(new, model)
        if now < before:
            raise ConfigError(
                f"{path} has {before} finished trials of {model}, and this search has {now}: leave "
                "--record out, or remove the file."
            )


def _finished(search: Record, model: str) -> int:
    return sum(trial["state"] == "finished" for trial in search["models"].get(model, []))


def best_of(search: Record, model: str) -> dict[str, Any] | None:
    """The finished trial of a model with the best score; None where none is finished."""
    trials = [trial for trial in search["models"][model] if trial["score"] is not None]
    choose = min if search["minimises"] else max
    return choose(trials, key=lambda trial: trial["score"]) if trials else None


def table(search: Record) -> Table:
    """A row for each model: its best trial, the first one beside it, and how many there were."""
    rows: list[Row] = []
    metric = search["metric"]
    keys = {key.lstrip("+"): key for key in search["space"]}
    for model, trials in search["models"].items():
        row: Row = {"model": model, "commit": commits([search])}
        row |= {s: integer(sum(trial["state"] == s for trial in trials)) for s in STATES}
        if best := best_of(search, model):
            row[f"best {metric}"] = Value(best["score"], form="{number:.4g}")
            row |= {title: _shown(best["values"].get(key)) for title, key in keys.items()}
        if trials and trials[0]["score"] is not None:
            row[f"first {metric}"] = Value(trials[0]["score"], form="{number:.4g}")
        rows.append(row)
    head = ["model", f"best {metric}", f"first {metric}", *keys, *STATES, "commit"]
    return Table(columns(head), rows, caption(search))


def _shown(value: Any) -> Any:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return Value(value, form="{number:.6g}") if number else NOTHING if value is None else str(value)


def caption(search: Record) -> str:
    """What was searched, and what the columns mean."""
    seeds = ", ".join(map(str, search["seeds"]))
    mean = f", mean over seeds {seeds}" if len(search["seeds"]) > 1 else f" at seed {seeds}"
    words = deciding(search["overrides"])
    with_keys = f", with {' '.join(words)}" if words else ""
    sets = "; ".join(f"{key.lstrip('+')} from {text}" for key, text in search["space"].items())
    ended = {
        display_name(model): sum(trial["state"] in STATES for trial in trials)
        for model, trials in search["models"].items()
    }
    budget = f"{search['trials']} trials a model"
    if min(ended.values()) < search["trials"]:
        each = ", ".join(f"{count} of {name}" for name, count in ended.items())
        budget = f"up to {budget} (ended: {each})"
    return (
        f"A search of {budget}. Task {search['task']} at scale "
        f"{search['scale']}{with_keys}: {search['metric']}{mean}. {sets}. The first trial has the "
        "values of the config where they are in the space. The test had no part in the search."
    )


def figure(search: Record) -> Curves:
    """The best score after each trial, and the score of each trial by the values of its keys."""
    metric = spoken(search["metric"])
    most = max(map(len, search["models"].values()))
    ticks = [*range(1, most + 1, -(-most // 12))]
    panels = [Panel("best so far", "trial", metric, [*_histories(search)], ticks=ticks)]
    for key in search["space"]:
        if lines := [*_scatter(search, key)]:
            steps = _steps(x for line in lines for x in line.x) if _is_log(search, key) else []
            panel = Panel(spoken(key), "value", metric, lines, ticks=steps, logarithmic=bool(steps))
            panels.append(panel)
    title = f"A search on {spoken(search['task'])} — scale {search['scale']}"
    return Curves(title, panels, shared=False)


def spoken(key: str) -> str:
    """A key or a metric in words: ``learning rate``, ``validation loss``."""
    words = key.rpartition(".")[2].replace("val/", "validation ").replace("_", " ")
    return {"lr": "learning rate", "position lr": "factor of the rate of positions"}.get(
        words, words
    )


def _is_log(search: Record, key: str) -> bool:
    return "log" in search["space"][key]


def _steps(values: Iterable[float]) -> list[float]:
    """Round numbers, 1, 2 and 5 times powers of ten, from below the lowest value to above the
    highest.
    """
    every = [value for value in values if value > 0]
    if not every:
        return []
    powers = range(math.floor(math.log10(min(every))), math.ceil(math.log10(max(every))) + 1)
    steps = [float(f"{digit}e{power}") for power in powers for digit in (1, 2, 5)]
    inside = [step for step in steps if min(every) < step < max(every)]
    below = [step for step in steps if step <= min(every)][-1:]
    above = [step for step in steps if step >= max(every)][:1]
    return [*below, *inside, *above]


def _histories(search: Record) -> Iterator[Line]:
    choose = min if search["minimises"] else max
    for model, trials in search["models"].items():
        finished = [trial for trial in trials if trial["score"] is not None]
        x = [float(trial["number"] + 1) for trial in finished]
        best = accumulate((trial["score"] for trial in finished), choose)
        if x:
            yield Line(display_name(model), x, list(best), look=look_of(model))


def _scatter(search: Record, key: str) -> Iterator[Line]:
    for model, trials in search["models"].items():
        points = [
            (float(trial["values"][key]), trial["score"])
            for trial in trials
            if trial["score"] is not None and isinstance(trial["values"].get(key), int | float)
        ]
        if points:
            x, y = zip(*sorted(points), strict=True)
            yield Line(display_name(model), list(x), list(y), look=look_of(model), joined=False)
