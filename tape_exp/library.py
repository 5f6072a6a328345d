"""The package as a library: ``import tape_exp as te``.

Everything here takes and gives plain objects of Python, torch and pandas. Errors of the user are
:class:`~tape_exp.settings.errors.ConfigError`, a ``ValueError`` with one sentence.
"""

import io
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import torch

from tape_exp.models.decoder import Decoder
from tape_exp.results.record import Record
from tape_exp.results.store import known_records, read_records, records_of_runs, varying
from tape_exp.runs.directory import RunDirectory
from tape_exp.runs.evaluation import is_result
from tape_exp.runs.identity import NOT_COMPUTED, flat, variant
from tape_exp.runs.llama_base import apply_llama_config
from tape_exp.runs.metrics import read_metrics
from tape_exp.runs.starting_weights import find
from tape_exp.settings.compose import compose_config
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.naming import literal, task_title
from tape_exp.tasks.base import Task
from tape_exp.training.callbacks import track
from tape_exp.training.from_config import make_decoder, make_task
from tape_exp.training.loaded import Loaded, load
from tape_exp.training.module import OnDevice
from tape_exp.training.run import run

if TYPE_CHECKING:
    import pandas
    from PIL.Image import Image

    from tape_exp.artifacts.rows import Row


def build(
    model: str = "tape", *overrides: str, task: str = "arithmetic", scale: str = "smoke"
) -> tuple[Decoder, Task]:
    """A model as a run would begin to train it, and its task, whose data are ready.

    ``decoder(tokens)`` maps (B, T) ids to logits (B, T, V); ``task.train_batch(first, count)``
    gives rows of the training stream, as ``inputs`` and ``labels`` (B, T).

    Args:
        model, task, scale: what the command line names in ``model=``, ``task=`` and ``scale=``.
        overrides: any other words of the command line, as ``"seed=1"`` or
            ``"task.arch.layers=2"``.

    Raises:
        ConfigError: there is no such config, or it cannot be built.
    """
    words = [f"model={model}", f"task={task}", f"scale={scale}", *overrides]
    cfg = compose_config(words)
    if start := find(cfg):
        cfg = apply_llama_config(cfg, start)
    made = make_task(cfg, start)
    made.prepare_data()
    return make_decoder(cfg, made), made


def train(*overrides: str, quiet: bool = False, **choices: Any) -> Loaded:
    """Train and evaluate what ``tape-exp train <overrides>`` would, and return the run.

    A run that is finished already is not repeated; one that was interrupted is resumed.

    Args:
        quiet: print nothing; the run's log.txt has all lines.
        choices: ``model="tape"`` is the override ``"model=tape"``.

    Raises:
        ConfigError: the config cannot run; nothing was begun.
    """
    chosen = {k: v if isinstance(v, str) else literal(v) for k, v in choices.items()}
    cfg = compose_config([*overrides, *map("=".join, chosen.items())])
    out, err = (io.StringIO(), io.StringIO()) if quiet else (sys.stdout, sys.stderr)
    with redirect_stdout(out), redirect_stderr(err):
        run(cfg)
        return load(RunDirectory(cfg).path)


def evaluate(model: Loaded | Decoder, *overrides: str, task: Task | None = None) -> Record:
    """What a model scores, in fp32 on the device it is on: a record with its metrics.

    Args:
        model: a run, which stays as it was trained; or a decoder of any loop, with its ``task``.
        overrides: for a run, what differs from its own config, as ``"task.test_digits=8"``, or
            another task, as ``"task=passkey"``.
        task: of a decoder, as :func:`build` gives it.

    Raises:
        ConfigError: there is no such task, its tokens are not the model's, an override does not
            concern the evaluation or says what was trained, or a decoder comes without its task.
    """
    decoder = model.model if isinstance(model, Loaded) else model
    facts = {}
    if isinstance(model, Loaded):
        if task is not None:
            raise ConfigError("evaluate takes task= of a decoder; of a run it takes overrides.")
        task, config = model.on(*overrides)
        if task.vocabulary != model.task.vocabulary:
            raise ConfigError(
                f"the task's symbols are not the {decoder.arch.vocab} that the model was trained "
                "on, so that its tokens would stand for others."
            )
        task.prepare_data()
        names = ("run", "seed", "started", "git")
        facts = {name: model.record[name] for name in names} | {"config": config}
    elif task is None:
        raise ConfigError("evaluate takes a run, or a decoder and task=, as te.build gives them.")
    if task.arch.vocab > decoder.arch.vocab:
        raise ConfigError(f"the task has {task.arch.vocab} tokens, the model {decoder.arch.vocab}.")
    training = decoder.training
    device = decoder.head.weight.device
    on_device = OnDevice(decoder.eval(), device, 16 if device.type == "cuda" else 1)
    try:
        with torch.no_grad():
            evaluation = task.evaluate(on_device, track)
    finally:
        decoder.train(training)
    if decoder.knows_digits():
        facts["knows_digits"] = True
    return Record({**facts, "metrics": evaluation.metrics, **evaluation.for_record()})


def compare(
    *runs: Loaded | dict[str, Any], **own: Decoder | dict[str, Any] | Sequence[Any]
) -> "tuple[pandas.DataFrame, Image | None]":
    """Runs or records side by side: their results as a table, a row for each experiment, the mean
    over its seeds, and a figure of them by length, if they are of one task and there is one to
    draw: a line or a panel for each experiment.

    The table has a column for each key in which the experiments differ besides their models.

    Args:
        own: decoders that were trained in a loop of one's own, ``mine=decoder``, which are
            evaluated on the task of the first run, or what :func:`evaluate` gave of them on it; a
            list is of several seeds.

    Raises:
        ConfigError: there is nothing to compare, or something is neither a run nor a record, as
            the metrics of a decoder, which has no config.
    """
    records = _records_to_compare(runs, own)
    experiments = _experiments(records)
    kinds = [f"{part}.{key}" for part in ("model", "peft", "task") for key in ("name", "_target_")]
    differing = [*varying(experiments, [*kinds, *NOT_COMPUTED])]
    return _table_of_experiments(experiments, differing), _figure_of(experiments, differing)


def _records_to_compare(
    runs: Sequence[Loaded | dict[str, Any]], own: Mapping[str, Any]
) -> list[Record]:
    """List the records of runs and of one's own decoders, a list of which is of several seeds."""
    given = [one.record if isinstance(one, Loaded) else one for one in runs]
    for name, models in own.items():
        several = models if isinstance(models, list | tuple) else [models]
        given += [_of_decoder(name, seed, one, runs) for seed, one in enumerate(several)]
    if not given or not all(isinstance(one, dict) and "config" in one for one in given):
        raise ConfigError(
            "compare takes runs, one argument each, their records, and what te.evaluate gives of a "
            "run; that of a decoder has no config."
        )
    return [Record(one) for one in given]


def _experiments(records: Sequence[Record]) -> list[list[Record]]:
    """Group records by experiment, each with a record a seed; one that is given twice is two."""
    experiments: list[list[Record]] = []
    for record in records:
        for experiment in experiments:
            if _another_seed(record, experiment):
                experiment.append(record)
                break
        else:
            experiments.append([record])
    return experiments


def _another_seed(record: Record, experiment: Sequence[Record]) -> bool:
    """Whether a record is of an experiment, with a seed that this has not."""
    if record.seed in [other.seed for other in experiment]:
        return False
    other = experiment[0]
    if ("_target_" in record.config["model"]) != ("_target_" in other.config["model"]):
        return False  # a decoder of one's own, and a run whose model has its name
    return record.experiment.is_same(other.experiment)


def _table_of_experiments(
    experiments: Sequence[Sequence[Record]], differing: Sequence[str]
) -> "pandas.DataFrame":
    """Make a row for each experiment: its metrics are means over its seeds, which ``seed`` lists;
    the keys in which experiments differ stand behind model and task.
    """
    import pandas

    rows = []
    for experiment in experiments:
        runs = _table(experiment)
        row = runs.iloc[0].to_dict()
        if len(experiment) > 1:
            metrics = {metric for record in experiment for metric in record["metrics"]}
            row |= {name: runs[name].mean() for name in runs if name in metrics}
            row["seed"] = ", ".join(map(str, runs["seed"]))
        rows.append(row)
    table = pandas.DataFrame(rows, columns=[*_table([*chain.from_iterable(experiments)])])
    place = table.columns.get_loc("task") + 1
    for key in reversed(differing):
        name = key.removeprefix("task.")
        if name not in table:
            values = [flat(experiment[0].config).get(key) for experiment in experiments]
            table.insert(place, name, values)
    return table[[*filter(is_result, table)]]


def _figure_of(experiments: Sequence[Sequence[Record]], differing: Sequence[str]) -> "Image | None":
    """Draw experiments of one task: their grids, or their results by length."""
    from tape_exp.artifacts.artifact import Artifact
    from tape_exp.artifacts.cells import Cells
    from tape_exp.artifacts.figures import figures

    first = experiments[0][0]
    if len({experiment[0].config["task"]["name"] for experiment in experiments}) > 1:
        return None
    rows = dict(zip(_labels(experiments, differing), experiments, strict=True))
    artifact = Artifact(
        name="",
        title=task_title(first.config["task"]),
        rows={"model": [*rows]},
        figures=[{"kind": "grids"}, {"kind": "lengths"}],
    )

    def runs_of(row: "Row") -> list[Record]:
        return [*rows[row.labels["model"]]]

    records = [*chain.from_iterable(experiments)]
    cells = Cells(artifact, first.config["scale"], records, runs_of=runs_of)
    for _, draw in figures(cells):
        return _picture(draw)
    return None


def _labels(experiments: Sequence[Sequence[Record]], differing: Sequence[str]) -> list[str]:
    """Label each experiment: by its model, where several have that one by the keys in which they
    differ too, where these are the same by a number.
    """
    names = [variant(experiment[0].config) for experiment in experiments]
    labels: list[str] = []
    for name, experiment in zip(names, experiments, strict=True):
        label = name
        if names.count(name) > 1:
            settings = flat(experiment[0].config)
            known = [key for key in differing if key in settings]
            values = [f"{key.rpartition('.')[2]}={settings[key]}" for key in known]
            label = ", ".join([name, *values])
        if label in labels:
            label = f"{label} ({len(labels) + 1})"
        labels.append(label)
    return labels


def _of_decoder(
    name: str, seed: int, model: Decoder | Record, runs: Sequence[Loaded | dict[str, Any]]
) -> Record:
    """The record of a decoder of no run, on the task of the first one."""
    first = runs[0] if runs else None
    if isinstance(model, Decoder):
        if not isinstance(first, Loaded):
            raise ConfigError(
                f"{name} is a decoder, and is evaluated on the task of the first run, of which "
                "compare needs the run itself, as te.load gives it; or give what te.evaluate "
                "gives of the decoder."
            )
        task, _ = first.on()
        task.prepare_data()
        model = evaluate(model, task=task)
    like = first.record if isinstance(first, Loaded) else first
    if like is None or "config" not in like:
        raise ConfigError(f"compare takes {name}= beside a run or a record of the same task.")
    shared = {key: like["config"][key] for key in ("task", "scale")}
    config = shared | {"model": {"name": name}, "peft": {"name": "none"}, "seed": seed}
    facts = {"run": f"{name}-seed{seed}", "seed": seed, "started": ""}
    return model | facts | {"config": config}


def plot(
    run: Loaded | dict[str, Any], text: str | Sequence[int] = "", losses: bool = False
) -> "Image":
    """A picture, which a notebook shows and ``save`` writes: a run's results by length, or with a
    text where each layer looks in it, the mean over heads, or its losses by step.

    Args:
        losses: of training and validation: every point of a run, those that a record has.

    Raises:
        ConfigError: no result of the run is by length, or it has trained nothing.
    """
    if not isinstance(run, Loaded | dict):
        raise ConfigError(
            f"plot takes a run, as te.load gives it, or a record, and not a {type(run).__name__}."
        )
    if losses:
        return _picture(_losses(run))
    from tape_exp.artifacts.figures import mean_grid
    from tape_exp.drawing.matrices import run_matrices
    from tape_exp.drawing.plots import grids

    if text:
        if not isinstance(run, Loaded):
            raise ConfigError("plot shows attention to a text of a run, as te.load gives it.")
        seen = {f"attention@{layer}": p.mean(0).numpy() for layer, p in run.attention(text).items()}
        title = f"Attention of {run.record.get('run', run.folder.name)}, mean over heads"
        return _picture(partial(run_matrices, seen, title=title, symbols=run.symbols(text)))
    record = Record(run.record if isinstance(run, Loaded) else run)
    if "axes" in record:
        return _picture(partial(grids, {record.get("run", ""): mean_grid([record])}))
    picture = compare(record)[1] if "config" in record else None
    if picture is None:
        raise ConfigError(
            "no result of this run is by length; plot(run, text) shows attention, and "
            "plot(run, losses=True) its losses."
        )
    return picture


def _losses(run: Loaded | dict[str, Any]) -> Callable[[Path], Path]:
    """The figure of the losses of one run."""
    from tape_exp.drawing.plots import Line, Panel, curves
    from tape_exp.drawing.style import categorical

    points: dict[str, dict[int, float]] = {}
    if isinstance(run, Loaded):
        rows = read_metrics(run.folder / "metrics.jsonl")
        for name in ("train/loss", "val/loss"):
            points[name] = {row["step"]: row[name] for row in rows if name in row}
    else:
        for name, curve in run.get("curves", {}).items():
            points[name] = dict(zip(curve["step"], curve["value"], strict=True))
    lines = [
        Line(name, [*curve], [*curve.values()], style=categorical(number))
        for number, (name, curve) in enumerate(points.items())
        if curve
    ]
    if not lines:
        raise ConfigError("this run has no losses: it trained nothing, or its curve is not kept.")
    panel = Panel("", "step", "loss (nats)", lines, log_y=True)
    record = run.record if isinstance(run, Loaded) else run
    title = f"Losses of {record['run']}" if "run" in record else ""
    return lambda path: curves([panel], path, title)


def _picture(draw: Callable[[Path], Path]) -> "Image":
    from PIL import Image

    with TemporaryDirectory() as folder, Image.open(draw(Path(folder, "figure.png"))) as image:
        return image.copy()


def records(folder: str | Path | None = None) -> "pandas.DataFrame":
    """Every record as a row: what was run, and its metrics, a column each.

    Args:
        folder: of records, or of runs; None: ``results/records`` of the clone (outside one, of the
            working directory) and every finished run in ``runs/``.

    Raises:
        ConfigError: there is no record.
    """
    if folder is None:
        every = known_records()
    else:
        every = [*read_records(Path(folder)), *records_of_runs(Path(folder))]
    if not every:
        where = folder or "results/records and runs/"
        raise ConfigError(f"there is no record in {where}: a finished run leaves one.")
    return _table(every)


def _table(records: Sequence[Record]) -> "pandas.DataFrame":
    import pandas

    rows = []
    for record in records:
        config = record["config"]
        row = {
            "run": record.get("run"),
            "model": config["model"]["name"],
            "task": config["task"]["name"],
            "scale": config["scale"],
            "peft": config.get("peft", {}).get("name"),
            "seed": record["seed"],
            "steps": record.get("steps"),
            "parameters": record.get("parameters"),
            "commit": record.get("git", {}).get("commit"),
            "started": record["started"],
        }
        rows.append(row | record["metrics"])
    return pandas.DataFrame(rows)
