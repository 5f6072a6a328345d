"""A table and figures of any models on any task: ``tape-exp paper compare task=… model=…,…``."""

import shlex
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from tape_exp.machine.files import write_atomically
from tape_exp.paper.artifact import Artifact
from tape_exp.paper.derived import DERIVED, as_shown, metrics_of
from tape_exp.paper.records import (
    PLACES,
    Record,
    merged,
    read_records,
    records_of_runs,
    warn,
    where,
)
from tape_exp.paper.view import Row, View, flat_list
from tape_exp.paper.words import check_words, settings_of, split_words
from tape_exp.runs.evaluation import check_metric, is_result
from tape_exp.runs.identity import flat, identity_of, without_folders
from tape_exp.runs.starting_weights import apply_llama_config, find
from tape_exp.settings.compose import compose_config
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.naming import display_name, task_title


def requested(words: Sequence[str], name: str = "") -> tuple[Artifact, str, list[int]]:
    """The comparison, scale and seeds that a command asks for: ``task=<task> model=<model,…>
    [scale=] [seeds=] [metrics=a,b] [key=value …]``; a wrong or missing word is a ConfigError.
    """
    scale, seeds, further = settings_of(words)
    settings, extra = split_words(further, ("task", "model", "metrics"))
    check_words("comparison", settings, extra)
    models = list(dict.fromkeys(settings["model"].split(",")))
    task = settings["task"]
    keys = f", with {' '.join(without_places(extra))}" if without_places(extra) else ""
    problem = where(extra).get("task.problem")
    asked = task_title({"name": task} | ({"problem": problem} if problem else {}))
    measured = "mean over seeds ± its 95 % interval" if len(seeds) > 1 else f"seed {seeds[0]}"
    metrics = [*map(as_shown, filter(None, settings.get("metrics", "").split(",")))]
    artifact = Artifact(
        name=name or f"compare_{task}",
        title=f"{', '.join(map(display_name, models))} on {asked}",
        rows={"model": {model: [f"model={model}"] for model in models}},
        overrides=[f"task={task}", *extra],
        columns={metric: {"metric": metric} for metric in metrics},
        caption=f"Task {task} at scale {{scale}}{keys}; {measured}.",
        figures=[{"kind": "lengths"}, {"kind": "grids"}, {"kind": "losses"}],
        command=f"tape-exp paper compare {shlex.join(words)}",
        scales={scale: None},
    )
    return artifact, scale, seeds


def recorded(runs: Path, into: Path) -> list[Record]:
    """The committed records, those of earlier comparisons, and those of finished runs."""
    return merged(records_of_runs(runs), read_records(into / "records"), read_records())


def view_of(
    artifact: Artifact, records: Sequence[Record], seeds: Sequence[int] | None = None
) -> View:
    """A comparison with the records whose config is that of today, key by key; without
    ``metrics=`` its columns are all metrics of these but diagnostics.
    """
    some = [run for run in records if seeds is None or run["seed"] in seeds]
    view = View(artifact, next(iter(artifact.scales)), some)
    rows = []
    for row in view.rows:
        cfg = compose_config(view.words(row))
        with suppress(ConfigError):  # of a base that is not trained yet
            if start := find(cfg):
                cfg = apply_llama_config(cfg, start)
        keys = flat(without_folders(identity_of(cfg)))
        del keys["seed"]
        if (precision := keys.pop("precision")) != "auto":
            keys["trainer.precision"] = precision
        rows.append(Row(row.labels, row.words, keys=keys))
    view.rows = rows
    runs = [run for row in rows for run in view.runs(row)]
    known = [*dict.fromkeys(as_shown(metric) for run in runs for metric in run["metrics"])]
    chosen = [*artifact.columns] or [metric for metric in known if is_result(metric)]
    artifact.columns = {metric: column(metric, runs) for metric in chosen}
    del view.columns
    return view


def check_columns(view: View) -> None:
    """Raise :class:`ConfigError` where neither a record nor the task has a metric of a column."""
    recorded = {metric for run in flat_list(view.all_runs.values()) for metric in metrics_of(run)}
    if missing := [metric for metric in view.artifact.columns if metric not in recorded]:
        from tape_exp.training.from_config import blank_parts  # imports torch

        _, task = blank_parts(compose_config(view.words(view.rows[0])))
        for metric in missing:
            check_metric(metric, [*map(as_shown, task.announced())], DERIVED)


def column(metric: str, runs: Sequence[Record]) -> dict[str, Any]:
    """A metric as a column: two decimals of percent and perplexities, more of small numbers."""
    size = max((abs(metrics_of(run).get(metric, 0.0)) for run in runs), default=0.0)
    small = 0 < size < (1 if metric.endswith("loss") else 0.1)
    return {"metric": metric, "digits": 4 if small else 2}


def without_places(overrides: Sequence[str]) -> list[str]:
    """Those that say what a run computes, not where it is, in one order."""
    return sorted(word for word in overrides if not word.lstrip("+~").startswith(PLACES))


def description_of(name: str, into: Path) -> Path:
    """The YAML from which the site shows the comparison of a name again."""
    return into / "tables" / f"{name}.yaml"


def free_name(artifact: Artifact, into: Path, given: str = "") -> str:
    """The name under which a comparison is written: its own, ``compare_arithmetic``, or the first
    of ``compare_arithmetic_2``, ``_3``, … that no other comparison has. More seeds make no other.

    Raises:
        ConfigError: another comparison has the ``given`` name, which is not changed.
    """
    name = artifact.name
    number = 1
    while (description := description_of(name, into)).exists():
        old = yaml.safe_load(description.read_text(encoding="utf-8"))
        if signature(old) == signature(asdict(artifact)):
            break
        number += 1
        name = f"{artifact.name}_{number}"
        if given:
            raise ConfigError(
                f"--name={given} is the name of `{old.get('command')}`; name this comparison "
                f"otherwise, as in --name={name}, or remove {description}."
            )
    return name


def signature(fields: dict[str, Any]) -> tuple[Any, ...]:
    """What makes two comparisons one: their rows, what their runs compute, and their columns."""
    words = shlex.split(fields.get("command", ""))
    metrics = [word for word in words if word.startswith("metrics=")]
    return fields.get("rows"), without_places(fields.get("overrides", [])), metrics


def write(view: View, into: Path) -> list[Path]:
    """Write the table, the figures, and a YAML from which the site shows them again."""
    artifact, stem, table = view.artifact, f"{view.artifact.name}-{view.scale}", view.table
    assert table is not None  # of what is recorded
    path = into / "tables" / f"{stem}.csv"
    fields = {k: v for k, v in asdict(artifact).items() if v and k not in ("name", "columns")}
    write_atomically(description_of(artifact.name, into), yaml.safe_dump(fields, sort_keys=False))
    if not path.exists() or path.read_text(encoding="utf-8") != table.csv():
        from tape_exp.paper.figures import figures  # imports matplotlib

        write_atomically(path, table.csv())
        for suffix, draw in figures(view):
            draw(into / "figures" / f"{stem}{suffix}.svg")
    return [path, *sorted((into / "figures").glob(f"{stem}*.svg"))]


def kept(folder: Path) -> list[Artifact]:
    """The comparisons that were left in a folder."""
    artifacts = []
    for path in sorted(folder.glob("*.yaml")):
        try:
            artifacts.append(
                Artifact(name=path.stem, **yaml.safe_load(path.read_text(encoding="utf-8")))
            )
        except TypeError:
            warn(f"{path} is of another version; the same comparison, made again, replaces it.")
    return artifacts
