"""An artifact with the records of a scale: its rows and columns, the runs of a cell, its table."""

import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tape_exp.paper import special
from tape_exp.paper.artifact import Artifact
from tape_exp.paper.captions import KNOWS_DIGITS, notes
from tape_exp.results import statistics
from tape_exp.results.derived import value_of
from tape_exp.results.experiment import experiment_of
from tape_exp.results.query import fits, where
from tape_exp.results.record import GROUPS, Record
from tape_exp.results.statistics import Value, lead
from tape_exp.results.store import commits
from tape_exp.results.tables import Cell, Column, Table, span
from tape_exp.settings.errors import ConfigError, did_you_mean, one_of, warn

INTERVALS: dict[str, Callable[[Mapping[int, Value]], Value]] = {
    "seeds": statistics.over_seeds,
    "samples": statistics.over_samples,
    "error": statistics.with_error,
    "count": statistics.over_counts,
}
OURS = {"metric", "text", "show"}  # keys of a column that has numbers of our runs


@dataclass
class Row:
    """A row of the table."""

    labels: dict[str, str]
    words: list[str]  # the overrides of its runs
    seeds: int | None = None  # how many these have; None: as many as are asked for


@dataclass(frozen=True)
class Place:
    """Where a column measures: the values of its placeholders for us, and for the paper; None
    where one of the two has nothing there.
    """

    ours: dict[str, Any] | None
    paper: dict[str, Any] | None


class View:
    """An artifact at a scale: its rows and columns, the runs of each cell, and its table.

    Args:
        artifact: what is shown.
        scale: one of its scales.
        records: by time; those that are none of its runs are left out.
        rows: in the place of those that its dimensions make.
        runs_of: the runs of a row, in the place of those that its overrides made.
    """

    def __init__(
        self,
        artifact: Artifact,
        scale: str,
        records: Sequence[Record],
        rows: Sequence[Row] | None = None,
        runs_of: Callable[[Row], list[Record]] | None = None,
    ) -> None:
        self.artifact = artifact
        self.scale = scale
        self._rows = rows
        self._runs_of = runs_of
        self._by_task: dict[str, list[Record]] = {}
        for record in records:
            self._by_task.setdefault(record.settings["task"], []).append(record)
        self._cells: dict[tuple[str, ...], list[Record]] = {}
        self.common = [*artifact.overrides, *artifact.at.get(scale, [])]

    # ---- rows, columns and the runs of a cell ----

    @cached_property
    def rows(self) -> list[Row]:
        """Every row: the product of the dimensions."""
        if self._rows is not None:
            return [*self._rows]
        rows: list[Row] = []
        for block in self.blocks():
            rows += self._rows_of(block)
        return rows

    def blocks(self) -> list[dict[str, Any]]:
        """The products of dimensions that rows are of, at this scale."""
        rows = self.artifact.rows
        blocks = rows if isinstance(rows, list) else [rows]
        return [block for block in blocks if self.scale in block.get("scales", [self.scale])]

    def _rows_of(self, block: Mapping[str, Any]) -> list[Row]:
        """The rows of one product, the last dimension varying first.

        Of ``{"size": {"5 digits": ["scale=digits5"]}, "model": ["rope", "tape"]}`` there are two,
        the first with the labels ``{"size": "5 digits", "model": "rope"}`` and the overrides
        ``["scale=digits5", "model=rope"]``.
        """
        values = self.artifact.values.get(self.scale, {})
        rows = [Row({}, [], block.get("seeds"))]
        for name in dimensions_of(block):
            labels = self._labels(name, block[name])
            longer = []
            for row, (label, overrides) in itertools.product(rows, labels.items()):
                words = [fill(word, values) for word in overrides]
                longer.append(Row({**row.labels, name: label}, [*row.words, *words], row.seeds))
            rows = longer
        return rows

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
        columns = []
        for template, spec in self.artifact.columns.items():
            if self.scale in spec.get("scales", [self.scale]):
                columns += self._columns_of(template, spec)
        return columns

    def _columns_of(self, template: str, spec: dict[str, Any]) -> list[Column]:
        """Those that a key of the YAML makes."""
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
        """The columns of a key of the YAML, ``{who} {n}``, or the one that it makes, ``ours 512``;
        none where they are of other scales.

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
        """Every place of a column: the product of what its placeholders stand for.

        The lengths that ``each: {n: task.test_lengths}`` reads from our records stand beside the
        paper's own.
        """
        each = spec.get("each", {})
        values = [self._values(listed, spec.get("where", [])) for listed in each.values()]
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

    def _values(self, values: Any, words: Sequence[str]) -> list[Any]:
        """A list, or that of a key of the records (a single value is a list of one)."""
        if not isinstance(values, str):
            return list(values)
        for row in self.rows:
            for value in self.lookup(values, self.runs_with(row, words)):
                return list(value) if isinstance(value, list) else [value]
        return [None]

    def runs(self, row: Row, column: Column | None = None) -> list[Record]:
        """The newest record of each seed of a cell, up to as many as its row says; without a column
        those of its row.
        """
        if self._runs_of is not None:
            return self._runs_of(row)
        if column is None and self.our_columns:
            return once(self.runs(row, ours) for ours in self.our_columns)
        runs = self.of_words(self.words(row, column))
        return [run for run in runs if row.seeds is None or run.seed < row.seeds]

    def runs_with(self, row: Row, words: Sequence[str]) -> list[Record]:
        """The runs of a row with further overrides, those of a column that is still to be made."""
        if self._runs_of is not None:
            return self._runs_of(row)
        named = [*self.common, *row.words, *words]
        if not names_scale(named):
            named.append(f"scale={self.scale}")
        return self.of_words(tuple(named))

    def words(self, row: Row, column: Column | None = None) -> tuple[str, ...]:
        """The overrides of the runs of a cell, the scale among them."""
        words = [*self.common, *row.words]
        if column:
            values = self.artifact.values.get(self.scale, {}) | column.at | row.labels
            words += [fill(word, values) for word in column.spec.get("where", [])]
        if not names_scale(words):
            words.append(f"scale={self.scale}")
        return tuple(words)

    def of_words(self, words: tuple[str, ...]) -> list[Record]:
        """The newest record of each seed of the experiment that overrides name, the scale among
        them; none where they do not compose.
        """
        if words not in self._cells:
            chosen = choices_of(words)
            newest: dict[int, Record] = {}
            for run in self.of_task(words):  # by time
                if fits(run.settings, chosen) and is_of(run, words):
                    warn_of_other_data(newest.get(run.seed), run)
                    newest[run.seed] = run
            self._cells[words] = [newest[seed] for seed in sorted(newest)]
        return self._cells[words]

    def of_task(self, words: Sequence[str]) -> list[Record]:
        """The records of the task that overrides name, by time; without one all records."""
        values = where(words)
        if "task" in values:
            return self._by_task.get(values["task"], [])
        return [*itertools.chain.from_iterable(self._by_task.values())]

    def fitting(self, words: Sequence[str]) -> list[Record]:
        """The records, by time, whose config has the values of overrides and, but for the ladder,
        the scale of the view: of ``["task=arithmetic"]`` at ``smoke`` those of every model.
        """
        words = [*words]
        if not names_scale(words) and self.scale != "ladder":
            words.append(f"scale={self.scale}")
        values = where(words)
        return [record for record in self.of_task(words) if fits(record.settings, values)]

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
        """What runs, by default all that there are, have at a key of their config, among their
        metrics or as a fact of the record, each value once.
        """
        values: list[Any] = []
        for run in self.fitting(self.common) if runs is None else runs:
            value = fact_of(run, key)
            if value is not None and value not in values:
                values.append(value)
        return values

    # ---- the table ----

    @cached_property
    def table(self) -> Table | None:
        """Its table; None where there is nothing to show."""
        artifact = self.artifact
        if artifact.source:
            return special.TABLES[artifact.source](self)
        if not self.all_runs:
            return None
        names = self.dimensions()
        head = [*map(Column, names), *self.columns, *map(Column, artifact.provenance)]
        table = Table(head, self._table_rows(), names, self.caption())
        return special.FINISH[artifact.finish](self, table) if artifact.finish else table

    def dimensions(self) -> list[str]:
        """The names of the dimensions, which are those of the first columns."""
        return dimensions_of(self.blocks()[0])

    def groups(self) -> list[list[Row]]:
        """The rows that follow one another and differ only in the last dimension."""
        *outer, _ = self.dimensions()

        def outer_labels(row: Row) -> list[str]:
            return [row.labels[name] for name in outer]

        return [[*rows] for _, rows in itertools.groupby(self.rows, outer_labels)]

    def _table_rows(self) -> list[dict[str, Cell]]:
        rows: list[dict[str, Cell]] = []
        shown: set[str] = set()  # names of runs
        for group in self.groups():
            for row in group:
                runs = {run.name for run in self.runs(row)}
                if self.artifact.once and runs <= shown:
                    continue
                shown |= runs
                cells = self._row(row)
                if runs and not any(cells[column.name] for column in self.our_columns):
                    continue  # of a label that these runs do not have, such as a deeper layer
                rows.append(cells)
            unigram = self._unigram_row(group)
            if unigram:
                rows.append(unigram)
        return rows

    def empty_columns(self) -> list[str]:
        """The columns of a metric that no run has."""
        if self.table is None or self.artifact.source:
            return []
        empty = []
        for column in self.our_columns:
            name = column.name
            if "metric" in column.spec and not any(row.get(name) for row in self.table.rows):
                empty.append(name)
        return empty

    def _row(self, row: Row) -> dict[str, Cell]:
        runs = self.runs(row)
        cells: dict[str, Cell] = {**row.labels}
        if any(run.get("knows_digits") for run in runs):
            last = self.dimensions()[-1]
            cells[last] = row.labels[last] + KNOWS_DIGITS
        for column in self.columns:
            cells[column.name] = self.cell(row, column)
        origin = self.origin(runs)
        if origin:
            origin["seeds"] = self.seeds_of_cells(row, cells)
        return cells | origin

    def seeds_of_cells(self, row: Row, cells: Mapping[str, Cell]) -> str:
        """How many seeds the numbers of a row have: ``3``, or ``1 to 3`` where columns differ."""
        counts = set()
        for column in self.our_columns:
            cell = cells[column.name]
            if isinstance(cell, Value) and cell.runs:
                counts.add(len(cell.runs))
        counts = counts or {len(self.runs(row))}
        return span(str(min(counts)), str(max(counts)))

    def cell(self, row: Row, column: Column) -> Cell:
        """What is in a cell: a value, a text, or None where nothing is known."""
        spec = column.spec
        values = column.at | row.labels
        if not has_row(column, row):
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
        """A metric over runs, with the interval that the column asks for."""
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
        """The paired difference from the row of another model; empty in that row itself."""
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

    def _unigram_row(self, group: Sequence[Row]) -> dict[str, Cell]:
        """The row of the unigram model below a group: the entropy of the test set's own token
        counts. Empty where no column has a key ``unigram``.
        """
        row = next((row for row in group if self.runs(row)), group[0])
        entropies: dict[str, Cell] = {}
        for column in self.our_columns:
            if "unigram" not in column.spec:
                continue
            metric = fill(column.spec["unigram"], column.at | row.labels)
            for entropy in self.lookup(metric, self.runs(row, column)[:1]):
                entropies[column.name] = Value(entropy)
        if not entropies:
            return {}
        return {**row.labels, self.dimensions()[-1]: "unigram", **entropies}

    def origin(self, runs: Sequence[Record]) -> dict[str, Cell]:
        """Where the numbers of a row come from: seeds, scale and commits."""
        if not runs:
            return {}
        scale = self.artifact.place.get(self.scale) or self.scale
        precisions = sorted({run["precision"] for run in runs if "precision" in run})
        if len(precisions) > 1:
            scale = f"{scale} ({', '.join(precisions)})"
        return {"seeds": str(len(seeds_of(runs))), "scale": scale, "commit": commits(runs)}

    # ---- the caption ----

    def filled(self, text: str, runs: Sequence[Record] | None = None) -> str:
        """A text with the values of keys in braces: several are listed, numbers as a range; none
        where all are null. ``{task.optim.lr:.4f}`` has a format.
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

    def caption(self) -> str:
        """The caption, with what only the records tell: how they differ, and what was read."""
        body = self.filled(self.artifact.caption, self.every_run)
        return " ".join([f"{self.artifact.title}. {body}".strip(), *notes(self)])


def dimensions_of(block: Mapping[str, Any]) -> list[str]:
    """The names of the dimensions of a product of rows."""
    return [name for name in block if name not in ("seeds", "scales")]


def lengths_from_longest(name: str, ours: Sequence[Any], paper: Sequence[Any]) -> list[Place]:
    """Our lengths and the paper's own as values of a placeholder, the longest beside the longest.

    ``("n", [64, 128], [1024])`` gives 64 without a number of the paper, then 128 beside 1,024.
    """
    places = []
    for length, papers_length in itertools.zip_longest(reversed(ours), reversed(paper)):
        at = None if length is None else {name: length}
        papers_at = None if papers_length is None else {name: papers_length}
        places.append(Place(at, papers_at))
    return places[::-1]


def names_scale(words: Sequence[str]) -> bool:
    """Whether one of the overrides is ``scale=``."""
    return any(word.startswith("scale=") for word in words)


def has_row(column: Column, row: Row) -> bool:
    """Whether a column has a cell in a row: ``rows: {size: [5 digits]}`` leaves others empty."""
    limits = column.spec.get("rows", {})
    return all(row.labels[name] in labels for name, labels in limits.items())


def fact_of(run: Record, key: str) -> Any:
    """What a run has at a key, as a fact of its record, a metric or a setting; None without one."""
    for facts in (run, run.metrics, run.settings):
        if facts.get(key) is not None:
            return facts[key]
    return None


def choices_of(words: Iterable[str]) -> dict[str, str]:
    """The names that overrides choose: who has others need not be compared key by key.

    >>> choices_of(["model=rope", "scale=smoke", "task.optim.lr=0.1"])
    {'model': 'rope', 'scale': 'smoke'}
    """
    asked = where(words)
    names = {group: asked.get(group) for group in (*GROUPS, "scale")}
    return {group: name for group, name in names.items() if isinstance(name, str)}


def is_of(run: Record, words: tuple[str, ...]) -> bool:
    """Whether a run is of the experiment that overrides name."""
    experiment = experiment_of(words)
    return experiment is not None and experiment.is_same(run.experiment)


def warn_of_other_data(older: Record | None, newer: Record) -> None:
    """Say so where two runs of a cell and a seed read different data: records call a folder by its
    last name, so that two of one name look the same.
    """
    if older is None or older.get("fingerprint_version") is None:
        return
    _, version, data = newer.data
    if older.data[1] == version and older.data[2] != data:
        warn(
            f"{newer.name} read other data than {older.name}, which has the same settings; the "
            "newer one is shown. Give folders of different texts different names."
        )


def seeds_of(runs: Iterable[Record]) -> set[int]:
    """The seeds of runs."""
    return {run.seed for run in runs}


def paper_value(paper: Mapping[str, Any], path: str) -> Value | None:
    """The paper's number at ``perplexity.tape.1024``; a pair is a number and its standard error."""
    number = select(paper, path)
    if isinstance(number, list):
        mean, error = number
        return Value(mean, mean - error, mean + error, error=True)
    return None if number is None else Value(number)


def select(node: Any, path: str) -> Any:
    """What a nested mapping has at a dotted key; None where it has nothing.

    The numbers of a list are by the ``lengths`` or ``layers`` of the section:
    ``select({"lengths": [512, 1024], "perplexity": {"tape": [9.1, 8.7]}}, "perplexity.tape.1024")``
    is 8.7.
    """
    places = node.get("lengths") or node.get("layers") if isinstance(node, Mapping) else None
    for key in path.split("."):
        if isinstance(node, list) and places:
            node = dict(zip(places, node, strict=True))
        if not isinstance(node, Mapping):
            return None
        node = {str(name): inner for name, inner in node.items()}.get(key)
    return node


def fill(text: str, values: Mapping[str, Any]) -> str:
    """The text with ``{name}`` replaced by what is known; None is ``null``."""

    def value_at(match: re.Match[str]) -> str:
        name = match[1]
        if name not in values:
            return match[0]
        return "null" if values[name] is None else str(values[name])

    return re.sub(r"\{(\w+)\}", value_at, text)


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


def once(runs: Iterable[Sequence[Record]]) -> list[Record]:
    """The runs of several rows or columns, each once."""
    by_name: dict[str, Record] = {}
    for some in runs:
        for run in some:
            by_name[run.name] = run
    return [*by_name.values()]
