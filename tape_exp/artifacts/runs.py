"""The runs of artifacts: those that have no record, each after the runs that it begins from."""

import itertools
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from tape_exp.artifacts.artifact import Artifact
from tape_exp.artifacts.cells import Cells
from tape_exp.artifacts.columns import ArtifactColumn
from tape_exp.artifacts.rows import Row, label_of
from tape_exp.experiments.bases import add_with_bases
from tape_exp.experiments.run_spec import RunSpec
from tape_exp.results.index import RecordIndex
from tape_exp.results.query import where
from tape_exp.results.record import Record
from tape_exp.results.store import read_records
from tape_exp.settings.compose import compose_config
from tape_exp.settings.errors import ConfigError, did_you_mean, warn
from tape_exp.settings.plugins import changed_sources

log = logging.getLogger("tape_exp")


@dataclass
class ArtifactRun:
    """A run that cells of an artifact show."""

    artifact: Artifact
    label: str  # as lists name it: ``tape 5 digits``
    overrides: Sequence[str]  # but for the seed
    seed: int
    metrics: dict[str, str] = field(default_factory=dict)  # as those of a RunSpec


def specs_of_artifacts(
    artifacts: Sequence[Artifact],
    scale: str,
    seeds: Sequence[int],
    extra: Sequence[str] = (),  # overrides of every run
    records: Sequence[Record] | None = None,
    only: Sequence[str] = (),  # patterns of a shell, one of which a run's label fits
    recorded: bool = False,  # whether runs that have a record are named too
) -> list[RunSpec]:
    """List the runs of artifacts that have no record, or all with ``rerun=true``, each after its
    base; every artifact gets a seed before the next seed. A run that several need is named once.
    """
    records = read_records() if records is None else records
    index = RecordIndex(records)
    all_cells = [Cells(artifact, scale, index) for artifact in artifacts]
    every: list[ArtifactRun] = []
    for seed, cells in itertools.product(seeds, all_cells):
        every += runs_at(cells, seed)
    check_patterns(only, [run.label for run in every])
    specs: dict[str, RunSpec] = {}
    shown: list[Record] = []
    asked_of_others = set[str]()  # metrics of columns that runs fill which are not to be made
    for run in every:
        if only and not any(fnmatchcase(run.label, pattern) for pattern in only):
            asked_of_others |= run.metrics.keys()
            continue
        overrides = [*run.overrides, *extra]
        known = None if where(overrides).get("rerun") else index.of_seed(overrides, run.seed)
        if known:
            shown.append(known)
        if known and not recorded:
            asked_of_others |= run.metrics.keys()
            continue
        add_with_bases(specs, spec_of(run, scale, overrides, recorded=bool(known)))
    for spec in specs.values():
        for asked in asked_of_others & spec.metrics.keys():
            del spec.metrics[asked]
    if shown:
        log.info("runs that are recorded: %d.", len(shown))
        tell_other_sources(shown)
    return [*specs.values()]


def spec_of(run: ArtifactRun, scale: str, overrides: Sequence[str], recorded: bool) -> RunSpec:
    """Say what makes a run of an artifact, by its own overrides and further ones."""
    with_seed = [*overrides, f"seed={run.seed}"]
    title = f"{run.artifact.name}: {run.label}, scale {scale}, seed {run.seed}"
    spec = RunSpec(with_seed, compose_config(with_seed), title, recorded=recorded)
    spec.results = run.artifact.results
    spec.metrics = run.metrics
    return spec


def check_patterns(only: Sequence[str], labels: Sequence[str]) -> None:
    """Raise :class:`ConfigError` where a pattern fits no run."""
    known = list(dict.fromkeys(labels))
    for pattern in only:
        if not any(fnmatchcase(label, pattern) for label in known):
            raise ConfigError(
                f"--only: '{pattern}'{did_you_mean(pattern, known)} It must fit the name of a run "
                f"of these seeds: {', '.join(known[:50])}."
            )


def tell_other_sources(records: Sequence[Record]) -> None:
    """Say so where the files of encodings or of the task have changed since their runs."""
    files: set[str] = set()
    older = 0
    for record in records:
        changed = changed_sources(record.get("sources", {}))
        files.update(changed)
        older += bool(changed)
    if files:
        named = " and ".join(sorted(files))
        warn(
            f"{older} of {len(records)} runs are recorded with another version of {named}. They "
            "are shown all the same; rerun=true runs them anew."
        )


def runs_at(cells: Cells, seed: int) -> list[ArtifactRun]:
    """List every run of an artifact at a seed, once, with the metrics that its columns show."""
    runs: dict[Sequence[str], ArtifactRun] = {}
    columns: list[ArtifactColumn | None] = [*cells.our_columns]
    for row, column in itertools.product(cells.rows, columns or [None]):
        if column and not column.has(row):
            continue
        if not has_seed(seed, row, column):
            continue
        overrides = cells.overrides(row, column)
        label = " ".join([label_of(row), *told_apart_by(column)])
        run = runs.setdefault(overrides, ArtifactRun(cells.artifact, label, overrides, seed))
        if column and column.spec.metric and all_known(row, column):
            run.metrics[column.spec.metric] = column.metric_of(row)
    return [*runs.values()]


def has_seed(seed: int, row: Row, column: ArtifactColumn | None) -> bool:
    """Say whether a cell is run with a seed: its row may have a number of seeds, and its column may
    name the models that have more than the first.

    >>> tape = Row({"model": "tape"}, [], seeds=2)
    >>> has_seed(1, tape, None), has_seed(2, tape, None)
    (True, False)
    """
    if row.seeds is not None:
        return seed < row.seeds
    if seed == 0 or column is None or column.spec.seeds_of is None:
        return True
    *_, model = row.labels.values()
    return model in column.spec.seeds_of


def all_known(row: Row, column: ArtifactColumn) -> bool:
    """Say whether a cell has all that its metric is named after; else records will tell."""
    values = [*row.labels.values(), *column.at.values()]
    return None not in values and "" not in values


def told_apart_by(column: ArtifactColumn | None) -> list[str]:
    """Say what tells the runs of a column apart from those of others: the values of the
    placeholders in its overrides, or else its name; nothing of a column that has no runs of its
    own.

    >>> from tape_exp.artifacts.specs import ColumnSpec
    >>> spec = ColumnSpec(where=["task.dataset={d}"])
    >>> told_apart_by(ArtifactColumn("ours {d}", "ours", {"d": "qmsum"}, spec=spec))
    ['qmsum']
    >>> spec = ColumnSpec(where=["task=pg19"])
    >>> told_apart_by(ArtifactColumn("{who} PG-19 {n}", "ours", {"n": 512}, spec=spec))
    ['PG-19 512']
    """
    if column is None or not column.spec.where:
        return []
    overrides = " ".join(column.spec.where)
    values = []
    for name, value in column.at.items():
        if f"{{{name}}}" in overrides and value is not None:
            values.append(str(value))
    return values or [column.name.removeprefix("ours ")]
