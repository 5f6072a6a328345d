"""``tape-exp report``: every table, figure and run on one page, which opens from disk.

``<folder>/index.html`` has the artifacts with what is recorded of them, comparisons of other runs,
the bench, and a table of runs; their figures are beside it. In a clone these are the committed
records, elsewhere those of the working directory.
"""

import argparse
import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from tape_exp.machine.files import write_atomically
from tape_exp.paper import artifacts, compare, rerun
from tape_exp.paper.artifacts import Artifact, Record, Records
from tape_exp.paper.claims import Verdict
from tape_exp.paper.page import AFTER, BEFORE, VERDICTS, AtScales, judged
from tape_exp.paper.records import known_records
from tape_exp.paper.tables import Table, commits, for_readers
from tape_exp.paper.values import Cell, Missing
from tape_exp.settings import folders
from tape_exp.settings.commands import command


@dataclass
class AtScale:
    """An artifact at a scale that has records; ``figures`` are the names of their files."""

    place: str  # "scale smoke", or empty
    table: Table | None
    figures: list[str]
    without: str  # why it has no figures, if its records could draw some
    runs: list[str]
    command: str


@dataclass
class Section:
    """An artifact, its claim and the verdict at the largest scale that tests it."""

    artifact: Artifact
    judged: str
    verdict: Verdict
    scales: list[AtScale]
    gaps: list[str]

    @property
    def recorded(self) -> str:
        """How many runs at which scale."""
        return ", ".join(f"{at.place} {len(at.runs) or 1}".strip() for at in self.scales) or "none"


@command
def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page."""
    parser = argparse.ArgumentParser(
        prog="tape-exp report", description="One page of all tables, figures and runs."
    )
    default = folders.ROOT / "report"
    parser.add_argument("--out", type=Path, default=default, help="folder (default: report)")
    out = parser.parse_args(arguments).out
    logging.basicConfig(level=logging.WARNING)
    records = known_records()
    sections = sections_of(records, out)
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined
    )
    environment.trim_blocks = environment.lstrip_blocks = True
    text = environment.get_template("template.html").render(
        sections=sections,
        runs=table_of_runs(records),
        bench=bench(out),
        why=why,
        before=BEFORE,
        verdicts=VERDICTS,
        after=AFTER,
    )
    write_atomically(out / "index.html", text)
    print(f"{out / 'index.html'}  {len(sections)} artifacts, {len(records)} runs")
    return 0


def sections_of(records: Sequence[Record], out: Path) -> list[Section]:
    """The artifacts, then a comparison for each setting of the runs that none of them shows."""
    sections, rest = [], {record["run"]: record for record in records if "run" in record}
    for artifact in map(artifacts.load, artifacts.names()):
        collected = artifact.at_scales(records)
        if folders.INSTALLED and not any(collected.values()):
            continue  # a page of one's own runs is not filled with what the paper has
        sections.append(section(artifact, collected, artifact.gaps(collected), out))
        for name in (name for at in sections[-1].scales for name in at.runs):
            rest.pop(name, None)
    for comparison, scale, runs in compare.comparisons([*rest.values()]):
        if sound := comparison.sound(scale, runs):
            sections.append(section(comparison, {scale: sound}, [], out))
    return sections


def section(artifact: Artifact, collected: AtScales, gaps: list[str], out: Path) -> Section:
    """An artifact in words, its figures drawn."""
    scale, verdict = judged(artifact, collected)
    scales = [at_scale(artifact, s, records, out) for s, records in collected.items() if records]
    return Section(artifact, artifact.place(scale) if scale else "", verdict, scales, gaps)


def at_scale(artifact: Artifact, scale: str, records: Records, out: Path) -> AtScale:
    """An artifact at a scale; its figures are drawn below ``out``."""
    names = []
    for number, figure in enumerate(artifact.shown(scale, records)):
        names.append(f"{artifact.name}-{scale}-{number}.svg")
        figure.draw(out / "figures" / names[-1])
    table = artifact.table(scale, records)
    return AtScale(
        artifact.place(scale),
        for_readers(table) if table else None,
        names,
        artifact.without_figures(records),
        [record["run"] for runs in records.values() for record in runs if "run" in record],
        artifact.command(scale),
    )


def table_of_runs(records: Sequence[Record]) -> list[dict[str, object]]:
    """A row for each record, with the command that repeats it."""
    rows = []
    for record in records:
        config = record["config"]
        names = {key: config.get(key, {}).get("name", "none") for key in ("task", "model", "peft")}
        rows.append(
            {"run": record.get("run", ""), **names, "scale": config["scale"]}
            | {"seed": record["seed"], "started": record["started"][:16].replace("T", " ")}
            | {"training (s)": record.get("seconds", {}).get("training", "")}
            | {"commit": commits([record]), "command": rerun.command(record)}
        )
    return rows


def bench(out: Path) -> list[tuple[str, str, list[str]]]:
    """Tables of ``results/bench``: name, HTML, and pictures, which are copied below ``out``."""
    tables = []
    for path in sorted((artifacts.RESULTS / "bench").glob("*.csv")):
        picture = path.with_suffix(".svg")
        if picture.exists():
            write_atomically(out / "figures" / picture.name, picture.read_bytes())
        html = pandas.read_csv(path, dtype=str, keep_default_na=False).to_html(index=False)
        tables.append((path.stem, html, [picture.name] if picture.exists() else []))
    return tables


def why(cell: Cell) -> str:
    """The interval of a number, or why a cell is empty."""
    if isinstance(cell, Missing):
        return cell.reason
    if isinstance(cell, str) or cell.low is None or cell.high is None:
        return ""
    return f"{cell.kind}: {cell.low:.4g} to {cell.high:.4g}" + (f", n = {cell.n}" * (cell.n > 1))


if __name__ == "__main__":
    sys.exit(main())
