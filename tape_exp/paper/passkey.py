"""Figure tune_retrieval of the paper: pass key retrieval by length and by depth."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tape_exp.drawing.plots import PERCENT, Line, Panel
from tape_exp.drawing.style import styles_of
from tape_exp.paper.artifacts import Record, Records, task_of
from tape_exp.paper.claims import Contest
from tape_exp.paper.extension import Methods
from tape_exp.paper.figure_kinds import Curves, Figure, Heatmaps
from tape_exp.paper.tables import ORIGIN, Column, Row, Table, line_of, origin, pairs
from tape_exp.paper.values import NOT_REPORTED, NOT_RUN, Cell, Value, known, over_runs, reported
from tape_exp.runs.evaluation import Heatmap, depth_heatmap, wilson
from tape_exp.settings.naming import display_name

WITH_ENDS = "{number:.1f} [{low:.0f}, {high:.0f}]"


@dataclass(kw_only=True)
class Passkey(Methods):
    """Accuracy by length next to the paper's, heatmaps of depth and length, and a table."""

    def contests(self, scale: str, records: Records) -> list[Contest]:
        """The accuracy at the longest length.

        Each seed has trials of its own. The interval is Wilson's over all of them, as in the table,
        and of several seeds as wide as their spread, which pooled trials do not have.
        """
        longest, at_paper = max(_lengths(records), default=0), self.paper()["lengths"][-1]
        measured = {
            method: over_runs(
                {r["seed"]: points([r], [longest])[0] for r in runs},
                pooled=points(runs, [longest])[0],
            )
            for method, runs in records.items()
        }
        published = self.cells(scale, records).values(("paper", at_paper))
        where = f"{at_paper} tokens"
        options: Any = {"published_where": where, "digits": 0, "floor": 0.0, "fresh": True}
        return self.versus(f"{longest} tokens", known(measured), published, **options)

    def cells(self, scale: str, records: Records) -> Table:
        """A row for each method; the trials of all seeds are pooled."""
        paper, lengths = self.paper(), _lengths(records)
        rows: list[Row] = []
        for method in self.models:
            runs, published = records.get(method, []), paper["accuracy"].get(method)
            row: Row = {"method": method}
            for n, number in zip(paper["lengths"], published or [], strict=False):
                row["paper", n] = reported(number, 0)
            row |= {} if published else {("paper", n): NOT_REPORTED for n in paper["lengths"]}
            ours: Sequence[Cell] = points(runs, lengths) if runs else [NOT_RUN] * len(lengths)
            row |= {("ours", n): value for n, value in zip(lengths, ours, strict=True)}
            rows.append(row | origin(runs, scale))
        head = [Column("method"), *pairs(paper["lengths"], lengths), *ORIGIN]
        return Table(head, rows, label="method", quantity="accuracy (%)")

    def caption(self, scale: str, records: Records) -> str:
        """How many trials, of which models."""
        paper, task = self.paper(), task_of(records)
        return (
            f"{self.title}. Exact match (%) of the key by length in tokens. Column paper: "
            f"{paper['setting']} ({paper['source']}). Ours: scale {scale}, {task['trials']} trials "
            "for each length and seed, seeds pooled, with Wilson's 95 % interval; models trained "
            f"at {task['train_length']} tokens or extended from there."
        )

    def without_figures(self, records: Records) -> str:
        """Where no method finds any key."""
        runs = [run for found in records.values() for run in found]
        if any(p.number > 0 for run in runs for p in points([run], _lengths(records))):
            return ""
        return "No figure: no method finds a key at any length of this scale." if runs else ""

    def figures(self, scale: str, records: Records) -> list[Figure]:
        """Accuracy against length, in the same colours for ours and the paper's; and by depth."""
        table, paper = self.cells(scale, records), self.paper()
        sides: dict[str, list[Line]] = {"ours": [], "paper": []}
        places = {"ours": _lengths(records), "paper": paper["lengths"]}
        looks = styles_of(str(row["method"]) for row in table.rows)
        for side, lines in sides.items():
            for row in table.rows:
                cells = [(n, row[side, n]) for n in places[side]]
                values = [(n, cell) for n, cell in cells if isinstance(cell, Value)]
                if values:
                    method = str(row["method"])
                    lines.append(line_of(display_name(method), values, style=looks[method]))
        tasks = [record["config"]["task"] for runs in records.values() for record in runs]
        marks = sorted({task["train_length"] for task in tasks})
        panels = [
            Panel(title, "length (tokens)", ylabel, sides[side], at, places[side], ylim=PERCENT)
            for title, ylabel, side, at in (
                (f"ours, scale {scale}", "accuracy (%)", "ours", marks),
                ("paper, Llama-2-7B", "accuracy (%)", "paper", []),
            )
        ]
        depths = {}
        for method, runs in records.items():
            mean = np.mean([value.number for value in points(runs, places["ours"])])
            depths[f"{display_name(method)}  {mean:.1f} %"] = panel(runs)
        title = f"{self.title}, by depth — scale {scale}"
        return [Curves(self.title, panels), Heatmaps(title, depths, "-depth")]


def _lengths(records: Records) -> list[int]:
    """The lengths of the prompts; none without records."""
    return sorted(task_of(records)["lengths"]) if records else []


def points(records: list[Record], lengths: list[int]) -> list[Value]:
    """Accuracy at each length and Wilson's interval, over the trials of all seeds together."""
    values = []
    trials = sum(r["config"]["task"]["trials"] for r in records)
    for length in lengths:
        shares = [
            r["metrics"][f"passkey/accuracy@{length}"] * r["config"]["task"]["trials"]
            for r in records
        ]
        correct = round(sum(shares) / 100)
        ends = wilson(correct, trials)
        kind = "Wilson's 95 % interval over trials"
        values.append(Value(100 * correct / trials, *ends, len(records), WITH_ENDS, kind))
    return values


def panel(records: list[Record]) -> Heatmap:
    """The mean of several seeds."""
    task = task_of(records)
    grids = [np.array(r["heatmap"], dtype=float) for r in records]
    return depth_heatmap(np.mean(grids, axis=0), sorted(task["lengths"]), task["train_length"])
