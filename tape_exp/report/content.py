"""What the page holds: artifacts with their tables and figures, and runs, from the records and
tables in results/.
"""

import base64
import csv
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tape_exp.paper import tables
from tape_exp.paper.artifacts import SCALES, Artifact, Record
from tape_exp.paper.claims import Verdict
from tape_exp.paper.page import standing
from tape_exp.report import plots, rerun
from tape_exp.settings.errors import ConfigError


@dataclass
class Table:
    """Cells as they are read; the caption is plain text."""

    columns: list[str]
    rows: list[list[str]]
    caption: str


@dataclass
class Plot:
    """An interactive figure: its place in the page's data, and its words."""

    id: str
    title: str
    alternative: str


@dataclass
class Picture:
    """A committed PNG, where an artifact has a figure and nothing to draw it from."""

    source: str
    alternative: str


@dataclass
class AtScale:
    """An artifact at a scale that has records."""

    scale: str
    table: Table | None
    plots: list[Plot]
    pictures: list[Picture]
    runs: list[str]
    command: str


@dataclass
class Section:
    """An artifact. ``gaps`` says why cells are empty; without records ``expected`` holds the
    paper's numbers beside them.
    """

    name: str
    title: str
    claim: str
    judged: str
    verdict: Verdict
    source: str
    scales: list[AtScale]
    expected: Table
    gaps: list[str]
    command: str

    @property
    def recorded(self) -> str:
        """How many runs at which scale."""
        return ", ".join(f"{at.scale}: {len(at.runs) or 1}" for at in self.scales) or "none"


@dataclass
class Run:
    """A record, told: ``cells`` are those of the table of runs."""

    name: str
    cells: list[str]
    facts: list[tuple[str, str]]
    metrics: list[tuple[str, str]]
    config: str
    command: str
    curve: Plot | None


RUN_COLUMNS = ["run", "task", "scale", "model", "peft", "seed", "started", "training (s)", "commit"]


@dataclass
class Content:
    """The page."""

    sections: list[Section] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)  # id -> what figures.js draws

    def add(self, id_: str, figure: plots.Grid | plots.Lines) -> Plot:
        """Keep a figure's data, and describe it in words."""
        self.figures[id_] = plots.as_json(figure)
        return Plot(id_, figure.title, describe(figure))


def gather(artifacts: Sequence[Artifact], records: Sequence[Record], results: Path) -> Content:
    """The content of the page.

    Args:
        artifacts: in the order of the page.
        records: all that are committed.
        results: where tables and figures were rendered to.

    Raises:
        ConfigError: a table that the records would fill has not been rendered.
    """
    content = Content()
    for artifact in artifacts:
        found = {scale: artifact.collect(scale, records) for scale in SCALES}
        scales = [
            _at_scale(content, artifact, scale, mine, results)
            for scale, mine in found.items()
            if mine
        ]
        paper = artifact.paper()
        source = (
            f"{paper['source']}: {paper['setting']}"
            if paper.keys() >= {"source", "setting"}
            else ""
        )
        told = (
            artifact.name,
            artifact.title,
            artifact.claim,
            *standing(artifact, found),
            source,
            scales,
        )
        content.sections.append(
            Section(*told, expected(artifact), artifact.gaps(found), artifact.command("smoke"))
        )
    content.runs = [_run(content, record) for record in records]
    return content


def _at_scale(
    content: Content, artifact: Artifact, scale: str, found: dict[str, list[Record]], results: Path
) -> AtScale:
    stem = f"{artifact.name}-{scale}"
    figures = sorted((results / "figures").glob(f"{stem}*.png"), key=lambda path: path.stem)
    table = read_table(results / "tables" / stem)
    if table is None and not figures:
        raise ConfigError(
            f"results/ has records of {artifact.name} at scale {scale} but no table or figure; run "
            "`make tables`."
        )
    drawn: list[plots.Grid | plots.Lines] = []
    if table:
        drawn += plots.lines(table.columns, table.rows, table.caption)
    drawn += plots.grids(artifact, found)
    shown = [content.add(f"{stem}-{number}", figure) for number, figure in enumerate(drawn)]
    pictures = (
        [] if shown else [_picture(path, f"{artifact.title}, scale {scale}") for path in figures]
    )
    names = [record["run"] for mine in found.values() for record in mine if "run" in record]
    return AtScale(scale, table, shown, pictures, names, artifact.command(scale))


def read_table(stem: Path) -> Table | None:
    """A rendered table: its CSV, and the caption below its Markdown; None where there is none."""
    source = stem.with_name(f"{stem.name}.csv")
    if not source.exists():
        return None
    columns, *rows = csv.reader(source.read_text().splitlines())
    caption = stem.with_name(f"{stem.name}.md").read_text().rstrip().rsplit("\n\n", 1)[-1]
    return Table(columns, rows, caption)


def expected(artifact: Artifact) -> Table:
    """What the paper reports, a number a row, and nothing beside it."""
    paper = artifact.paper()
    rows = [[*keys, value, ""] for keys, value in _numbers(paper, paper)]
    if len({row[0] for row in rows}) == 1:  # one kind of number
        rows = [row[1:] for row in rows]
    width = max(map(len, rows), default=4)
    padded = [[*row[:-2], *[""] * (width - len(row)), *row[-2:]] for row in rows]
    padded = padded or [[model, *[""] * (width - 1)] for model in artifact.models]
    return Table(
        ["of", *["at"] * (width - 3), "paper", "ours"], padded, f"{artifact.title}: not run."
    )


def _numbers(node: Any, paper: dict[str, Any]) -> Iterator[tuple[list[str], str]]:
    """(keys, number) of all numbers below a node; of a list of one number a length or layer, that
    is a key too.
    """
    if isinstance(node, dict):
        for key, below in node.items():
            if key not in ("lengths", "layers") and not isinstance(below, str):
                yield from (([str(key), *keys], value) for keys, value in _numbers(below, paper))
    elif isinstance(node, list):
        places = next(
            (paper[key] for key in ("lengths", "layers") if len(paper.get(key, [])) == len(node)),
            None,
        )
        if places is None:
            yield [], " ± ".join(map(str, node))
        else:
            yield from (
                ([str(place)], str(value)) for place, value in zip(places, node, strict=True)
            )
    else:
        yield [], str(node)


def _picture(path: Path, alternative: str) -> Picture:
    return Picture(
        f"data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}", alternative
    )


def _run(content: Content, record: Record) -> Run:
    config = record["config"]
    peft = config.get("peft", {"name": "none"})["name"]
    seconds = record.get("seconds", {})
    started = record["started"][:16].replace("T", " ")
    identity = [
        config["task"]["name"],
        config["scale"],
        config["model"]["name"],
        peft,
        str(record["seed"]),
    ]
    hardware = record.get("hardware", {})
    machine = ", ".join(
        [
            *hardware.get("gpus", []),
            str(hardware.get("cpu", "")),
            f"{hardware.get('threads')} threads",
        ]
    )
    facts = [("machine", machine)] if hardware else []
    for key, unit in (
        ("parameters", ""),
        ("trained_parameters", ""),
        ("steps", ""),
        ("tokens", ""),
    ):
        if key in record:
            facts.append((key.replace("_", " ") + unit, f"{record[key]:,}"))
    facts += [(f"{key} (s)", str(value)) for key, value in seconds.items()]
    facts += [
        (
            "packages",
            ", ".join(f"{name} {version}" for name, version in record.get("packages", {}).items()),
        )
    ]
    return Run(
        record["run"],
        [
            record["run"],
            *identity,
            started,
            str(seconds.get("training", "")),
            tables.commit(record),
        ],
        facts,
        [
            (name, f"{value:.6g}" if isinstance(value, float) else str(value))
            for name, value in record["metrics"].items()
        ],
        yaml.safe_dump(config, sort_keys=False, allow_unicode=True),
        rerun.command(record),
        content.add(f"curve-{record['run']}", plots.curve(record["curves"]))
        if record.get("curves")
        else None,
    )


def describe(figure: plots.Grid | plots.Lines) -> str:
    """A figure in a sentence or two, for those who do not see it."""
    if isinstance(figure, plots.Lines):
        names = ", ".join(line.name for line in figure.lines)
        return (
            f"Lines of {figure.ylabel or 'values'} against "
            f"{figure.xlabel or 'the columns of the table'}: {names}."
        )
    values = [value for row in figure.z for value in row if value is not None]
    told = (
        f"Heatmap of {figure.label}, {len(figure.y)} rows ({figure.ylabel}) by {len(figure.x)} "
        f"columns ({figure.xlabel}); "
    )
    told += f"from {min(values):.4g} to {max(values):.4g}, mean {sum(values) / len(values):.4g}."
    if figure.trained:
        told += (
            f" Training saw the first {figure.trained[0]} rows and {figure.trained[1]} columns, "
            "which are framed."
        )
    return told


def figure_data(content: Content) -> str:
    """All figures as JSON that can stand inside a script element."""
    return re.sub(
        "[<>&]",
        lambda match: f"\\u{ord(match[0]):04x}",
        json.dumps(content.figures, separators=(",", ":")),
    )
