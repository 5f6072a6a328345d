"""The table of an artifact at a scale."""

from collections.abc import Mapping, Sequence
from functools import cached_property

from tape_exp.artifacts.captions import KNOWS_DIGITS, notes
from tape_exp.artifacts.cells import Cells
from tape_exp.artifacts.rows import Row
from tape_exp.results.record import Record
from tape_exp.results.statistics import Value
from tape_exp.results.store import commits
from tape_exp.results.tables import Cell, Column, Table, span
from tape_exp.settings.construct import function_at
from tape_exp.settings.errors import warn


class View(Cells):
    """An artifact at a scale, as pages show it: its cells, and the table that they make."""

    @cached_property
    def table(self) -> Table | None:
        """Its table; None where there is nothing to show."""
        artifact = self.artifact
        if artifact.source:
            return function_at(artifact.source, f"source of {artifact.name}")(self)
        if not self.all_runs:
            return None
        names = self.dimensions()
        head = [*map(Column, names), *self.columns, *map(Column, artifact.provenance)]
        table = Table(head, self._table_rows(), names, self.caption())
        if artifact.finish:
            return function_at(artifact.finish, f"finish of {artifact.name}")(self, table)
        return table

    def caption(self) -> str:
        """Write the caption, with what only the records tell: how they differ, what was read."""
        body = self.filled(self.artifact.caption, self.every_run)
        return " ".join([f"{self.artifact.title}. {body}".strip(), *notes(self)])

    def warn_of_empty_columns(self) -> None:
        """Say which columns show a metric that no run has."""
        if self.table is None or self.artifact.source:
            return
        for column in self.our_columns:
            name = column.name
            if column.spec.metric and not any(row.get(name) for row in self.table.rows):
                warn(f"{self.artifact.name}: no run has what column {name} shows.")

    def _table_rows(self) -> list[dict[str, Cell]]:
        rows: list[dict[str, Cell]] = []
        shown: set[str] = set()  # names of runs
        for row in self.rows:
            runs = {run.name for run in self.runs(row)}
            if self.artifact.once and runs <= shown:
                continue
            shown |= runs
            cells = self._row(row)
            if runs and not any(cells[column.name] for column in self.our_columns):
                continue  # of a label that these runs do not have, such as a deeper layer
            rows.append(cells)
        return rows

    def _row(self, row: Row) -> dict[str, Cell]:
        runs = self.runs(row)
        cells: dict[str, Cell] = {**row.labels}
        if any(run.get("knows_digits") for run in runs):
            last = self.dimensions()[-1]
            cells[last] = row.labels[last] + KNOWS_DIGITS
        for column in self.columns:
            cells[column.name] = self.cell(row, column)
        origin = self._origin(runs)
        if origin:
            origin["seeds"] = self._seeds_of_cells(row, cells)
        return cells | origin

    def _origin(self, runs: Sequence[Record]) -> dict[str, Cell]:
        """Say where the numbers of a row come from: seeds, scale and commits."""
        if not runs:
            return {}
        scale = self.artifact.place.get(self.scale) or self.scale
        precisions = sorted({run["precision"] for run in runs if "precision" in run})
        if len(precisions) > 1:
            scale = f"{scale} ({', '.join(precisions)})"
        seeds = {run.seed for run in runs}
        return {"seeds": str(len(seeds)), "scale": scale, "commit": commits(runs)}

    def _seeds_of_cells(self, row: Row, cells: Mapping[str, Cell]) -> str:
        """Count the seeds of the numbers of a row: ``3``, or ``1 to 3`` where columns differ."""
        counts = set()
        for column in self.our_columns:
            cell = cells[column.name]
            if isinstance(cell, Value) and cell.runs:
                counts.add(len(cell.runs))
        if not counts:
            counts.add(len({run.seed for run in self.runs(row)}))
        return span(str(min(counts)), str(max(counts)))
