"""An artifact with the records of a scale: its rows and columns, the runs of a cell, its table."""

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any

from tape_exp.paper import special, statistics
from tape_exp.paper.artifact import Artifact
from tape_exp.paper.captions import DIGITS, notes
from tape_exp.paper.derived import metrics_of, value_of
from tape_exp.paper.records import Record, commits, fits, keys_of, where
from tape_exp.paper.statistics import Value, lead
from tape_exp.paper.tables import Cell, Column, Table

INTERVALS: dict[str, Callable[[Mapping[int, Value]], Value]] = {
    "seeds": statistics.over_seeds,
    "samples": statistics.over_samples,
    "error": statistics.with_error,
}


@dataclass
class Row:
    """The labels of a row, the overrides of its runs, how many seeds these have, and keys that
    their records must have besides.
    """

    labels: dict[str, str]
    words: list[str]
    seeds: int | None = None
    keys: dict[str, Any] = field(default_factory=dict)


class View:
    """An artifact at a scale: its rows and columns, the runs of each cell, and its table."""

    def __init__(self, artifact: Artifact, scale: str, records: Sequence[Record]) -> None:
        self.artifact, self.scale = artifact, scale
        self._by_task: dict[str, list[Record]] = {}
        for record in records:
            self._by_task.setdefault(keys_of(record)["task"], []).append(record)
        self._cells: dict[tuple[str, ...], list[Record]] = {}
        self.common = [*artifact.overrides, *artifact.at.get(scale, [])]

    # ---- rows, columns and the runs of a cell ----

    @cached_property
    def rows(self) -> list[Row]:
        """Every row: the product of the dimensions."""
        return [*self._rows()]

    def _rows(self) -> Iterator[Row]:
        rows = self.artifact.rows
        for product in rows if isinstance(rows, list) else [rows]:
            dimensions = {
                name: self._labels(name, v) for name, v in product.items() if name != "seeds"
            }
            for labels in itertools.product(*dimensions.values()):
                chosen = [
                    dimensions[name][label] for name, label in zip(dimensions, labels, strict=True)
                ]
                known = self.artifact.values.get(self.scale, {})
                words = [fill(word, known) for word in itertools.chain(*chosen)]
                yield Row(dict(zip(dimensions, labels, strict=True)), words, product.get("seeds"))

    def _labels(self, name: str, labels: Any) -> dict[str, list[str]]:
        """Label -> overrides."""
        if isinstance(labels, str):
            return {str(label): [] for label in first_of(self.lookup(labels)) or [""]}
        if isinstance(labels, list):
            return {str(label): [f"{name}={label}"] for label in labels}
        return {str(label): list(words or ()) for label, words in labels.items()}

    @cached_property
    def columns(self) -> list[Column]:
        """Every column, in order; a pair of them where the paper has numbers too."""
        return [*self._columns()]

    def _columns(self) -> Iterator[Column]:
        for template, spec in self.artifact.columns.items():
            for ours, theirs in self._each(spec):
                sides = [("paper", theirs)] if "paper" in spec else []
                sides += [("ours", ours)] if spec.keys() & {"metric", "text", "show"} else []
                for who, at in sides:
                    if at is not None:
                        yield Column(template, spec, who, at)

    def _each(self, spec: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
        """The values of a column's placeholders for us, and for the paper at its own lengths."""
        each = spec.get("each", {})
        lists = [self._values(v, spec.get("where", [])) for v in each.values()]
        lengths = self.artifact.paper.get("lengths") if "paper" in spec else None
        if lengths and len(each) == 1 and isinstance(next(iter(each.values())), str):
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
        value = first_of(self.lookup(values, self.fitting([*self.common, *words])))
        return list(value) if isinstance(value, list) else [value]

    def runs(self, row: Row, column: Column | None = None) -> list[Record]:
        """The newest record of each seed of a cell; without a column those of its row."""
        if column is None:
            cells = [self.runs(row, each) for each in self.columns if each.who == "ours"]
            every = {
                run["run"]: run
                for runs in cells or [self._by_seed(self.words(row), row)]
                for run in runs
            }
            return [*every.values()]
        return self._by_seed(self.words(row, column), row)

    def words(self, row: Row, column: Column | None = None) -> tuple[str, ...]:
        """The overrides of the runs of a cell, the scale among them."""
        further = (
            [fill(word, column.at | row.labels) for word in column.spec.get("where", [])]
            if column
            else []
        )
        words = [*self.common, *row.words, *further]
        scaled = any(word.startswith("scale=") for word in words)
        return (*words, *([] if scaled else [f"scale={self.scale}"]))

    def _by_seed(self, words: tuple[str, ...], row: Row) -> list[Record]:
        if words not in self._cells:
            newest = {run["seed"]: run for run in self.fitting(words, row.keys)}  # ordered by time
            self._cells[words] = [newest[seed] for seed in sorted(newest)]
        return self._cells[words]

    def fitting(
        self, words: Sequence[str], keys: Mapping[str, Any] = MappingProxyType({})
    ) -> list[Record]:
        """The records, ordered by time, whose config has the values of overrides and keys."""
        scaled = any(word.startswith("scale=") for word in words) or self.scale == "ladder"
        asked = where([*words, *([] if scaled else [f"scale={self.scale}"])]) | dict(keys)
        every = [
            r for task, rs in self._by_task.items() if asked.get("task", task) == task for r in rs
        ]
        return [record for record in every if fits(keys_of(record), asked)]

    @cached_property
    def all_runs(self) -> dict[str, list[Record]]:
        """The runs of every row that has some, by its label."""
        found = {label_of(row): self.runs(row) for row in self.rows}
        return {label: runs for label, runs in found.items() if runs}

    def lookup(self, key: str, runs: Sequence[Record] | None = None) -> list[Any]:
        """What runs, by default all that there are, have at a key of their config, among their
        metrics or as a fact of the record, each value once.
        """
        every = self.fitting(self.common) if runs is None else runs
        values: list[Any] = []
        for run in every:
            known = (run, metrics_of(run), keys_of(run))
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
        columns = self.columns
        rows: list[dict[str, Cell]] = []
        shown: set[str] = set()
        parts = itertools.groupby(self.rows, lambda row: [*row.labels.values()][:-1])
        last = [[*part][-1] for _, part in parts]
        for row in self.rows:
            runs = {run["run"] for run in self.runs(row)}
            if artifact.once and runs <= shown:
                continue
            shown |= runs
            cells = self._row(row, columns)
            if not any(cells[c.name] for c in columns if c.who == "ours") and runs:
                continue  # of a label that these runs do not have, such as a deeper layer
            rows.append(cells)
            if row in last and (baseline := self._baseline(row, columns)):
                rows.append(baseline)
        head = [*(Column(name, {}, "", {}) for name in self.dimensions()), *columns]
        head += [Column(name, {}, "", {}) for name in artifact.provenance]
        table = Table(head, rows, self.dimensions(), self.caption())
        return special.FINISH[artifact.finish](self, table) if artifact.finish else table

    def dimensions(self) -> list[str]:
        """The names of the dimensions, which are those of the first columns."""
        rows = self.artifact.rows
        first = rows[0] if isinstance(rows, list) else rows
        return [name for name in first if name != "seeds"]

    def _row(self, row: Row, columns: Sequence[Column]) -> dict[str, Cell]:
        runs = self.runs(row)
        cells: dict[str, Cell] = dict(row.labels)
        if any(run.get("knows_digits") for run in runs):
            last = self.dimensions()[-1]
            cells[last] = f"{row.labels[last]}{DIGITS}"
        cells |= {column.name: self.cell(row, column) for column in columns}
        return cells | self.origin(runs)

    def cell(self, row: Row, column: Column) -> Cell:
        """What is in a cell: a value, a text, or None where nothing is known."""
        spec, known = column.spec, column.at | row.labels
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
        values = {
            run["seed"]: value for run in runs if (value := value_of(metrics_of(run), metric))
        }
        if not values:
            return None
        kind = interval or spec.get("interval", "seeds")
        if kind == "count":  # the same with every seed
            value = Value([*values.values()][-1].number)
        elif kind == "trials":
            value = statistics.over_trials(values, runs[0]["config"]["task"]["trials"])
        else:
            value = INTERVALS[kind](values)
        return value.times(spec.get("times", 1))

    def _lead(self, row: Row, column: Column) -> Value | str | None:
        """The paired difference from the row of another model; empty in that row itself."""
        spec, last = column.spec, self.dimensions()[-1]
        other = fill(spec["lead"]["over"], column.at)
        if row.labels[last] == other or row.labels[last] not in spec["lead"].get(
            "of", [row.labels[last]]
        ):
            return ""
        labels = row.labels | {last: other}
        theirs = next((each for each in self.rows if each.labels == labels), None)
        metric = fill(spec["metric"], column.at | row.labels)
        values = [
            self.measured(self.runs(each, column), metric, spec) if each else None
            for each in (row, theirs)
        ]
        return lead(*values) if values[0] and values[1] else None  # type: ignore[arg-type]

    def _baseline(self, row: Row, columns: Sequence[Column]) -> dict[str, Cell]:
        """The row of the unigram model: the entropy of the test set's own token counts."""
        cells: dict[str, Cell] = {}
        for column in columns:
            if "unigram" in column.spec and column.who == "ours":
                metric = fill(column.spec["unigram"], column.at | row.labels)
                for number in self.lookup(metric, self.runs(row, column)[:1]):
                    cells[column.name] = Value(number)
        return cells and {**row.labels, self.dimensions()[-1]: "unigram", **cells}

    def origin(self, runs: Sequence[Record]) -> dict[str, Cell]:
        """Where the numbers of a row come from: seeds, scale and commits."""
        if not runs:
            return {}
        precisions = sorted({run["precision"] for run in runs if "precision" in run})
        several = f" ({', '.join(precisions)})" if len(precisions) > 1 else ""
        seeds = str(len({run["seed"] for run in runs}))
        return {"seeds": seeds, "scale": f"{self.scale}{several}", "commit": commits(runs)}

    # ---- the caption ----

    def filled(self, text: str, runs: Sequence[Record] | None = None) -> str:
        """A text with the values of keys in braces: several are listed, numbers as a range."""

        def value(match: re.Match) -> str:
            key, form = match[1], match[2] or ""
            if key == "scale":
                return self.scale
            if key.startswith("paper."):
                return str(select(self.artifact.paper, key.removeprefix("paper.")))
            values = self.lookup(key, runs)
            if values and all(isinstance(v, int | float) for v in values):
                return " to ".join(f"{v:{form}}" for v in sorted({min(values), max(values)}))
            return " or ".join(
                ", ".join(map(str, v)) if isinstance(v, list) else str(v) for v in values
            )

        return re.sub(r"\{([\w./@]+)(?::([^}]*))?\}", value, text)

    def caption(self) -> str:
        """The caption, with what the records alone can tell: how they differ, and what was read."""
        runs = self.all_runs
        body = (
            f"{self.artifact.title}. {self.filled(self.artifact.caption, flat_list(runs))}".strip()
        )
        return " ".join(filter(None, [body, *notes(self, runs)]))


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
    """The text with ``{name}`` replaced by what is known."""
    return re.sub(r"\{(\w+)\}", lambda match: str(values.get(match[1], match[0])), text)


def label_of(row: Row) -> str:
    """What a run is called in lists: ``tape rung5``."""
    return " ".join(reversed([*row.labels.values()]))


def first_of(values: Sequence[Any]) -> Any:
    """The first value; None of none."""
    return values[0] if values else None


def flat_list(runs: Mapping[str, Sequence[Record]]) -> list[Record]:
    """The runs of all rows, each once."""
    return [*{run["run"]: run for found in runs.values() for run in found}.values()]
