"""An artifact with the records of a scale: its rows and columns, the runs of a cell, its table."""

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

from tape_exp.paper import special
from tape_exp.paper.artifact import Artifact
from tape_exp.paper.captions import KNOWS_DIGITS, notes
from tape_exp.results import legacy, statistics
from tape_exp.results.derived import value_of
from tape_exp.results.experiment import experiment_of
from tape_exp.results.query import fits, where
from tape_exp.results.record import Record
from tape_exp.results.statistics import Value, lead
from tape_exp.results.store import commits
from tape_exp.results.tables import Cell, Column, Table
from tape_exp.settings.errors import one_of, warn

INTERVALS: dict[str, Callable[[Mapping[int, Value]], Value]] = {
    "seeds": statistics.over_seeds,
    "samples": statistics.over_samples,
    "error": statistics.with_error,
    "count": lambda runs: Value([*runs.values()][-1].number),  # the same with every seed
}


@dataclass
class Row:
    """A row of the table."""

    labels: dict[str, str]
    words: list[str]  # the overrides of its runs
    seeds: int | None = None  # how many these have; None: as many as are asked for
    keys: dict[str, Any] = field(default_factory=dict)  # that their records must have besides


class View:
    """An artifact at a scale: its rows and columns, the runs of each cell, and its table."""

    def __init__(self, artifact: Artifact, scale: str, records: Sequence[Record]) -> None:
        self.artifact = artifact
        self.scale = scale
        self._by_task: dict[str, list[Record]] = {}
        for record in records:
            self._by_task.setdefault(record.settings["task"], []).append(record)
        self._cells: dict[tuple[str, ...], list[Record]] = {}
        self.experiment = cache(experiment_of)
        self.common = [*artifact.overrides, *artifact.at.get(scale, [])]

    # ---- rows, columns and the runs of a cell ----

    @cached_property
    def rows(self) -> list[Row]:
        """Every row: the product of the dimensions."""
        found = []
        known = self.artifact.values.get(self.scale, {})
        for part in self.parts():
            dimensions = [name for name in part if name not in ("seeds", "scales")]
            labels = (self._labels(name, part[name]).items() for name in dimensions)
            for chosen in itertools.product(*labels):
                names = dict(zip(dimensions, (label for label, _ in chosen), strict=True))
                words = [fill(word, known) for _, words in chosen for word in words]
                found.append(Row(names, words, part.get("seeds")))
        return found

    def parts(self) -> list[dict[str, Any]]:
        """The products of dimensions that rows are of, at this scale."""
        rows = self.artifact.rows
        parts = rows if isinstance(rows, list) else [rows]
        return [part for part in parts if self.scale in part.get("scales", [self.scale])]

    def _labels(self, name: str, labels: Any) -> dict[str, list[str]]:
        """Label -> overrides."""
        if isinstance(labels, str):
            return {str(label): [] for label in next(iter(self.lookup(labels)), [""])}
        if isinstance(labels, list):
            return {str(label): [f"{name}={label}"] for label in labels}
        return {str(label): list(words or ()) for label, words in labels.items()}

    @cached_property
    def columns(self) -> list[Column]:
        """Every column, in order; a pair of them where the paper has numbers too."""
        sides = {"paper": {"paper"}, "ours": {"metric", "text", "show"}}
        return [
            Column(template, spec, who, at)
            for template, spec in self.artifact.columns.items()
            if self.scale in spec.get("scales", [self.scale])
            for ours, theirs in self._each(spec)
            for who, at in (("paper", theirs), ("ours", ours))
            if at is not None and spec.keys() & sides[who]
        ]

    def _each(self, spec: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
        """The values of a column's placeholders for us, and for the paper at its own lengths."""
        each = spec.get("each", {})
        lists = [self._values(v, spec.get("where", [])) for v in each.values()]
        lengths = self.artifact.paper.get("lengths") if "paper" in spec else None
        by_key = lists != [[None]] and len(each) == 1 and isinstance(next(iter(each.values())), str)
        if lengths and by_key:
            (name,) = each
            pairs = itertools.zip_longest(reversed(lists[0]), reversed(lengths))
            for ours, theirs in reversed([*pairs]):
                yield tuple(None if n is None else {name: n} for n in (ours, theirs))  # type: ignore[misc]
        else:
            for values in itertools.product(*lists):
                yield (at := dict(zip(each, values, strict=True))), at

    def _values(self, values: Any, words: Sequence[str]) -> list[Any]:
        """A list, or that of a key of the records (a single value is a list of one)."""
        if not isinstance(values, str):
            return list(values)
        value = next(iter(self.lookup(values, self.fitting([*self.common, *words]))), None)
        return list(value) if isinstance(value, list) else [value]

    def runs(self, row: Row, column: Column | None = None) -> list[Record]:
        """The newest record of each seed of a cell, up to as many as its row says; without a column
        those of its row.
        """
        if column is None and (ours := [each for each in self.columns if each.who == "ours"]):
            return flat_list([self.runs(row, each) for each in ours])
        every = self.of_words(self.words(row, column), row.keys)
        return [run for run in every if row.seeds is None or run["seed"] < row.seeds]

    def words(self, row: Row, column: Column | None = None) -> tuple[str, ...]:
        """The overrides of the runs of a cell, the scale among them."""
        words = [*self.common, *row.words]
        if column:
            known = self.artifact.values.get(self.scale, {}) | column.at | row.labels
            words += [fill(word, known) for word in column.spec.get("where", [])]
        scaled = any(word.startswith("scale=") for word in words)
        return (*words, *([] if scaled else [f"scale={self.scale}"]))

    def of_words(
        self, words: tuple[str, ...], keys: Mapping[str, Any] | None = None
    ) -> list[Record]:
        """The newest record of each seed that these overrides made, and no further ones."""
        if words not in self._cells:
            scaled = any(word.startswith("scale=") for word in words) or self.scale == "ladder"
            overrides = [*words, *([] if scaled else [f"scale={self.scale}"])]
            asked = where(overrides)
            newest = {}
            for run in self.of_task(words):  # by time
                if run.is_legacy:
                    same = legacy.is_of(run, asked, keys or {})
                else:
                    same = self.is_of(run, overrides)
                if same:
                    newest[run.seed] = run
            self._cells[words] = [newest[seed] for seed in sorted(newest)]
        return self._cells[words]

    def is_of(self, run: Record, overrides: Sequence[str]) -> bool:
        """Whether a run is of the experiment that overrides name."""
        experiment = self.experiment(tuple(overrides))
        return experiment is not None and experiment.is_same(run.experiment)

    def of_task(self, words: Sequence[str]) -> list[Record]:
        """The records of the task that overrides name, by time; without one all records."""
        asked = where(words)
        tasks = [asked["task"]] if "task" in asked else self._by_task
        return [record for task in tasks for record in self._by_task.get(task, [])]

    def fitting(self, words: Sequence[str]) -> list[Record]:
        """The records, by time, whose config has the values of overrides."""
        scaled = any(word.startswith("scale=") for word in words) or self.scale == "ladder"
        asked = where([*words, *([] if scaled else [f"scale={self.scale}"])])
        return [record for record in self.of_task(words) if fits(record.settings, asked)]

    @cached_property
    def all_runs(self) -> dict[str, list[Record]]:
        """The runs of every row that has some, by its label."""
        return {label_of(row): runs for row in self.rows if (runs := self.runs(row))}

    def lookup(self, key: str, runs: Sequence[Record] | None = None) -> list[Any]:
        """What runs, by default all that there are, have at a key of their config, among their
        metrics or as a fact of the record, each value once.
        """
        every = self.fitting(self.common) if runs is None else runs
        values: list[Any] = []
        for run in every:
            known = (run, run.metrics, run.settings)
            value = next((each[key] for each in known if each.get(key) is not None), None)
            if value is not None and value not in values:
                values.append(value)
        return values

    # ---- the table ----

    @cached_property
    def table(self) -> Table | None:
        """Its table; None where there is nothing to show."""
        artifact = self.artifact
        if not artifact.source and not self.all_runs:
            return None
        if artifact.source:
            return special.TABLES[artifact.source](self)
        *outer, last = names = self.dimensions()
        rows: list[dict[str, Cell]] = []
        shown: set[str] = set()
        for _, together in itertools.groupby(self.rows, lambda row: [row.labels[n] for n in outer]):
            group = [*together]
            for row in group:
                runs = {run["run"] for run in self.runs(row)}
                if artifact.once and runs <= shown:
                    continue
                shown |= runs
                cells = self._row(row, last)
                if not any(cells[c.name] for c in self.columns if c.who == "ours") and runs:
                    continue  # of a label that these runs do not have, such as a deeper layer
                rows.append(cells)
            rows += self._baseline(next((row for row in group if self.runs(row)), group[0]), last)
        for column in self.columns:
            measured = column.who == "ours" and "metric" in column.spec
            if measured and not any(cells.get(column.name) for cells in rows):
                warn(f"{artifact.name}: no run has what column {column.name} shows.")
        head = [*map(Column, names), *self.columns, *map(Column, artifact.provenance)]
        table = Table(head, rows, names, self.caption())
        return special.FINISH[artifact.finish](self, table) if artifact.finish else table

    def dimensions(self) -> list[str]:
        """The names of the dimensions, which are those of the first columns."""
        return [name for name in self.parts()[0] if name not in ("seeds", "scales")]

    def _row(self, row: Row, last: str) -> dict[str, Cell]:
        runs = self.runs(row)
        told = KNOWS_DIGITS * any(run.get("knows_digits") for run in runs)
        cells: dict[str, Cell] = {**row.labels, last: row.labels[last] + told}
        cells |= {column.name: self.cell(row, column) for column in self.columns}
        return cells | self.origin(runs)

    def cell(self, row: Row, column: Column) -> Cell:
        """What is in a cell: a value, a text, or None where nothing is known."""
        spec = column.spec
        known = column.at | row.labels
        if any(row.labels[name] not in labels for name, labels in spec.get("rows", {}).items()):
            return None
        if column.who == "paper":
            return paper_value(self.artifact.paper, fill(spec["paper"], known))
        if "text" in spec:
            return spec["text"].get(row.labels[self.dimensions()[-1]], "")
        runs = self.runs(row, column)
        if "show" in spec:
            return self.filled(spec["show"], runs) if runs else None
        if "lead" in spec:
            return self._lead(row, column)
        return self.measured(runs, fill(spec["metric"], known), spec)

    def measured(
        self, runs: Sequence[Record], metric: str, spec: Mapping[str, Any], interval: str = ""
    ) -> Value | None:
        """A metric over runs, with the interval that the column asks for."""
        values = {run["seed"]: value for run in runs if (value := value_of(run.metrics, metric))}
        if not values:
            return None
        kind = interval or spec.get("interval", "seeds")
        if kind == "trials":
            value = statistics.over_trials(values, trials_of(runs[0]["config"]["task"], metric))
        else:
            one_of("interval", kind, ("trials", *INTERVALS))
            value = INTERVALS[kind](values)
        return value.times(spec.get("times", 1))

    def _lead(self, row: Row, column: Column) -> Value | str | None:
        """The paired difference from the row of another model; empty in that row itself."""
        spec = column.spec
        last = self.dimensions()[-1]
        model = row.labels[last]
        other = fill(spec["lead"]["over"], column.at)
        if model == other or model not in spec["lead"].get("of", [model]):
            return ""
        metric = fill(spec["metric"], column.at | row.labels)
        labels = row.labels | {last: other}
        pair = [row, *(each for each in self.rows if each.labels == labels)]
        values = [self.measured(self.runs(each, column), metric, spec) for each in pair]
        ours, theirs = [*values, None][:2]
        return lead(ours, theirs) if ours and theirs else None

    def _baseline(self, row: Row, last: str) -> list[dict[str, Cell]]:
        """The row of the unigram model: the entropy of the test set's own token counts."""
        cells: dict[str, Cell] = {}
        for column in self.columns:
            if "unigram" in column.spec and column.who == "ours":
                metric = fill(column.spec["unigram"], column.at | row.labels)
                for number in self.lookup(metric, self.runs(row, column)[:1]):
                    cells[column.name] = Value(number)
        return [{**row.labels, last: "unigram", **cells}] if cells else []

    def origin(self, runs: Sequence[Record]) -> dict[str, Cell]:
        """Where the numbers of a row come from: seeds, scale and commits."""
        if not runs:
            return {}
        precisions = sorted({run["precision"] for run in runs if "precision" in run})
        several = f" ({', '.join(precisions)})" if len(precisions) > 1 else ""
        seeds = str(len({run["seed"] for run in runs}))
        scale = self.artifact.place.get(self.scale) or self.scale
        return {"seeds": seeds, "scale": f"{scale}{several}", "commit": commits(runs)}

    # ---- the caption ----

    def filled(self, text: str, runs: Sequence[Record] | None = None) -> str:
        """A text with the values of keys in braces: several are listed, numbers as a range; none
        where all are null.
        """

        def value(match: re.Match) -> str:
            key = match[1]
            form = match[2] or ""
            if key == "scale":
                return self.artifact.place.get(self.scale) or self.scale
            if key.startswith("paper."):
                return str(select(self.artifact.paper, key.removeprefix("paper.")))
            values = self.lookup(key, runs)
            if values and all(isinstance(v, int | float) for v in values):
                return " to ".join(f"{v:{form}}" for v in sorted({min(values), max(values)}))
            told = [", ".join(map(str, v)) if isinstance(v, list) else str(v) for v in values]
            return " or ".join(told) or "none"

        return re.sub(r"\{([\w./@]+)(?::([^}]*))?\}", value, text)

    def caption(self) -> str:
        """The caption, with what only the records tell: how they differ, and what was read."""
        body = self.filled(self.artifact.caption, flat_list(self.all_runs.values()))
        return " ".join([f"{self.artifact.title}. {body}".strip(), *notes(self, self.all_runs)])


def paper_value(paper: Mapping[str, Any], path: str) -> Value | None:
    """The paper's number at ``perplexity.tape.1024``; a pair is a number and its standard error."""
    found = select(paper, path)
    if isinstance(found, list):
        number, error = found
        return Value(number, number - error, number + error, error=True)
    return None if found is None else Value(found)


def select(node: Any, path: str) -> Any:
    """What a nested mapping has at a dotted key; None where it has nothing.

    The numbers of a list are by the ``lengths`` or ``layers`` of the section.
    """
    places = node.get("lengths") or node.get("layers") if isinstance(node, Mapping) else None
    for key in path.split("."):
        if isinstance(node, list) and places:
            node = dict(zip(places, node, strict=True))
        node = {str(k): v for k, v in node.items()}.get(key) if isinstance(node, Mapping) else None
    return node


def fill(text: str, values: Mapping[str, Any]) -> str:
    """The text with ``{name}`` replaced by what is known; None is ``null``."""
    known = {name: "null" if value is None else str(value) for name, value in values.items()}
    return re.sub(r"\{(\w+)\}", lambda match: known.get(match[1], match[0]), text)


def trials_of(task: Mapping[str, Any], metric: str) -> int:
    """How many trials a metric of a recorded ``task`` is of: all have as many, or
    ``passkey/accuracy@512`` those of its length.
    """
    trials = task["trials"]
    if isinstance(trials, int):
        return trials
    by_length = dict(zip(task["lengths"], trials, strict=True))
    return by_length[int(metric.rpartition("@")[2])]


def label_of(row: Row) -> str:
    """What a run is called in lists: ``tape 5 digits``."""
    return " ".join(reversed([*row.labels.values()]))


def flat_list(runs: Iterable[Sequence[Record]]) -> list[Record]:
    """The runs of all rows or columns, each once."""
    return [*{run["run"]: run for found in runs for run in found}.values()]
