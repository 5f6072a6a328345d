"""The addition heatmaps: figures arithmetic, arithmetic_app and yarn of the paper."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tape_exp.paper.artifacts import Record, Records, RunArtifact, task_of
from tape_exp.paper.claims import Contest
from tape_exp.paper.figure_kinds import Figure, Heatmaps
from tape_exp.paper.tables import ORIGIN, Column, Row, Table, columns, origin
from tape_exp.paper.values import Value, known, mean_of, over_seeds, reported
from tape_exp.runs.evaluation import Heatmap
from tape_exp.settings.naming import display_name

SPLITS = {"test": "ours", "id": "in distribution", "ood": "out of distribution"}


@dataclass(kw_only=True)
class Addition(RunArtifact):
    """A panel for each model, and a table of the means over the grid in and out of distribution."""

    def contests(self, scale: str, records: Records) -> list[Contest]:
        """The mean over the grid; who solves the trained quarter and no more is at its floor."""
        table = self.cells(scale, records)
        task = task_of(records) if records else {"train_digits": 1, "test_digits": 2}
        floor = 100 * (task["train_digits"] / task["test_digits"]) ** 2
        measured = {model: over_seeds(with_errors(runs)) for model, runs in records.items()}
        return self.versus("", known(measured), table.values("paper"), floor=floor)

    def cells(self, scale: str, records: Records) -> Table:
        """A row for each model."""
        published = self.paper()["values"]
        rows: list[Row] = []
        for model in self.models:
            runs = records.get(model, [])
            row: Row = {"model": model, "paper": reported(published.get(model))}
            row |= {name: mean_of(runs, f"{s}/exact_match") for s, name in SPLITS.items()}
            rows.append(row | origin(runs, scale))
        head = [Column("model"), Column("paper"), *columns(SPLITS.values()), *ORIGIN]
        return Table(head, rows, quantity="exact match (%)")

    def caption(self, scale: str, records: Records) -> str:
        """What is averaged, and over which grids."""
        paper = self.paper()
        return (
            f"{self.title}. Exact match (%), mean over the grid of operand lengths. Column paper: "
            f"{paper['setting']}, one seed ({paper['source']}). Columns ours: scale {scale}, "
            f"{digits(records)}, mean over seeds with its 95 % interval. The trained quarter of "
            "the grid counts 25 points of the grid mean when it is solved."
        )

    def figures(self, scale: str, records: Records) -> list[Figure]:
        """One picture, a panel for each model that has run."""
        panels = {}
        for model in (model for model in self.models if model in records):
            mean = np.mean([r["metrics"]["test/exact_match"] for r in records[model]])
            panels[f"{display_name(model)}  {mean:.1f} %"] = panel(records[model])
        return [Heatmaps(f"{self.title} — scale {scale}, {digits(records)}", panels)]


def with_errors(runs: Sequence[Record]) -> dict[int, Value]:
    """Seed -> the mean over the grid, 1.96 standard errors over its sums to each side."""
    found = {}
    for run in runs:
        mean, error = (run["metrics"][f"test/exact_match{end}"] for end in ("", "_stderr"))
        found[run["seed"]] = Value(mean, mean - 1.96 * error, mean + 1.96 * error)
    return found


def digits(records: Records) -> str:
    """The trained and the tested digits, ``5 → 10 digits``."""
    tasks = [task_of(runs) for runs in records.values()]
    both = sorted({(task["train_digits"], task["test_digits"]) for task in tasks})
    return ", ".join(f"{trained} → {tested} digits" for trained, tested in both)


def panel(records: list[Record]) -> Heatmap:
    """The mean grid of several seeds."""
    grids = [np.array(r["heatmap"], dtype=float) for r in records]
    trained = task_of(records)["train_digits"]
    return Heatmap(
        np.mean(grids, axis=0),
        title="exact match (%)",
        row_label="digits of the first operand",
        column_label="digits of the second operand",
        trained=(trained, trained),
    )
