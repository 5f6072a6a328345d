"""What the page holds: artifacts with their tables and figures, and runs, from the records."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import yaml
from markupsafe import Markup

from tape_exp.drawing.curves import Panel
from tape_exp.paper import compare, rerun, searches
from tape_exp.paper.artifacts import UNFIT, Artifact, Record, Records
from tape_exp.paper.claims import Verdict
from tape_exp.paper.page import AtScales, judged
from tape_exp.paper.records import warn
from tape_exp.paper.tables import Row, Table, columns, commits, for_readers
from tape_exp.paper.values import Cell, Missing, Value
from tape_exp.report import plots
from tape_exp.settings import folders


@dataclass
class Plot:
    """An interactive figure: its place in the page's data, and its words."""

    id: str
    title: str
    alternative: str


@dataclass
class AtScale:
    """An artifact at a scale that has records."""

    place: str  # "scale smoke", or empty
    table: Table | None
    plots: list[Plot]
    without: str  # why it has no figures, if its records could draw some
    runs: list[str]
    command: str


@dataclass
class Section:
    """An artifact; ``gaps`` says why cells are empty, ``expected`` is its table without records."""

    name: str
    title: str
    claim: str
    judged: str
    verdict: Verdict
    source: str
    scales: list[AtScale]
    expected: Table | None
    gaps: list[str]
    command: str

    @property
    def recorded(self) -> str:
        """How many runs at which scale."""
        return ", ".join(f"{at.place} {len(at.runs) or 1}".strip() for at in self.scales) or "none"


@dataclass
class Run:
    """A record in words: ``cells`` are those of the table of runs."""

    name: str
    cells: Row
    facts: list[tuple[str, str]]
    metrics: Table
    config: str
    command: str
    curve: Plot | None


@dataclass
class Searched:
    """A search of learning rates and other keys."""

    name: str
    title: str
    table: Table
    plots: list[Plot]
    command: str


RUN_COLUMNS = columns(
    ("run", "task", "scale", "model", "peft", "seed", "started", "training (s)", "commit")
)


@dataclass
class Content:
    """The page."""

    sections: list[Section] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    searches: list[Searched] = field(default_factory=list)
    benches: list[tuple[str, str]] = field(default_factory=list)  # titles, and whole pages
    figures: dict[str, Any] = field(default_factory=dict)  # id -> what figures.js draws

    def add(self, id_: str, plot: plots.Grid | Panel) -> Plot:
        """Keep a plot's data, and describe it in words."""
        self.figures[id_] = plots.as_json(plot)
        return Plot(id_, plot.title, plots.describe(plot))

    def table_of_runs(self) -> Table:
        """Every record, a row each."""
        caption = "Every record; + after a commit: uncommitted changes."
        return Table(RUN_COLUMNS, [run.cells for run in self.runs], caption, label="run")


def gather(
    artifacts: Sequence[Artifact], records: Sequence[Record], found: Sequence[Record] = ()
) -> Content:
    """The content of the page.

    Args:
        artifacts: in the order of the page.
        records: all that are known.
        found: the searches that are recorded.
    """
    content, rest = Content(), {record["run"]: record for record in records if "run" in record}
    for artifact in artifacts:
        collected = artifact.at_scales(records)
        if folders.INSTALLED and not any(collected.values()):
            continue  # a page of one's own runs is not filled with what the paper has
        section = _section(content, artifact, collected)
        content.sections.append(section)
        for name in (name for at in section.scales for name in at.runs):
            rest.pop(name, None)
    for record in records:
        try:
            content.runs.append(_run(content, record))
        except UNFIT as error:
            rest.pop(record.get("run"), None)
            warn(
                f"{record.get('run', 'a record')} is not listed ({type(error).__name__}: {error})."
            )
    for comparison, scale, runs in compare.comparisons([*rest.values()]):
        if sound := comparison.sound(scale, runs):
            section = _section(content, comparison, {scale: sound})
            content.sections.append(replace(section, gaps=[]))  # nobody asked for other scales
    for search in found:
        content.searches.append(_searched(content, search))
    return content


def _section(content: Content, artifact: Artifact, collected: AtScales) -> Section:
    scale, verdict = judged(artifact, collected)
    paper = artifact.paper()
    cited = paper.keys() >= {"source", "setting"}
    return Section(
        name=artifact.name,
        title=artifact.title,
        claim=artifact.claim,
        judged=artifact.place(scale) if scale else "",
        verdict=verdict,
        source=f"{paper['source']}: {paper['setting']}" if cited else "",
        scales=[
            _at_scale(content, artifact, scale, of_scale)
            for scale, of_scale in collected.items()
            if of_scale
        ],
        expected=_shown(artifact.table(artifact.scales()[0], {})),
        gaps=artifact.gaps(collected),
        command=artifact.command(artifact.scales()[0]),
    )


def _searched(content: Content, search: Record) -> Searched:
    name, figure = search["search"], searches.figure(search)
    return Searched(
        name,
        figure.title,
        for_readers(searches.table(search)),
        [content.add(f"{name}-{i}", plot) for i, plot in enumerate(plots.plots_of(figure))],
        search["command"],
    )


def _at_scale(content: Content, artifact: Artifact, scale: str, records: Records) -> AtScale:
    figures = artifact.shown(scale, records)
    every = [plot for figure in figures for plot in plots.plots_of(figure)]
    stem = f"{artifact.name}-{scale}"
    return AtScale(
        artifact.place(scale),
        _shown(artifact.table(scale, records)),
        [content.add(f"{stem}-{number}", plot) for number, plot in enumerate(every)],
        artifact.without_figures(records),
        [record["run"] for runs in records.values() for record in runs if "run" in record],
        artifact.command(scale),
    )


def _shown(table: Table | None) -> Table | None:
    return for_readers(table) if table else None


def _run(content: Content, record: Record) -> Run:
    config, name = record["config"], record["run"]
    seconds: dict[str, float] = record.get("seconds", {})
    training = seconds.get("training")
    cells: Row = {
        "run": name,
        "task": config["task"]["name"],
        "scale": config["scale"],
        "model": config["model"]["name"],
        "peft": config.get("peft", {"name": "none"})["name"],
        "seed": Value(record["seed"], form="{number}"),
        "started": record["started"][:16].replace("T", " "),
        "training (s)": Missing("not timed") if training is None else _plain(training),
        "commit": commits([record]),
    }
    metrics: list[Row] = [
        {"metric": metric, "value": _plain(value)} for metric, value in record["metrics"].items()
    ]
    curve = record.get("curves") and plots.curve(record["curves"])
    return Run(
        name,
        cells,
        _facts(record),
        Table(columns(("metric", "value")), metrics, "What the run measured.", label="metric"),
        yaml.safe_dump(config, sort_keys=False, allow_unicode=True),
        rerun.command(record),
        content.add(f"curve-{name}", curve) if curve else None,
    )


def _plain(number: float) -> Value:
    return Value(number, form="{number:.6g}" if isinstance(number, float) else "{number}")


def _facts(record: Record) -> list[tuple[str, str]]:
    """The machine, sizes, times and packages of a run."""
    facts = []
    if hardware := record.get("hardware"):
        parts = (*hardware.get("gpus", []), hardware.get("cpu", ""))
        facts.append(("machine", ", ".join([*parts, f"{hardware.get('threads')} threads"])))
    for key in ("parameters", "trained_parameters", "steps", "tokens"):
        if key in record:
            facts.append((key.replace("_", " "), f"{record[key]:,}"))
    facts += [(f"{key} (s)", str(value)) for key, value in record.get("seconds", {}).items()]
    packages = record.get("packages", {}).items()
    return [*facts, ("packages", ", ".join(f"{name} {version}" for name, version in packages))]


def attributes(cell: Cell) -> Markup:
    """The attributes of a cell: a number to sort by, where the text is another, and its interval,
    or why it is empty.
    """
    if isinstance(cell, Missing):
        return Markup(' title="{}"').format(cell.reason)
    if isinstance(cell, str):
        return Markup("")
    value = f"{cell.number:.6g}"
    number = Markup("" if str(cell) == value else ' data-value="{}"').format(value)
    if cell.low is None or cell.high is None:
        return number
    interval = f"{cell.kind}: {cell.low:.4g} to {cell.high:.4g}"
    interval += f", n = {cell.n}" if cell.n > 1 else ""
    return number + Markup(' title="{}"').format(interval)


def figure_data(content: Content) -> str:
    """All figures as JSON that can be inside a script element."""
    return re.sub(
        "[<>&]",
        lambda match: f"\\u{ord(match[0]):04x}",
        json.dumps(content.figures, separators=(",", ":")),
    )
