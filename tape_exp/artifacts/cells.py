"""The cells of an artifact at a scale: its rows and columns, the runs of each, and their value."""

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tape_exp.artifacts.artifact import Artifact, paper_value, select
from tape_exp.artifacts.rows import Row, dimensions_of, fill, label_of, once, rows_of
from tape_exp.results import statistics
from tape_exp.results.derived import value_of
from tape_exp.results.index import RecordIndex
from tape_exp.results.record import Record
from tape_exp.results.statistics import Value, lead
from tape_exp.results.tables import Cell, Column, span
from tape_exp.settings.errors import ConfigError, did_you_mean, one_of

INTERVALS: dict[str, Callable[[Mapping[int, Value]], Value]] = {
    "seeds": statistics.over_seeds,
    "samples": statistics.over_samples,
    "error": statistics.with_error,
    "count": statistics.over_counts,
}
OURS = {"metric", "text", "show"}  # keys of a column that has numbers of our runs


@dataclass(frozen=True)
class Place:
    """Where a column measures: the values of its placeholders for us, and for the paper; None
    where one of the two has nothing there.
    """

    ours: dict[str, Any] | None
    paper: dict[str, Any] | None


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

    # ---- rows ----

    @cached_property
    def rows(self) -> list[Row]:
        """Every row: the product of the dimensions."""
        if self._rows is not None:
            return [*self._rows]
        values = self.artifact.values.get(self.scale, {})
        rows: list[Row] = []
        for block in self.blocks():
            rows += rows_of(block, values, self.lookup)
        return rows

    def blocks(self) -> list[dict[str, Any]]:
        """List the products of dimensions that rows are of, at this scale."""
        rows = self.artifact.rows
        blocks = rows if isinstance(rows, list) else [rows]
        return [block for block in blocks if self.scale in block.get("scales", [self.scale])]

    def dimensions(self) -> list[str]:
        """Name the dimensions, which are the first columns."""
        return dimensions_of(self.blocks()[0])

    # ---- columns ----

    @cached_property
    def columns(self) -> list[Column]:
        """Every column, in order; a pair of them where the paper has numbers too."""
        columns = []
        for template, spec in self.artifact.columns.items():
            if self.scale in spec.get("scales", [self.scale]):
                columns += self._columns_of(template, spec)
        return columns

    def _columns_of(self, template: str, spec: dict[str, Any]) -> list[Column]:
        """Make those of a key of the YAML."""
        columns = []
        for place in self._places(spec):
            if place.paper is not None and "paper" in spec:
                columns.append(Column(template, spec, "paper", place.paper))
            if place.ours is not None and OURS & spec.keys():
                columns.append(Column(template, spec, "ours", place.ours))
        return columns

    @cached_property
    def our_columns(self) -> list[Column]:
        """Those with numbers of our runs."""
        return [column for column in self.columns if column.who == "ours"]

    def columns_named(self, name: str) -> list[Column]:
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

    def _places(self, spec: dict[str, Any]) -> list[Place]:
        """List every place of a column: the product of what its placeholders stand for.

        The lengths that ``each: {n: task.test_lengths}`` reads from our records stand beside the
        paper's own.
        """
        each = spec.get("each", {})
        values = [self._values(listed, spec) for listed in each.values()]
        lengths = self.artifact.paper.get("lengths") if "paper" in spec else None
        if lengths and len(each) == 1 and values != [[None]]:
            ((name, listed),) = each.items()
            if isinstance(listed, str):
                return lengths_from_longest(name, values[0], lengths)
        places = []
        for combination in itertools.product(*values):
            at = dict(zip(each, combination, strict=True))
            places.append(Place(at, at))
        return places

    def _values(self, listed: Any, spec: dict[str, Any]) -> list[Any]:
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
            for found in self.lookup(listed, self.runs_with(row, spec.get("where", []))):
                several = found if isinstance(found, list) else [found]
                values += [value for value in several if value not in values]
        if all(isinstance(value, int | float) for value in values):
            values.sort()
        return values or [None]

    # ---- the runs of a cell ----

    def words(self, row: Row, column: Column | None = None) -> tuple[str, ...]:
        """List the overrides of the runs of a cell, the scale among them."""
        further: list[str] = []
        if column:
            values = self.artifact.values.get(self.scale, {}) | column.at | row.labels
            further = [fill(word, values) for word in column.spec.get("where", [])]
        return self._words_with(row, further)

    def _words_with(self, row: Row, further: Sequence[str]) -> tuple[str, ...]:
        words = [*self.common, *row.words, *further]
        if not names_scale(words):
            words.append(f"scale={self.scale}")
        return tuple(words)

    def runs(self, row: Row, column: Column | None = None) -> list[Record]:
        """Find the newest record of each seed of a cell, up to as many as its row says; without a
        column those of its row.
        """
        if self._runs_of is not None:
            return self._runs_of(row)
        if column is None and self.our_columns:
            return once(self.runs(row, ours) for ours in self.our_columns)
        runs = self.index.of_experiment(self.words(row, column))
        return [run for run in runs if row.seeds is None or run.seed < row.seeds]

    def runs_with(self, row: Row, words: Sequence[str]) -> list[Record]:
        """Find the runs of a row with further overrides, those of a column still to be made."""
        if self._runs_of is not None:
            return self._runs_of(row)
        return self.index.of_experiment(self._words_with(row, words))

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

    def lookup(self, key: str, runs: Sequence[Record] | None = None) -> list[Any]:
        """List what runs, by default all that there are, have at a key of their config, among their
        metrics or as a fact of the record, each value once.
        """
        if runs is None:
            words = [*self.common]
            if not names_scale(words) and self.scale != "ladder":
                words.append(f"scale={self.scale}")
            runs = self.index.fitting(words)
        values: list[Any] = []
        for run in runs:
            value = fact_of(run, key)
            if value is not None and value not in values:
                values.append(value)
        return values

    # ---- the value of a cell ----

    def cell(self, row: Row, column: Column) -> Cell:
        """Say what is in a cell: a value, a text, or None where nothing is known."""
        spec = column.spec
        values = column.at | row.labels
        if not has_row(spec, row):
            return None
        if column.who == "paper":
            return paper_value(self.artifact.paper, fill(spec["paper"], values))
        if "text" in spec:
            return spec["text"].get(row.labels[self.dimensions()[-1]], "")
        runs = self.runs(row, column)
        if "show" in spec:
            return self.filled(spec["show"], runs) if runs else None
        if "lead" in spec:
            return self._lead(row, column)
        return self.measured(runs, fill(spec["metric"], values), spec)

    def measured(
        self, runs: Sequence[Record], metric: str, spec: Mapping[str, Any], interval: str = ""
    ) -> Value | None:
        """Average a metric over runs, with the interval that the column asks for."""
        values = {}
        for run in runs:
            value = value_of(run.metrics, metric)
            if value is not None:
                values[run.seed] = value
        if not values:
            return None
        kind = interval or spec.get("interval", "seeds")
        if kind == "trials":
            mean = statistics.over_trials(values, trials_of(runs[0].config["task"], metric))
        else:
            one_of("interval", kind, ("trials", *INTERVALS))
            mean = INTERVALS[kind](values)
        return mean.times(spec.get("times", 1))

    def _lead(self, row: Row, column: Column) -> Value | str | None:
        """Compute the paired difference from the row of another model; empty in that row itself."""
        spec = column.spec
        last = self.dimensions()[-1]
        model = row.labels[last]
        rival = fill(spec["lead"]["over"], column.at)
        if model == rival or model not in spec["lead"].get("of", [model]):
            return ""
        labels = row.labels | {last: rival}
        rivals_row = next((other for other in self.rows if other.labels == labels), None)
        if rivals_row is None:
            return None
        metric = fill(spec["metric"], column.at | row.labels)
        ours = self.measured(self.runs(row, column), metric, spec)
        theirs = self.measured(self.runs(rivals_row, column), metric, spec)
        return lead(ours, theirs) if ours and theirs else None

    # ---- texts with values of records ----

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
        values = self.lookup(key, runs)
        if values and all(isinstance(value, int | float) for value in values):
            return span(f"{min(values):{form}}", f"{max(values):{form}}")
        texts = []
        for value in values:
            texts.append(", ".join(map(str, value)) if isinstance(value, list) else str(value))
        return " or ".join(texts) or "none"


def lengths_from_longest(name: str, ours: Sequence[Any], paper: Sequence[Any]) -> list[Place]:
    """Pair our lengths and the paper's own as values of a placeholder, the longest beside the
    longest: 64 without a number of the paper, then 128 beside 1,024.

    >>> for place in lengths_from_longest("n", [64, 128], [1024]):
    ...     print(place.ours, place.paper)
    {'n': 64} None
    {'n': 128} {'n': 1024}
    """
    places = []
    for length, papers_length in itertools.zip_longest(reversed(ours), reversed(paper)):
        at = None if length is None else {name: length}
        papers_at = None if papers_length is None else {name: papers_length}
        places.append(Place(at, papers_at))
    return places[::-1]


def names_scale(words: Sequence[str]) -> bool:
    """Say whether one of the overrides is ``scale=``."""
    return any(word.startswith("scale=") for word in words)


def has_row(spec: Mapping[str, Any], row: Row) -> bool:
    """Say whether a column has a cell in a row: ``rows: {size: [5 digits]}`` leaves out others."""
    limits = spec.get("rows", {})
    return all(row.labels[name] in labels for name, labels in limits.items())


def fact_of(run: Record, key: str) -> Any:
    """Return what a run has at a key, as a fact of its record, a metric or a setting, or None."""
    for facts in (run, run.metrics, run.settings):
        if facts.get(key) is not None:
            return facts[key]
    return None


def trials_of(task: Mapping[str, Any], metric: str) -> int:
    """Return how many trials a metric of a recorded ``task`` is of: all have as many, or
    ``passkey/accuracy@512`` those of its length.
    """
    trials = task["trials"]
    if isinstance(trials, int):
        return trials
    by_length = dict(zip(task["lengths"], trials, strict=True))
    return by_length[int(metric.rpartition("@")[2])]
