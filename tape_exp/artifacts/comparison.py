"""A table and figures of any models on any task: ``tape-exp compare task=… model=…,…``."""

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from tape_exp.artifacts.artifact import Artifact
from tape_exp.artifacts.specs import (
    ColumnSpec,
    GridsFigure,
    LengthsFigure,
    LossesFigure,
    RowBlock,
)
from tape_exp.artifacts.view import View
from tape_exp.experiments.grid import (
    axes,
    check_task_and_models,
    scale_and_seeds,
    take,
    without_places,
)
from tape_exp.machine.files import write_atomically
from tape_exp.results.derived import DERIVED
from tape_exp.results.metric_names import as_shown, check_metric, is_result, main_results
from tape_exp.results.query import where
from tape_exp.results.record import Record
from tape_exp.results.store import merged, read_records, records_of_runs
from tape_exp.settings.compose import compose_config
from tape_exp.settings.errors import ConfigError, warn
from tape_exp.settings.naming import display_name, task_title

COMMAND = "tape-exp compare"


def requested(
    words: Sequence[str], name: str = "", metrics: Sequence[str] = ()
) -> tuple[Artifact, str, list[int]]:
    """Read which comparison, scale and seeds a command asks for: ``task=<task> model=<model,…>
    [scale=] [seed=0,1] [key=value,value …]``; a wrong or missing word is a ConfigError.

    Models are rows, and so are the values of any other key that has several.
    """
    scale, seeds, further = scale_and_seeds(words)
    settings, others = take(further, ("task", "model"))
    check_task_and_models("comparison", settings, others)
    several, extra = axes(others)
    models = settings["model"]
    (task,) = settings["task"]
    dimensions = {}
    for key, values in [*several.items(), ("model", models)]:
        dimensions[key] = {value: [f"{key}={value}"] for value in values}
    measuring = " ".join(without_places(extra))
    keys = f", with {measuring}" if measuring else ""
    facts = {"name": task}
    problem = where(extra).get("task.problem")
    if problem:
        facts["problem"] = problem
    measured = f"seed {seeds[0]}" if len(seeds) == 1 else "mean over seeds"
    if len(seeds) > 2:  # the caption of two seeds says by itself what brackets hold
        measured += " ± its 95 % interval"
    columns = {metric: ColumnSpec(metric=metric) for metric in map(as_shown, metrics)}
    options = [f"--metrics={','.join(metrics)}"] if metrics else []
    artifact = Artifact(
        name=name or f"compare_{task}",
        title=f"{', '.join(map(display_name, models))} on {task_title(facts)}",
        rows=[RowBlock(dimensions)],
        overrides=[f"task={task}", *extra],
        columns=columns,
        caption=f"Task {task} at scale {{scale}}{keys}; {measured}.",
        figures=[LengthsFigure(), GridsFigure(), LossesFigure()],
        command=f"{COMMAND} {shlex.join([*words, *options])}",
        scales={scale: None},
    )
    return artifact, scale, seeds


def recorded(runs: Path, into: Path) -> list[Record]:
    """Read the committed records, those of earlier comparisons, and those of finished runs."""
    return merged(records_of_runs(runs), read_records(into / "records"), read_records())


def view_of(
    artifact: Artifact,
    records: Sequence[Record],
    seeds: Sequence[int] | None = None,
    every: bool = False,
) -> View:
    """Make a view of a comparison, of the runs that are its experiments. Where it names no
    metrics, its columns are the main results of these, or ``every`` result.
    """
    scale = next(iter(artifact.scales))
    of_seeds = [run for run in records if seeds is None or run.seed in seeds]
    view = View(artifact, scale, of_seeds)
    rows = []
    runs = []
    for row in view.rows:
        row = replace(row, seeds=None)
        rows.append(row)
        runs += view.index.of_experiment(view.overrides(row))
    metrics = metrics_of(artifact, runs)
    shown = metrics if every or artifact.columns else main_results(metrics)
    columns = {metric: column(metric, runs) for metric in shown}
    caption = artifact.caption
    if len(shown) < len(metrics):
        caption += " Further results are in its CSV file."
    made = replace(artifact, columns=columns, caption=caption)
    return View(made, scale, of_seeds, rows=rows)


def metrics_of(artifact: Artifact, runs: Sequence[Record]) -> list[str]:
    """List the metrics that a comparison names, or all results of its runs."""
    if artifact.columns:
        return [*artifact.columns]
    metrics: list[str] = []
    for run in runs:
        metrics += [as_shown(metric) for metric in run["metrics"]]
    return [*filter(is_result, dict.fromkeys(metrics))]


def check_columns(view: View) -> None:
    """Raise :class:`ConfigError` where neither a record nor the task has a metric of a column."""
    recorded: set[str] = set()
    for run in view.every_run:
        recorded |= run.metrics.keys()
    missing = [metric for metric in view.artifact.columns if metric not in recorded]
    if missing:
        from tape_exp.training.from_config import blank_parts  # imports torch

        _, task = blank_parts(compose_config(view.overrides(view.rows[0])))
        for metric in missing:
            check_metric(metric, [*map(as_shown, task.announced())], DERIVED)


def column(metric: str, runs: Sequence[Record]) -> ColumnSpec:
    """Show a metric in a column: two decimals of percent and perplexities, more if small."""
    largest = max((abs(run.metrics.get(metric, 0.0)) for run in runs), default=0.0)
    small = 0 < largest < (1 if metric.endswith("loss") else 0.1)
    return ColumnSpec(metric=metric, digits=4 if small else 2)


def description_of(name: str, into: Path) -> Path:
    """Name the file that describes the comparison of a name."""
    return into / "tables" / f"{name}.yaml"


def free_name(artifact: Artifact, into: Path, given: str = "") -> str:
    """Find the name under which a comparison is written: its own, ``compare_arithmetic``, or the
    first of ``compare_arithmetic_2``, ``_3``, … that no other comparison has. More seeds or other
    metrics make no other.

    Raises:
        ConfigError: another comparison has the ``given`` name, which is not changed.
    """
    name = artifact.name
    number = 1
    while (description := description_of(name, into)).exists():
        old = described(description)
        if old is not None and signature(old) == signature(artifact):
            break
        number += 1
        name = f"{artifact.name}_{number}"
        if given:
            other = f"`{old.command}`" if old else "another comparison"
            raise ConfigError(
                f"--name={given} is the name of {other}; name this comparison "
                f"otherwise, as in --name={name}, or remove {description}."
            )
    return name


def signature(artifact: Artifact) -> tuple[Any, ...]:
    """Say what makes two comparisons one: their rows, and what their runs compute, at which scale
    and in which precision. Other metrics of the same runs take the place of those before.
    """
    overrides = artifact.overrides
    precision = [word for word in overrides if word.startswith("trainer.precision=")]
    computed = [*without_places(overrides), *precision]
    return artifact.rows, computed, [*artifact.scales]


def write(artifact: Artifact, view: View, into: Path) -> list[Path]:
    """Write the table and the figures of a view, and the description from which the site shows them
    again.
    """
    stem = f"{artifact.name}-{view.scale}"
    table = view.table
    assert table is not None  # of what is recorded
    path = into / "tables" / f"{stem}.csv"
    describe(artifact, into)
    if not path.exists() or path.read_text(encoding="utf-8") != table.csv():
        from tape_exp.artifacts.figures import figures  # imports matplotlib

        write_atomically(path, table.csv())
        for suffix, draw in figures(view):
            draw(into / "figures" / f"{stem}{suffix}.svg")
    return [path, *sorted((into / "figures").glob(f"{stem}*.svg"))]


def describe(artifact: Artifact, into: Path) -> None:
    """Write the description of a comparison: a YAML with the command that makes it."""
    text = yaml.safe_dump({"command": artifact.command}, width=1000)
    write_atomically(description_of(artifact.name, into), text)


def described(path: Path) -> Artifact | None:
    """Read the comparison of a description; None, after a warning, where its command is one of
    another version.
    """
    command = yaml.safe_load(path.read_text(encoding="utf-8")).get("command", "")
    words = []
    metrics: list[str] = []
    for word in shlex.split(command.removeprefix(COMMAND)):
        key, _, value = word.removeprefix("--").partition("=")
        if key == "metrics":
            metrics = value.split(",")
        else:
            words.append(word)
    try:
        artifact, *_ = requested(words, path.stem, metrics)
    except ConfigError:
        warn(f"{path} is of another version; the same comparison, made again, replaces it.")
        return None
    return artifact


def saved(folder: Path) -> list[Artifact]:
    """Read the comparisons that were left in a folder."""
    artifacts = [described(path) for path in sorted(folder.glob("*.yaml"))]
    return [artifact for artifact in artifacts if artifact is not None]
