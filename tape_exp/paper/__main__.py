"""The paper's tables and figures: ``tape-exp paper list | run | render | cost``."""

import argparse
import json
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tape_exp.artifacts.artifact import load, names
from tape_exp.experiments.execute import add_options
from tape_exp.machine.files import write_atomically
from tape_exp.results.store import read_records
from tape_exp.settings import folders
from tape_exp.settings.commands import command
from tape_exp.settings.errors import one_of, warn
from tape_exp.settings.parser import ArgumentParser
from tape_exp.training.logs import set_up_logging

if TYPE_CHECKING:
    from tape_exp.artifacts.view import View

log = logging.getLogger("tape_exp")
MANY_RECORDS = 100  # with fewer nobody waits


@command
def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; mistakes are one sentence and exit code 2, failed runs exit code 1."""
    parser = ArgumentParser("tape-exp paper", description="List, run or draw the paper's results.")
    shown = "list | run | render | cost"
    commands = parser.add_subparsers(dest="command", required=True, metavar=shown)
    _add(commands, "list", "list the artifacts, and how many runs of each are recorded")
    run = _add(commands, "run", "run what artifacts lack, then draw all tables and figures")
    chosen = "artifacts (or all), scale=, seed=0,1 and any key"
    run.add_argument("words", nargs="+", metavar="artifact | key=value", help=chosen)
    only = "run only those of --dry-run whose name fits a pattern, as '* 12 digits'"
    run.add_argument("--only", action="append", default=[], metavar="RUNS", help=only)
    add_options(run)
    draw = _add(commands, "render", "draw tables and figures from the committed records")
    draw.add_argument("words", nargs="*", metavar="artifact", help="(default: all)")
    kinds = "write these too: tex of tables, pdf and png of figures, as tex,pdf"
    draw.add_argument("--formats", default="", help=kinds)
    _add(commands, "cost", "write results/costs.json: the GPU-hours of the paper's scale")
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or given[0] not in commands.choices:
        parser.parse_args(given)  # prints the help, or raises
    name, *words = given
    options = commands.choices[name].parse_intermixed_args(words)
    set_up_logging()
    return COMMANDS[name](options)


def _add(commands: Any, name: str, purpose: str) -> argparse.ArgumentParser:
    """Add a subcommand, whose help and whose line in the list of all say what it is for."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=purpose, description=f"{purpose[0].upper()}{purpose[1:]}."
    )
    return parser


def list_artifacts(options: argparse.Namespace) -> int:
    """Print each artifact's title, and how many runs of three seeds are recorded at each scale."""
    from tape_exp.artifacts.cells import Cells
    from tape_exp.artifacts.runs import runs_at
    from tape_exp.results.index import RecordIndex

    index = RecordIndex(read_records())
    print("Recorded runs of seeds 0, 1 and 2, of those that each scale has:\n")
    for name in names():
        artifact = load(name)
        print(f"{name:24} {artifact.title}")
        for scale in artifact.scales if artifact.rows else ():
            cells = Cells(artifact, scale, index)
            recorded = []
            for seed in range(3):
                for run in runs_at(cells, seed):
                    recorded.append(index.of_seed(run.overrides, seed) is not None)
            print(f"{'':24}   {scale}: {sum(recorded)} of {len(recorded)}")
    return 0


def run_artifacts(options: argparse.Namespace) -> int:
    """Run what artifacts lack, then render; status 1 if a run failed, 85 if time ran out."""
    from tape_exp.artifacts import requests, runs
    from tape_exp.experiments import execute, grid
    from tape_exp.experiments.runnable import runnable

    execute.check_options(options)
    words = grid.run_overrides(options.words)
    asked = requests.requested(words)
    specs = runs.specs_of_artifacts(*asked, only=options.only, recorded=options.slurm)
    able = runnable(specs, all_of_them=True)
    outcome = execute.execute(able, options, ["paper", "run", *options.words])
    if outcome is None:
        return 0
    render(())
    return outcome.status()


def render(chosen: Sequence[str], formats: Sequence[str] = ()) -> int:
    """Write tables, figures and the overview of results/ at every scale that has records: of the
    chosen artifacts, or of all.
    """
    from tape_exp.artifacts.figures import draw_all, figures
    from tape_exp.paper import pages

    for kind in formats:
        one_of("--formats", kind, ("tex", "pdf", "png"))
    for name in chosen:
        load(name)  # a wrong name is told before anything is written
    records = read_records()
    if len(records) > MANY_RECORDS:
        log.info("Finding each cell's runs in %d records takes about a minute.", len(records))
    drawings = []
    paths = []
    judgements: dict[Path, list[pages.Judgement]] = {}
    written = set()
    for judged in pages.judged(records):
        artifact = judged.artifact
        results = artifact.results
        judgements.setdefault(results, []).extend(judged.judgements)
        if chosen and artifact.name not in chosen:
            continue
        if chosen and not judged.shown:
            warn(f"{artifact.name}: nothing is recorded; {artifact.run_command('smoke')} runs it.")
        for view in judged.shown:
            written.add(results)
            view.warn_of_empty_columns()
            paths += write_table(view, "tex" in formats)
            for suffix, draw in figures(view):
                for kind in ("svg", *formats):
                    if kind != "tex":
                        path = results / "figures" / f"{artifact.name}-{view.scale}{suffix}.{kind}"
                        drawings.append((draw, path))
    draw_all(drawings)
    if chosen:
        paths += [path for _, path in drawings]
        print(*paths, sep="\n")
    for results in sorted(written):
        of_folder = judgements[results]
        write_atomically(results / "tables" / "claims.csv", pages.claims_table(of_folder).csv())
        overview = pages.overview(of_folder, "tables/{0}-{1}.csv")
        write_atomically(results / "README.md", f"# Results\n\n{overview}")
        print(results / "README.md")
    if not written and not chosen:
        warn(f"{folders.RECORDS} has no records; tape-exp paper run adds some.")
    return 0 if written else 1


def write_table(view: "View", as_latex: bool) -> list[Path]:
    """Write the table of a view that has one, for programs and as LaTeX; return the paths."""
    from tape_exp.results.latex import latex

    table = view.table
    assert table is not None
    stem = f"{view.artifact.name}-{view.scale}"
    texts = {f"{stem}.csv": table.csv()}
    if as_latex:
        texts[f"{stem}.tex"] = latex(table, stem)
    paths = []
    for name, text in texts.items():
        paths.append(view.artifact.results / "tables" / name)
        write_atomically(paths[-1], text)
    return paths


def write_costs(options: argparse.Namespace) -> int:
    """Write results/costs.json: GPU-hours to train each artifact's runs and their bases."""
    from tape_exp.artifacts import runs
    from tape_exp.experiments.bases import key_of
    from tape_exp.machine.hardware import PEAKS
    from tape_exp.training import plan

    known: dict[str, float] = {}
    needed = {}
    for artifact in map(load, names()):
        if not artifact.rows or "paper" not in artifact.scales:
            continue
        specs = {}
        for spec in runs.specs_of_artifacts([artifact], "paper", [0], records=[]):
            specs[key_of(spec)] = spec
        for key in specs.keys() - known.keys():
            decoder, task = plan.blank_parts(specs[key].config)
            flops = plan.flops_per_token(decoder, task, recompute=False) if task.trains else 0.0
            known[key] = plan.hours(plan.tokens(task) * flops, PEAKS[plan.ASSUMED][0])
        hours = round(3 * sum(known[key] for key in specs), 1)
        needed[artifact.name] = {"runs": 3 * len(specs), "gpu_hours": hours}
    content = {"gpu": plan.ASSUMED, "utilisation": plan.UTILISATION, "seeds": 3}
    text = json.dumps({**content, "artifacts": needed}, indent=1)
    write_atomically(folders.RESULTS / "costs.json", text + "\n")
    return 0


COMMANDS = {
    "list": list_artifacts,
    "run": run_artifacts,
    "render": lambda options: render(options.words, [*filter(None, options.formats.split(","))]),
    "cost": write_costs,
}

if __name__ == "__main__":
    sys.exit(main())
