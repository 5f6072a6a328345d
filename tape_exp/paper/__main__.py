"""The paper's tables and figures: ``tape-exp paper list | run | render | compare | cost``."""

import argparse
import json
import logging
import re
import shutil
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from tape_exp.machine.files import write_atomically
from tape_exp.paper.artifact import load, names
from tape_exp.paper.records import read_records, records_of_runs
from tape_exp.paper.view import View
from tape_exp.settings import folders
from tape_exp.settings.commands import command, log_plainly
from tape_exp.settings.errors import ConfigError

log = logging.getLogger("tape_exp")
UNBROKEN = 1000  # characters of a table where there is no terminal, as in a pipe
RESULTS = folders.ROOT / "results"


@command
def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; mistakes are one sentence and exit code 2, failed runs exit code 1."""
    parser = argparse.ArgumentParser(
        "tape-exp paper", description="The paper's tables and figures."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="the artifacts, and how many runs of each are recorded")
    run = commands.add_parser(
        "run",
        help="run what is missing, then render",
        epilog="Example: tape-exp paper run fig_addition scale=smoke seeds=0,1",
    )
    run.add_argument("words", nargs="+", metavar="artifact | all | scale= | seeds= | key=value")
    run.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="RUNS",
        help="the runs of --dry-run whose name fits a pattern, such as '* rung12'",
    )
    run.add_argument("--dry-run", action="store_true", help="list the missing runs")
    side = commands.add_parser(
        "compare",
        help="a table and figures of any models on any task: runs what is missing first",
        epilog="Example: tape-exp paper compare task=arithmetic model=rope,tape",
    )
    keys = "task= | model=a,b | scale= | seeds= | metrics= | key=value"
    side.add_argument("words", nargs="+", metavar=keys)
    side.add_argument("--name", type=file_name, help="of its files (default: compare_<task>)")
    side.add_argument(
        "--record",
        action="store_true",
        help="keep records, table and figures in results/ (default: <runs>/.compare)",
    )
    for one in (run, side):
        one.add_argument(
            "--cores", type=int, help="runs at a time, one thread each (default: 1, all threads)"
        )
        one.add_argument(
            "--minutes",
            type=float,
            help="then save, and exit with status 85; the same command resumes",
        )
    draw = commands.add_parser("render", help="draw tables and figures from the committed records")
    draw.add_argument("words", nargs="*", metavar="artifact")
    draw.add_argument(
        "--formats",
        default="",
        help="further files, as in tex,pdf: tex of tables, pdf, png of figures",
    )
    commands.add_parser("cost", help="estimate GPU-hours of every artifact at the paper's scale")
    options, further = parser.parse_known_args(arguments)  # argparse allows no words after options
    if wrong := [w for w in further if w.startswith("-") or not hasattr(options, "words")]:
        parser.error(f"unrecognized arguments: {' '.join(wrong)}")
    if further:
        options.words += further
    log_plainly()
    return COMMANDS[options.command](options)


def file_name(text: str) -> str:
    """A word that can be the name of a file."""
    if not re.fullmatch(r"\w[\w.+-]*", text):
        raise argparse.ArgumentTypeError(f"{text} must be letters, digits and _ . + -")
    return text


def list_artifacts(options: argparse.Namespace) -> int:
    """Print each artifact's title and its recorded runs at each scale that has some."""
    records = read_records()
    for name in names():
        artifact = load(name)
        print(f"{name:24} {artifact.title}")
        for scale in artifact.all_scales():
            runs = View(artifact, scale, records).all_runs
            seeds = [len(each) for each in runs.values()]
            if runs:
                print(f"{'':24}   {scale}: {len(runs)} rows, {sum(seeds)} runs")
    return 0


def run_artifacts(options: argparse.Namespace) -> int:
    """Run what artifacts lack, then render; status 1 if a run failed, 85 if time ran out."""
    from tape_exp.paper import runner, words

    artifacts, scale, seeds, extra = words.requested(options.words)
    jobs = runner.jobs_of(artifacts, scale, seeds, extra, only=options.only)
    if options.dry_run:
        for job in jobs.values():
            print(job.title)
        print(f"{len(jobs)} runs are missing" if len(jobs) != 1 else "1 run is missing")
        return 0
    refuse_unfit(jobs.values())
    outcome = runner.work(jobs, options.cores, options.minutes)
    render(())
    return outcome.status()


def refuse_unfit(jobs: Collection[Any]) -> None:
    """Raise before the first run begins where a word of the command does not fit a run."""
    if jobs:
        from tape_exp.settings.schema import validate
        from tape_exp.training.from_config import check_parts  # imports torch

        for job in jobs:
            validate(job.cfg)
            check_parts(job.cfg)


def compare_models(options: argparse.Namespace) -> int:
    """Run what a comparison lacks, write its table and figures, and print the table."""
    from tape_exp.paper import compare

    artifact, scale, seeds = compare.requested(options.words, options.name or "")
    if options.record and artifact.name in names():
        raise ConfigError(
            f"--name: {artifact.name} is an artifact; give the comparison another name."
        )
    own = next((w.partition("=")[2] for w in artifact.overrides if w.startswith("runs=")), "runs")
    into = RESULTS if options.record else Path(own).expanduser() / ".compare"
    outcome, view = None, compare.view_of(artifact, recorded(Path(own), into), seeds)
    if any(len(view.runs(row)) < len(seeds) for row in view.rows):
        from tape_exp.paper import runner

        found = [run for row in view.rows for run in view.runs(row)]
        jobs = runner.jobs_of([artifact], scale, seeds, records=found)
        refuse_unfit(jobs.values())
        outcome = runner.work(jobs, options.cores, options.minutes, into / "records")
        artifact, scale, seeds = compare.requested(options.words, options.name or "")
        view = compare.view_of(artifact, recorded(Path(own), into), seeds)
    table = view.table
    if not view.all_runs or table is None:
        print("There is no table: none of these runs is recorded.", file=sys.stderr)
        return outcome.status() if outcome else 1
    path = into / "tables" / f"{artifact.name}-{scale}.csv"
    if not path.exists() or path.read_text() != table.csv():
        from tape_exp.paper.figures import figures  # imports matplotlib

        write_atomically(path, table.csv())
        compare.keep(artifact, into / "tables")
        for suffix, draw in figures(view):
            draw(into / "figures" / f"{artifact.name}-{scale}{suffix}.svg")
    terminal = shutil.get_terminal_size().columns if sys.stdout.isatty() else UNBROKEN
    print(f"\n{table.terminal(terminal)}")
    drawn = (into / "figures").glob(f"{artifact.name}-{scale}*.svg")
    print(*(each for each in (path, *sorted(drawn))), sep="\n")
    return outcome.status() if outcome else 0


def recorded(runs: Path, into: Path) -> list[dict[str, Any]]:
    """The committed records, those of earlier comparisons, and those of finished runs."""
    every = [*records_of_runs(runs), *read_records(into / "records"), *read_records()]
    return sorted({r["run"]: r for r in every}.values(), key=lambda run: run["started"])


def render(chosen: Sequence[str], formats: Sequence[str] = ()) -> int:
    """Write tables, figures and the overview of results/ at every scale that has records."""
    from tape_exp.paper import pages
    from tape_exp.paper.figures import draw_all, drawings, figures

    for name in chosen:
        load(name)  # a wrong name is told before anything is written
    records = read_records()
    judgements: dict[Path, dict[str, Any]] = {}
    for name in names():
        artifact = load(name)
        results, shown = artifact.results, pages.views(artifact, records)
        judgements.setdefault(results, {})[name] = (artifact, *pages.judged(artifact, shown))
        for view in shown if not chosen or name in chosen else []:
            table, stem = view.table, f"{name}-{view.scale}"
            assert table is not None  # of what is shown
            write_atomically(results / "tables" / f"{stem}.csv", table.csv())
            if "tex" in formats:
                write_atomically(results / "tables" / f"{stem}.tex", table.latex())
            for suffix, draw in figures(view):
                for kind in ("svg", *(kind for kind in formats if kind != "tex")):
                    drawings.append((draw, results / "figures" / f"{stem}{suffix}.{kind}"))
    draw_all()
    for results, of_folder in judgements.items():
        write_atomically(results / "tables" / "claims.csv", pages.claims_table(of_folder).csv())
        overview = pages.overview(of_folder, "tables/{0}-{1}.csv")
        write_atomically(results / "README.md", f"# Results\n\n{overview}")
        print(results / "README.md")
    return 0


def write_costs(options: argparse.Namespace) -> int:
    """Write results/costs.json: GPU-hours to train each artifact's runs and their bases."""
    from tape_exp.machine.hardware import PEAK_FLOPS
    from tape_exp.paper import runner
    from tape_exp.training import plan

    known: dict[str, float] = {}
    needed = {}
    for name in names():
        artifact = load(name)
        if artifact.rows and "paper" in artifact.all_scales():
            jobs = runner.jobs_of([artifact], "paper", [0], records=[])
            for key, job in jobs.items():
                if key not in known:
                    decoder, task = plan.model_and_task(job.cfg)
                    flops = (
                        plan.tokens(task) * plan.flops_per_token(decoder, task, recompute=False)
                        if task.trains
                        else 0.0
                    )
                    known[key] = plan.hours(flops, PEAK_FLOPS[plan.ASSUMED])
            needed[name] = {
                "runs": 3 * len(jobs),
                "gpu_hours": round(3 * sum(known[key] for key in jobs), 1),
            }
    content = {
        "gpu": plan.ASSUMED,
        "utilisation": plan.UTILISATION,
        "seeds": 3,
        "artifacts": needed,
    }
    write_atomically(RESULTS / "costs.json", json.dumps(content, indent=1) + "\n")
    return 0


COMMANDS = {
    "list": list_artifacts,
    "run": run_artifacts,
    "compare": compare_models,
    "render": lambda options: render(options.words, [*filter(None, options.formats.split(","))]),
    "cost": write_costs,
}

if __name__ == "__main__":
    sys.exit(main())
