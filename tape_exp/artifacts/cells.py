"""The cells of an artifact at a scale: its rows and columns, the runs of each, and their value."""

import re
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from tape_exp.artifacts.artifact import LADDER, Artifact, paper_value, select
from tape_exp.artifacts.averages import average
from tape_exp.artifacts.columns import ArtifactColumn, columns_of, has_row
from tape_exp.artifacts.rows import Row, fill, label_of, once, rows_of
from tape_exp.artifacts.specs import ColumnSpec, RowBlock
from tape_exp.results.index import RecordIndex
from tape_exp.results.record import Record
from tape_exp.results.statistics import Value, lead
from tape_exp.results.tables import Cell, span
from tape_exp.settings.errors import ConfigError, did_you_mean


class Cells:
    """An artifact at a scale: its rows and columns, and the runs and the value of each cell.

    Args:
        artifact: what is shown.
        scale: one of its scales.
        records: by time, or an index of them; those that are none of its runs are left out.
        rows: in the place of those that its dimensions make.
        runs_of: the runs of a row, in the place of those that its overrides made.
    """

    def __init__(
        self,
        artifact: Artifact,
        scale: str,
        records: Sequence[Record] | RecordIndex,
        rows: Sequence[Row] | None = None,
        runs_of: Callable[[Row], list[Record]] | None = None,
    ) -> None:
        self.artifact = artifact
        self.scale = scale
        self.index = records if isinstance(records, RecordIndex) else RecordIndex(records)
        self._rows = rows
        self._runs_of = runs_of
        self.common = [*artifact.overrides, *artifact.at.get(scale, [])]
        self.values = artifact.values.get(scale, {})  # of placeholders in overrides

    # ---- rows ----

    @cached_property
    def rows(self) -> list[Row]:
        """Every row: the product of the dimensions."""
        if self._rows is not None:
            return [*self._rows]
        rows: list[Row] = []
        for block in self.blocks():
            rows += rows_of(block, self.values, self.lookup)
        return rows

    def blocks(self) -> list[RowBlock]:
        """List the blocks of rows at this scale."""
        every = self.artifact.rows
        return [block for block in every if not block.scales or self.scale in block.scales]

    def dimensions(self) -> list[str]:
        """Name the dimensions, which are the first columns; the last is the model or method."""
        blocks = self.blocks()
        return [*blocks[0].dimensions] if blocks else []

    # ---- columns ----

    @cached_property
    def columns(self) -> list[ArtifactColumn]:
        """Every column, in order; a pair of them where the paper has numbers too."""
        columns = []
        for template, spec in self.artifact.columns.items():
            if not spec.scales or self.scale in spec.scales:
                columns += self._columns_of(template, spec)
        return columns

    def _columns_of(self, template: str, spec: ColumnSpec) -> list[ArtifactColumn]:
        """Make those of a key of the YAML."""
        values = {name: self._values(listed, spec) for name, listed in spec.each.items()}
        return columns_of(template, spec, values, self.artifact.paper.get("lengths", ()))

    def _values(self, listed: Any, spec: ColumnSpec) -> list[Any]:
        """Return the values of a placeholder: those that are listed, or what the runs of all rows
        of the column have at a key, a list or a single value: numbers in ascending order, others
        in order of appearance.
        """
        if not isinstance(listed, str):
            return list(listed)
        values: list[Any] = []
        for row in self.rows:
            if not has_row(spec, row):
                continue
            for found in self.lookup(listed, self._runs_with(row, spec.where)):
                several = found if isinstance(found, list) else [found]
                values += [value for value in several if value not in values]
        if all(isinstance(value, int | float) for value in values):
            values.sort()
        return values or [None]

    @cached_property
    def our_columns(self) -> list[ArtifactColumn]:
        """Those with numbers of our runs."""
        return [column for column in self.columns if column.who == "ours"]

    def columns_named(self, name: str) -> list[ArtifactColumn]:
        """Find the columns of a key of the YAML, ``{who} {n}``, or the one that it makes, ``ours
        512``; none where they are of other scales.

        Raises:
            ConfigError: the YAML has no such column.
        """
        found = [column for column in self.columns if name in (column.template, column.name)]
        if found:
            return found
        known = [*self.artifact.columns]
        for template, spec in self.artifact.columns.items():
            known += [column.name for column in self._columns_of(template, spec)]
        if name not in known:
            raise ConfigError(
                f"conf/paper/{self.artifact.name}.yaml: column {name}{did_you_mean(name, known)} "
                f"Known: {', '.join(dict.fromkeys(known))}."
            )
        return []

    # ---- the runs of a cell ----

    def overrides(self, row: Row, column: ArtifactColumn | None = None) -> tuple[str, ...]:
        """List the overrides of the runs of a cell, the scale among them."""
        further: list[str] = []
        if column:
            values = self.values | column.at | row.labels
            further = [fill(override, values) for override in column.spec.where]
        return self._overrides_with(row, further)

    def _overrides_with(self, row: Row, further: Sequence[str]) -> tuple[str, ...]:
        overrides = [*self.common, *row.overrides, *further]
        if not names_scale(overrides):
            overrides.append(f"scale={self.scale}")
        return tuple(overrides)

    def runs(self, row: Row, column: ArtifactColumn | None = None) -> list[Record]:
        """Find the newest record of each seed of a cell, up to as many as its row says; without a
        column those of its row.
        """
        if self._runs_of is not None:
            return self._runs_of(row)
        if column is None and self.our_columns:
            return once(self.runs(row, ours) for ours in self.our_columns)
        runs = self.index.of_experiment(self.overrides(row, column))
        return [run for run in runs if row.seeds is None or run.seed < row.seeds]

    def _runs_with(self, row: Row, further: Sequence[str]) -> list[Record]:
        """Find the runs of a row with further overrides, those of a column still to be made."""
        if self._runs_of is not None:
            return self._runs_of(row)
        return self.index.of_experiment(self._overrides_with(row, further))

    @cached_property
    def all_runs(self) -> dict[str, list[Record]]:
        """The runs of every row that has some, by its label."""
        all_runs = {}
        for row in self.rows:
            runs = self.runs(row)
            if runs:
                all_runs[label_of(row)] = runs
        return all_runs

    @property
    def every_run(self) -> list[Record]:
        """The runs of all rows, each once."""
        return once(self.all_runs.values())

    # ---- the value of a cell ----

    def cell(self, row: Row, column: ArtifactColumn) -> Cell:
        """Say what is in a cell: a value, a text, or None where nothing is known."""
        spec = column.spec
        if not column.has(row):
            return None
        if column.who == "paper":
            return paper_value(self.artifact.paper, fill(spec.paper, column.at | row.labels))
        if spec.text:
            return spec.text.get(row.labels[self.dimensions()[-1]], "")
        if spec.show:
            runs = self.runs(row, column)
            return self.filled(spec.show, runs) if runs else None
        if spec.lead:
            return self._lead(row, column)
        return self.measured(row, column)

    def measured(self, row: Row, column: ArtifactColumn, interval: str = "") -> Value | None:
        """Average the metric of a column over the runs of a row, with the interval that the column
        asks for, or another.
        """
        runs = self.runs(row, column)
        spec = column.spec
        return average(runs, column.metric_of(row), interval or spec.interval, spec.times)

    def _lead(self, row: Row, column: ArtifactColumn) -> Value | str | None:
        """Compute the paired difference from the row of another model; empty in that row itself."""
        spec = column.spec.lead
        assert spec is not None  # the column is one of leads
        last = self.dimensions()[-1]
        model = row.labels[last]
        rival = fill(spec.over, column.at)
        if model == rival or (spec.of and model not in spec.of):
            return ""
        labels = row.labels | {last: rival}
        for other in self.rows:
            if other.labels == labels:
                ours = self.measured(row, column)
                theirs = self.measured(other, column)
                return lead(ours, theirs) if ours and theirs else None
        return None

    # ---- texts with values of records ----

    def lookup(self, key: str, runs: Sequence[Record] | None = None) -> list[Any]:
        """List what runs, by default all that there are, have at a key of their config, among their
        metrics or as a fact of the record, each value once.
        """
        if runs is None:
            overrides = [*self.common]
            if not names_scale(overrides) and self.scale != LADDER:
                overrides.append(f"scale={self.scale}")
            runs = self.index.fitting(overrides)
        values: list[Any] = []
        for run in runs:
            value = fact_of(run, key)
            if value is not None and value not in values:
                values.append(value)
        return values

    def filled(self, text: str, runs: Sequence[Record] | None = None) -> str:
        """Fill in the values of keys in braces: several are listed, numbers as a range; none where
        all are null. ``{task.optim.lr:.4f}`` has a format.
        """
        braces = r"\{([\w./@]+)(?::([^}]*))?\}"
        return re.sub(braces, lambda match: self._text_of(match[1], match[2] or "", runs), text)

    def _text_of(self, key: str, form: str, runs: Sequence[Record] | None) -> str:
        if key == "scale":
            return self.artifact.place.get(self.scale) or self.scale
        if key.startswith("paper."):
            return str(select(self.artifact.paper, key.removeprefix("paper.")))
        return text_of(self.lookup(key, runs), form)


def names_scale(overrides: Sequence[str]) -> bool:
    """Say whether one of the overrides is ``scale=``."""
    return any(override.startswith("scale=") for override in overrides)


def fact_of(run: Record, key: str) -> Any:
    """Return what a run has at a key, as a fact of its record, a metric or a setting, or None."""
    for facts in (run, run.metrics, run.settings):
        if facts.get(key) is not None:
            return facts[key]
    return None


def text_of(values: Sequence[Any], form: str = "") -> str:
    """Write the values that runs have at a key: numbers as a range, others one after another.

    >>> text_of([300, 200]), text_of(["auto", "32-true"]), text_of([[64, 128]]), text_of([])
    ('200 to 300', 'auto or 32-true', '64, 128', 'none')
    """
    if values and all(isinstance(value, int | float) for value in values):
        return span(f"{min(values):{form}}", f"{max(values):{form}}")
    texts = []
    for value in values:
        texts.append(", ".join(map(str, value)) if isinstance(value, list) else str(value))
    return " or ".join(texts) or "none"
