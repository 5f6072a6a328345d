"""``tape-exp compare``: a table and figures of any models on any task."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tape_exp.artifacts import comparison
from tape_exp.artifacts.runs import specs_of_artifacts
from tape_exp.experiments import execute, grid
from tape_exp.experiments.runnable import runnable
from tape_exp.results.store import add_records, read_records
from tape_exp.settings import folders
from tape_exp.settings.commands import command
from tape_exp.settings.parser import ArgumentParser
from tape_exp.training.logs import set_up_logging

WORDS = "task=, model=a,b, scale=, seed=0,1, and any key of the config, with commas"


@command
def main(arguments: Sequence[str] | None = None) -> int:
    """Run what a comparison lacks, write its table and figures, and print the table."""
    parser = ArgumentParser(
        "tape-exp compare",
        description="Compare models on a task: run what has no record yet, then write a table and "
        "figures.",
        epilog="Example: tape-exp compare task=arithmetic model=rope,alibi seed=0,1 --cores 2",
    )
    parser.add_argument("words", nargs="+", metavar="key=value", help=WORDS)
    named = "the name of its files (default: compare_<task>, then compare_<task>_2)"
    parser.add_argument("--name", default="", help=named)
    kept = "keep records, table and figures in results/ (default: <runs>/.compare)"
    parser.add_argument("--record", action="store_true", help=kept)
    columns = "the metrics that are columns (default: the main ones; the CSV file has all)"
    parser.add_argument("--metrics", default="", metavar="a,b", help=columns)
    execute.add_options(parser)
    given = grid.as_flags(sys.argv[1:] if arguments is None else arguments, ["metrics"])
    options = parser.parse_intermixed_args(given)
    set_up_logging()
    execute.check_options(options)
    words = grid.run_overrides(options.words)
    metrics = [*filter(None, options.metrics.split(","))]
    artifact, scale, seeds = comparison.requested(words, options.name, metrics)
    chosen = [word.partition("=")[2] for word in artifact.overrides if word.startswith("runs=")]
    own = Path(*chosen or ["runs"]).expanduser()
    into = folders.RESULTS if options.record else own / ".compare"
    artifact = replace(artifact, name=comparison.free_name(artifact, into, options.name))
    status = 0
    view = comparison.view_of(artifact, comparison.recorded(own, into), seeds)
    comparison.check_columns(view)
    known = view.every_run
    specs = specs_of_artifacts([artifact], scale, seeds, records=known, recorded=options.slurm)
    if options.dry_run or not all(spec.recorded for spec in specs):
        able = runnable(specs, all_of_them=True)
        command = ["compare", *options.words]
        outcome = execute.execute(able, options, command, into / "records")
        if outcome is None:
            return 0
        status = outcome.status()
        view = comparison.view_of(artifact, comparison.recorded(own, into), seeds)
    if options.record:
        committed = {run["run"] for run in read_records()}
        shown = view.every_run
        add_records(into / "records", [run for run in shown if run["run"] not in committed])
    if not view.all_runs or view.table is None:
        print("There is no table: none of these runs is recorded.", file=sys.stderr)
        return status or 1
    view.warn_of_empty_columns()
    every = comparison.view_of(artifact, comparison.recorded(own, into), seeds, every=True)
    paths = comparison.write(artifact, every, into)
    print(f"\n{view.table.terminal()}", *paths, sep="\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
