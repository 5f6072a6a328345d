"""Runs, records and decoders side by side: ``te.compare``."""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from tape_exp.library.image import image_of
from tape_exp.library.models import evaluate
from tape_exp.library.tables import facts_of, frame_of
from tape_exp.models.decoder import Decoder
from tape_exp.results.metric_names import is_result
from tape_exp.results.record import Record
from tape_exp.results.store import varying
from tape_exp.runs.identity import NOT_COMPUTED, flat, variant
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.naming import task_title
from tape_exp.training.loaded_run import LoadedRun

if TYPE_CHECKING:
    import pandas
    from PIL.Image import Image

    from tape_exp.artifacts.rows import Row

Runs = list[Record]
"""The runs of one experiment, which differ in their seeds only."""


def compare(
    *runs: LoadedRun | dict[str, Any], **own: Decoder | dict[str, Any] | Sequence[Any]
) -> "tuple[pandas.DataFrame, Image | None]":
    """Put runs or records side by side, as a table and a figure.

    Example::

        table, figure = te.compare(te.train("model=rope"), te.train("model=nope"))
        table, figure = te.compare(run, mine=decoder)  # one that a loop of your own has trained

    Args:
        runs: as ``te.load`` and ``te.train`` give them, or records, as ``te.evaluate`` does of a
            run.
        own: decoders that were trained in a loop of one's own, ``mine=decoder``, which are
            evaluated on the task of the first run, or what ``te.evaluate`` gave of them on it; a
            list is of several seeds.

    Returns:
        A table of results with a row for each experiment, the mean over its seeds, and a column for
        each key in which the experiments differ besides their models. A figure of the results by
        length, a line or a panel for each experiment; None where there is none to draw.

    Raises:
        ConfigError: there is nothing to compare, the tasks differ, or something is neither a run
            nor a record, as the metrics of a decoder, which has no config.
    """
    records = _records_to_compare(runs, own)
    _check_one_task(records)
    experiments = _experiments(records)
    names = [f"{part}.{key}" for part in ("model", "peft", "task") for key in ("name", "_target_")]
    differing = [*varying(experiments, [*names, *NOT_COMPUTED])]
    return _table_of(experiments, differing), _figure_of(experiments, differing)


# ---- records of what is given ----


def _records_to_compare(
    runs: Sequence[LoadedRun | dict[str, Any]], own: Mapping[str, Any]
) -> list[Record]:
    """List the records of runs and of one's own decoders, a list of which is of several seeds."""
    found = [run.record if isinstance(run, LoadedRun) else run for run in runs]
    for name, models in own.items():
        seeds = models if isinstance(models, list | tuple) else [models]
        for seed, model in enumerate(seeds):
            found.append(_record_of_own(name, seed, model, runs))
    if not found or not all(isinstance(record, dict) and "config" in record for record in found):
        raise ConfigError(
            "compare takes runs, one argument each, their records, and what te.evaluate gives of a "
            "run; that of a decoder has no config."
        )
    return [Record(record) for record in found]


def _check_one_task(records: Sequence[Record]) -> None:
    """Raise :class:`ConfigError` where records are of several tasks, whose results have no column
    in common.
    """
    tasks = dict.fromkeys(record.config["task"]["name"] for record in records)
    if len(tasks) > 1:
        raise ConfigError(
            f"compare takes runs of one task, and these are of {' and '.join(tasks)}: compare "
            "those of each task, or evaluate all on one, as te.evaluate(run, 'task=passkey') does."
        )


def _record_of_own(
    name: str, seed: int, model: Decoder | Record, runs: Sequence[LoadedRun | dict[str, Any]]
) -> Record:
    """Make the record of a decoder of one's own, or complete what ``te.evaluate`` gave of it, as
    one on the task of the first run.
    """
    first = runs[0] if runs else None
    if isinstance(model, Decoder):
        if not isinstance(first, LoadedRun):
            raise ConfigError(
                f"{name} is a decoder, and is evaluated on the task of the first run, of which "
                "compare needs the run itself, as te.load gives it; or give what te.evaluate "
                "gives of the decoder."
            )
        task, _ = first.on()
        task.prepare_data()
        model = evaluate(model, task=task)
    like = first.record if isinstance(first, LoadedRun) else first
    if like is None or "config" not in like:
        raise ConfigError(f"compare takes {name}= beside a run or a record of the same task.")
    shared = {key: like["config"][key] for key in ("task", "scale")}
    config = shared | {"model": {"name": name}, "peft": {"name": "none"}, "seed": seed}
    facts = {"run": f"{name}-seed{seed}", "seed": seed, "started": ""}
    return model | facts | {"config": config}


# ---- experiments ----


def _experiments(records: Sequence[Record]) -> list[Runs]:
    """Group records by experiment, each with a record a seed; one that is given twice is two."""
    experiments: list[Runs] = []
    for record in records:
        for experiment in experiments:
            if _is_another_seed(record, experiment):
                experiment.append(record)
                break
        else:
            experiments.append([record])
    return experiments


def _is_another_seed(record: Record, experiment: Runs) -> bool:
    """Say whether a record is of an experiment, with a seed that this has not."""
    if record.seed in [other.seed for other in experiment]:
        return False
    other = experiment[0]
    if ("_target_" in record.config["model"]) != ("_target_" in other.config["model"]):
        return False  # a decoder of one's own, and a run whose model has its name
    return record.experiment.is_same(other.experiment)


def _labels(experiments: Sequence[Runs], differing: Sequence[str]) -> list[str]:
    """Label each experiment: by its model, where several have that one by the keys in which they
    differ too, where these are the same by a number.
    """
    models = [variant(experiment[0].config) for experiment in experiments]
    labels: list[str] = []
    for model, experiment in zip(models, experiments, strict=True):
        label = model
        if models.count(model) > 1:
            settings = flat(experiment[0].config)
            known = [key for key in differing if key in settings]
            values = [f"{key.rpartition('.')[2]}={settings[key]}" for key in known]
            label = ", ".join([model, *values])
        if label in labels:
            label = f"{label} ({len(labels) + 1})"
        labels.append(label)
    return labels


# ---- table and figure ----


def _table_of(experiments: Sequence[Runs], differing: Sequence[str]) -> "pandas.DataFrame":
    """Make a row for each experiment, with the results in their order in the records; the keys in
    which experiments differ come behind model and task.
    """
    table = frame_of([_row(experiment) for experiment in experiments])
    place = table.columns.get_loc("task") + 1
    for key in reversed(differing):
        name = key.removeprefix("task.")
        if name not in table:
            values = [flat(experiment[0].config).get(key) for experiment in experiments]
            table.insert(place, name, values)
    return table[[*filter(is_result, table)]]


def _row(experiment: Runs) -> dict[str, Any]:
    """Make the row of an experiment: metrics are means over its seeds, which ``seed`` lists."""
    row = facts_of(experiment[0])
    if len(experiment) == 1:
        return row | experiment[0].measured
    row["seed"] = ", ".join(str(record.seed) for record in experiment)
    means = frame_of([record.measured for record in experiment]).mean()
    return row | means.to_dict()


def _figure_of(experiments: Sequence[Runs], differing: Sequence[str]) -> "Image | None":
    """Draw experiments of one task: their grids, or their results by length."""
    from tape_exp.artifacts.artifact import Artifact
    from tape_exp.artifacts.cells import Cells
    from tape_exp.artifacts.figures import figures
    from tape_exp.artifacts.specs import GridsFigure, LengthsFigure, block_of

    first = experiments[0][0]
    by_label = dict(zip(_labels(experiments, differing), experiments, strict=True))
    artifact = Artifact(
        name="",
        title=task_title(first.config["task"]),
        rows=[block_of({"model": [*by_label]})],
        figures=[GridsFigure(), LengthsFigure()],
    )

    def runs_of(row: "Row") -> list[Record]:
        return by_label[row.labels["model"]]

    records = [*chain.from_iterable(experiments)]
    cells = Cells(artifact, first.config["scale"], records, runs_of=runs_of)
    for _, draw in figures(cells):
        return image_of(draw)
    return None
