"""The runs of artifacts: those that have no record, each after the runs that it begins from."""

import itertools
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from tape_exp.artifacts.artifact import Artifact
from tape_exp.artifacts.cells import Cells, has_row
from tape_exp.artifacts.rows import fill, label_of
from tape_exp.experiments.bases import add_with_bases
from tape_exp.experiments.run_spec import RunSpec
from tape_exp.results.index import RecordIndex
from tape_exp.results.query import where
from tape_exp.results.record import Record
from tape_exp.results.store import read_records
from tape_exp.results.tables import Column
from tape_exp.settings.compose import compose_config
from tape_exp.settings.errors import ConfigError, did_you_mean, warn
from tape_exp.settings.plugins import changed_sources

log = logging.getLogger("tape_exp")


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
    views = [Cells(artifact, scale, index) for artifact in artifacts]
    every: list[tuple[Cells, int, ArtifactRun]] = []
    for seed, view in itertools.product(seeds, views):
        every += [(view, seed, run) for run in runs_at(view, seed)]
    check_patterns(only, [run.label for _, _, run in every])
    specs: dict[str, RunSpec] = {}
    shown: list[Record] = []
    asked_of_others = set[str]()  # metrics of columns that runs fill which are not to be made
    for view, seed, run in every:
        if only and not any(fnmatchcase(run.label, pattern) for pattern in only):
            asked_of_others |= run.metrics.keys()
            continue
        overrides = [*run.overrides, *extra]
        known = None if where(overrides).get("rerun") else index.of_seed(overrides, seed)
        if known:
            shown.append(known)
        if known and not recorded:
            asked_of_others |= run.metrics.keys()
            continue
        overrides.append(f"seed={seed}")
        title = f"{view.artifact.name}: {run.label}, scale {scale}, seed {seed}"
        spec = RunSpec(overrides, compose_config(overrides), title, recorded=bool(known))
        spec.results = view.artifact.results
        spec.metrics = run.metrics
        add_with_bases(specs, spec)
    for spec in specs.values():
        for asked in asked_of_others & spec.metrics.keys():
            del spec.metrics[asked]
    if shown:
        log.info("runs that are recorded: %d.", len(shown))
        tell_other_sources(shown)
    return [*specs.values()]


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


@dataclass
class ArtifactRun:
    """A run of an artifact, whatever its seed."""

    label: str
    overrides: Sequence[str]
    metrics: dict[str, str] = field(default_factory=dict)  # as those of a spec


def runs_at(view: Cells, seed: int) -> list[ArtifactRun]:
    """List every run of an artifact at a seed, once."""
    runs: dict[Sequence[str], ArtifactRun] = {}
    columns: list[Column | None] = [column for column in view.columns if column.who == "ours"]
    for row, column in itertools.product(view.rows, columns or [None]):
        spec = column.spec if column else {}
        if column and not has_row(spec, row):
            continue
        seeds_of = spec.get("seeds_of")
        further = seeds_of is None or row.labels[view.dimensions()[-1]] in seeds_of
        beyond = seed >= row.seeds if row.seeds is not None else seed > 0 and not further
        words = view.words(row, column)
        if beyond:
            continue
        label = " ".join([label_of(row), *places_of(column)])
        run = runs.setdefault(words, ArtifactRun(label, words))
        known = row.labels | (column.at if column else {})
        if "metric" in spec and not {None, ""} & {*known.values()}:  # else records will tell
            run.metrics[spec["metric"]] = fill(spec["metric"], known)
    return [*runs.values()]


def places_of(column: Column | None) -> list[str]:
    """Say what tells the runs of a column apart from those of others: the values of the
    placeholders in its overrides, or else its name; nothing of a column that has no runs of its
    own.

    >>> places_of(Column("ours {d}", {"where": ["task.dataset={d}"]}, "ours", {"d": "qmsum"}))
    ['qmsum']
    >>> places_of(Column("{who} PG-19 {n}", {"where": ["task=pg19"]}, "ours", {"n": 512}))
    ['PG-19 512']
    """
    where = column.spec.get("where") if column else None
    if column is None or not where:
        return []
    values = []
    for name, value in column.at.items():
        if f"{{{name}}}" in " ".join(where) and value is not None:
            values.append(str(value))
    return values or [column.name.removeprefix("ours ")]
