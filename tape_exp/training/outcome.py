"""The outcome of a run: pictures and tables, its record, and the last lines of its log."""

import json
import logging
import math
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from lightning import Trainer

from tape_exp.drawing.terminal import brief, print_heatmaps
from tape_exp.machine.files import write_atomically
from tape_exp.models import compilation, peft
from tape_exp.results.evaluation import Evaluation
from tape_exp.results.metric_names import is_result
from tape_exp.runs.checkpoint_info import title
from tape_exp.runs.directory import RunDirectory
from tape_exp.runs.llama_base import llama_title
from tape_exp.runs.metrics import curves, read_metrics
from tape_exp.runs.record import make_record
from tape_exp.settings.naming import display_name, task_title
from tape_exp.settings.schema import Optim
from tape_exp.tasks.base import FINGERPRINT
from tape_exp.training.module import LanguageModule
from tape_exp.training.not_finite import NotFiniteError, advice

log = logging.getLogger("tape_exp")


def save_artifacts(directory: RunDirectory, evaluation: Evaluation) -> list[Path]:
    """Write accuracy and patterns (PNG and NPZ) and tables (JSON); return the images."""
    from tape_exp.drawing.matrices import run_matrices
    from tape_exp.drawing.plots import GridPanel, grids

    cfg = directory.cfg
    folder = directory.artifacts
    images = []
    model = display_name(cfg.model.name)
    title = f"{model} on {task_title(cfg.task)}, scale {cfg.scale.name}, seed {cfg.seed}"
    grid = evaluation.heatmap
    if grid is not None:
        images.append(grids([GridPanel(model, grid)], folder / f"{grid.name}.png", title))
        np.savez_compressed(folder / f"{grid.name}.npz", values=grid.values)
    if evaluation.matrices:
        path = folder / "patterns.png"
        images.append(run_matrices(evaluation.matrices, path, title))
        np.savez_compressed(folder / "patterns.npz", **evaluation.matrices)  # type: ignore[arg-type]
    for name, rows in evaluation.tables.items():
        write_atomically(folder / f"{name}.json", json.dumps(rows, indent=1) + "\n")
    return images


def run_record(
    directory: RunDirectory, trainer: Trainer, module: LanguageModule, seconds: dict[str, float]
) -> dict[str, Any]:
    """Make the record of a run whose parts took so many ``seconds``."""
    task = module.task
    decoder = module.decoder
    evaluation = module.evaluation
    steps = trainer.global_step
    start = directory.start
    trained = peft.trained(decoder) if task.trains else []
    optional = {
        "compiled": module.compiled,
        "begun_from": start and title(start),
        "llama": start and llama_title(start),
        "knows_digits": decoder.knows_digits(),
    }
    return make_record(
        directory,
        data_fingerprint=task.data_fingerprint(),
        fingerprint_version=FINGERPRINT,
        metrics={**module.validation, **evaluation.metrics},
        parameters=decoder.parameter_count(),
        positional_parameters=decoder.positional_count(),
        tokens=steps * task.optim.batch * task.arch.train_length,
        trained_parameters=sum(parameter.numel() for _, parameter in trained),
        steps=steps,
        precision=str(trainer.precision),
        attention=[*compilation.CHOSEN_BACKENDS],
        seconds=seconds,
        curves=curves(read_metrics(directory.metrics)),
        **{key: fact for key, fact in optional.items() if fact},
        **evaluation.for_record(),
    )


def check_finite(metrics: dict[str, float], optim: Optim) -> None:
    """Raise :class:`NotFiniteError` where a metric is no number: nothing could be drawn of it."""
    for name, value in metrics.items():
        if not math.isfinite(value):
            raise NotFiniteError(f"{name} is {value} after training. {advice(optim)}")


def summary_of(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the results and sizes of a record, for the summary of its run in W&B."""
    summary = {key: record[key] for key in ("parameters", "positional_parameters", "tokens")}
    summary |= {key: value for key, value in record["metrics"].items() if is_result(key)}
    summary["seconds"] = record["seconds"]["training"]
    return summary


def log_result(directory: RunDirectory, module: LanguageModule, images: list[Path]) -> None:
    """Log accuracy by length, metrics with their standard errors (SE), and where the files are."""
    evaluation = module.evaluation
    metrics = module.validation | evaluation.metrics
    if evaluation.heatmap is not None:
        with suppress(OSError):  # the run is DONE, whether or not somebody can read this
            print_heatmaps({directory.cfg.model.name: evaluation.heatmap})
    results = list(filter(is_result, metrics))
    width = max([28, *map(len, results)])
    for key in results:
        error = evaluation.metrics.get(f"{key}_stderr")
        spread = "" if error is None else f" (SE {error:.2f})"
        log.info("  %-*s %8s%s", width, key, brief(metrics[key], 2), spread)
    for image in images:
        log.info("  %s", image)
    log.info("DONE: %s", directory.path)
