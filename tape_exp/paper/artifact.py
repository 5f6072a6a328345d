"""A table or figure of the paper: ``conf/paper/<name>.yaml``, its runs, and its table.

The file says which runs are a row (``rows``: the overrides that make them, which are also the keys
by which their records are found), and what a column measures (``columns``). docs/results.md
explains every key.
"""

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from tape_exp.paper import special, statistics
from tape_exp.paper.records import Record, commits, fits, keys_of, reported, varying, where
from tape_exp.paper.statistics import Value, lead
from tape_exp.paper.tables import Cell, Column, Table
from tape_exp.settings import folders
from tape_exp.settings.errors import ConfigError, did_you_mean
from tape_exp.settings.naming import display_name
from tape_exp.settings.plugins import names_in, yaml_of

SCALES = ("smoke", "rung5", "rung8", "rung12", "rung20", "ladder", "small", "paper")
GPU = {"small": "a GPU", "paper": "a GPU"}
COLUMN = {
    *("metric", "paper", "text", "show", "lead", "unigram"),  # what is in its cells
    *("each", "where", "rows", "seeds_of", "digits", "times", "interval", "heading"),
}
BUILTIN = "builtin_"


@dataclass(kw_only=True)
class Artifact:
    """One table or figure, with the records of a scale once :func:`at_scale` has selected them.

    Args:
        name: of its YAML and of what is rendered.
        title: one line, as in the paper's caption.
        rows: dimension -> its labels, which name configs (``model: [rope, tape]``), or label ->
            overrides, or a key of the records that lists them; or a list of such products.
        columns: heading -> what is in the cells.
        overrides: of every run.
        at: scale -> further overrides of every run, and of the runs that it begins from.
        values: scale -> what stands for ``{name}`` in the overrides of rows.
        claim: what the paper says of it (:mod:`tape_exp.paper.claims`).
        scales: those that it is of besides smoke, and what each needs that a CPU lacks.
        place: what pages call a scale, where it is not that of runs.
        only, needs: the only scale that it is of, and what that needs.
        trainer: for the paper's scale.
        caption: what was measured and how; ``{task.train_length}`` is a key of its records.
        figures: what is drawn (:mod:`tape_exp.paper.figures`).
        source: the function in :mod:`tape_exp.paper.special` that makes the table of other records.
        finish: the function there that completes the table.
        runs_of: the artifact whose runs these are.
        command: what measures it, where that is not ``paper run``.
        provenance: the last columns.
    """

    name: str
    title: str
    rows: Any = field(default_factory=dict)
    columns: dict[str, dict[str, Any]] = field(default_factory=dict)
    overrides: list[str] = field(default_factory=list)
    at: dict[str, list[str]] = field(default_factory=dict)
    values: dict[str, dict[str, str]] = field(default_factory=dict)
    claim: dict[str, Any] = field(default_factory=dict)
    scales: dict[str, str] = field(default_factory=lambda: dict(GPU))
    place: dict[str, str] = field(default_factory=dict)
    only: str = ""
    needs: str = ""
    trainer: str = "gpu"
    caption: str = ""
    figures: list[dict[str, Any]] = field(default_factory=list)
    source: str = ""
    finish: str = ""
    runs_of: str = ""
    command: str = ""
    provenance: list[str] = field(default_factory=lambda: ["seeds", "scale", "commit"])

    def __post_init__(self) -> None:
        for heading, column in self.columns.items():
            if wrong := next((key for key in column if key not in COLUMN), None):
                raise ConfigError(
                    f"conf/paper/{self.name}.yaml: {wrong} in column {heading}"
                    f"{did_you_mean(wrong, COLUMN)} Known: {', '.join(sorted(COLUMN))}."
                )

    @property
    def paper(self) -> dict[str, Any]:
        """What the paper reports of it."""
        return reported().get(self.name, {})

    def all_scales(self) -> tuple[str, ...]:
        """The scales that it is of."""
        return (self.only,) if self.only else ("smoke", *self.scales)

    @property
    def results(self) -> Path:
        """Where its tables and figures are: ``results/`` of the clone, or of the package whose
        ``conf/paper/`` it is of.
        """
        path = yaml_of("paper", self.name)
        if path is None or path.is_relative_to(folders.CONF):
            return folders.ROOT / "results"
        return path.parents[2] / "results"

    def run_command(self, scale: str) -> str:
        """The command that measures what is missing at a scale."""
        trainer = f" trainer={self.trainer}" if scale == "paper" else ""
        return self.command or f"tape-exp paper run {self.name} scale={scale} seeds=0,1,2{trainer}"


def load(name: str) -> Artifact:
    """The artifact of that name. Raises :class:`ConfigError` with the nearest known name."""
    if name not in names():
        raise ConfigError(
            f"artifact {name}{did_you_mean(name, names())} Known: {', '.join(names())}."
        )
    path = yaml_of("paper", name)
    assert path is not None  # it is a name
    try:
        artifact = Artifact(name=name, **yaml.safe_load(path.read_text()))
        if artifact.runs_of:
            runs = load(artifact.runs_of)
            artifact = replace(
                artifact, rows=runs.rows, overrides=runs.overrides, command=runs.command
            )
        return artifact
    except (TypeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).replace("Artifact.__init__()", "").split())
        raise ConfigError(f"{path} is no artifact ({reason}).") from error


def names() -> list[str]:
    """Every artifact that has a YAML."""
    return names_in("paper")


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
        """Of several records of a seed the newest of those whose data the most rows read."""
        if words not in self._cells:
            best: dict[int, Record] = {}
            for run in self.fitting(words, row.keys):  # ordered by time
                before = best.setdefault(run["seed"], run)
                if self.shared[data_of(run)] >= self.shared[data_of(before)]:
                    best[run["seed"]] = run
            self._cells[words] = [best[seed] for seed in sorted(best)]
        return self._cells[words]

    @cached_property
    def shared(self) -> Counter:
        """How many rows read the data of a seed."""
        rows = [
            {data_of(run) for run in self.fitting(self.words(row), row.keys)} for row in self.rows
        ]
        return Counter(data for row in rows for data in row)

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
        for row in self.rows:
            runs = {run["run"] for run in self.runs(row)}
            if artifact.runs_of and runs <= shown:
                continue
            shown |= runs
            cells = self._row(row, columns)
            if not any(cells[c.name] for c in columns if c.who == "ours") and runs:
                continue  # of a label that these runs do not have, such as a deeper layer
            rows.append(cells)
            if self._ends_part(row) and (baseline := self._baseline(row, columns)):
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

    def _ends_part(self, row: Row) -> bool:
        """Whether a row is the last before another label of the outer dimensions, or of all."""
        every = self.rows
        place = next(i for i, each in enumerate(every) if each.labels == row.labels)
        outer = self.dimensions()[:-1]
        after = every[place + 1] if place + 1 < len(every) else None
        return after is None or any(after.labels[name] != row.labels[name] for name in outer)

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


DIGITS = "†"
INTERVALS: dict[str, Callable[[Mapping[int, Value]], Value]] = {
    "seeds": statistics.over_seeds,
    "samples": statistics.over_samples,
    "error": statistics.with_error,
}
TWO_SEEDS = "Two seeds: the mean, and both values in brackets."


def notes(view: View, runs: Mapping[str, list[Record]]) -> list[str]:
    """What a caption adds: two seeds, unplanned differences between rows, corpora, commits."""
    every, sentences = flat_list(runs), []
    if any(len({run["seed"] for run in found}) == 2 for found in runs.values()):
        sentences.append(TWO_SEEDS)
    claim, compared = (
        view.artifact.claim,
        {row.labels[name] for row in view.rows for name in view.dimensions()[-1:]},
    )
    rivals = claim.get("than", [])
    if rivals and compared - {*rivals, *claim.get("better", ["tape"])}:
        sentences.append(
            f"The claim is tested against {listed([*map(display_name, rivals)])} only."
        )
    if any(run.get("knows_digits") for run in every):
        sentences.append(
            f"{DIGITS} is told which tokens are digits, and is no rival of the others."
        )
    if replaced := sorted({name for run in every for name in replaced_corpora(run)}):
        sentences.append(
            f"In place of {listed(replaced)}: text that Python carries, from few files and the "
            "same for all seeds, so that intervals leave out what other text would give."
        )
    if same_data(every) is False:
        sentences.append("Models of one seed read different data: they CANNOT BE COMPARED.")
    elif any("text" in run["config"]["task"] for run in every) and same_data(every) is None:
        sentences.append("Whether the runs of a seed read the same data is not recorded for all.")
    declared = {word.partition("=")[0] for row in view.rows for word in row.words}
    declared |= {w.partition("=")[0] for c in view.columns for w in c.spec.get("where", [])}
    if differ := varying([*runs.values()], declared | {"model", "precision"}):
        text = "; ".join(
            f"{key} ({', '.join(map(str, v))})" for key, v in sorted(differ.items())[:5]
        )
        sentences.append(f"Rows also differ in {text}.")
    several = commits(every).split()
    threads = sorted({n for run in every if (n := run.get("hardware", {}).get("threads"))})
    mixed = [f"of {len(several)} commits"] if len(several) > 1 else []
    mixed += [f"with {listed([*map(str, threads)])} threads"] if len(threads) > 1 else []
    if mixed:
        sentences.append(f"The runs are {', '.join(mixed)}.")
    if any(commit.endswith("+") for commit in several):
        sentences.append("+ after a commit: uncommitted changes.")
    return sentences


def same_data(runs: Sequence[Record]) -> bool | None:
    """Whether all runs of a seed and a task read the same data; None where records do not tell."""
    seen: dict[tuple[int, str], set[tuple[Any, ...]]] = {}
    for run in runs:
        seen.setdefault((run["seed"], run["config"]["task"]["name"]), set()).add(data_of(run))
    for data in seen.values():
        versions = [version for _, version, _ in data if version is not None]
        if len(versions) > len({*versions}):
            return False
    return True if all(len(data) == 1 for data in seen.values()) else None


def data_of(run: Record) -> tuple[Any, ...]:
    """The data that a run read: their seed, and their fingerprint with its version."""
    return run["seed"], run.get("fingerprint_version"), run.get("data_fingerprint")


def replaced_corpora(run: Record) -> list[str]:
    """The corpora in whose place a run read built-in text."""
    task = run["config"]["task"]
    texts = {task.get("name"): task.get("text"), **(task.get("tests") or {})}
    return [
        text.get("name", name)
        for name, text in texts.items()
        if isinstance(text, dict) and text.get("source") == "builtin"
    ]


def metrics_of(run: Record) -> dict[str, float]:
    """The metrics of a run, its numbers of parameters and steps, and what is derived from them;
    those of built-in text by the name of the corpus that it stands for.
    """
    if "_metrics" not in run:
        numbers = {key: part for key, part in run.items() if isinstance(part, int | float)}
        metrics = {key.removeprefix(BUILTIN): number for key, number in run["metrics"].items()}
        run["_metrics"] = numbers | metrics | special.derived(run)
    return run["_metrics"]


def value_of(metrics: Mapping[str, float], metric: str) -> Value | None:
    """A metric of a run, with its interval over samples if it has one."""
    if metric not in metrics:
        return None
    number, error = metrics[metric], metrics.get(f"{metric}_stderr")
    if error is not None:
        return Value(number, number - statistics.Z * error, number + statistics.Z * error)
    return Value(number, metrics.get(f"{metric}_low"), metrics.get(f"{metric}_high"))


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


def listed(words: Sequence[str]) -> str:
    """``a, b and c``."""
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def first_of(values: Sequence[Any]) -> Any:
    """The first value; None of none."""
    return values[0] if values else None


def flat_list(runs: Mapping[str, Sequence[Record]]) -> list[Record]:
    """The runs of all rows, each once."""
    return [*{run["run"]: run for found in runs.values() for run in found}.values()]
