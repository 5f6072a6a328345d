"""One run, from a composed config to a record: data, model, training, evaluation."""

import json
import logging
import math
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from lightning import Callback, Trainer
from lightning.pytorch.loggers import Logger
from omegaconf import DictConfig

from tape_exp.drawing.terminal import brief, print_heatmaps
from tape_exp.machine.files import write_atomically
from tape_exp.machine.preemption import Preemption
from tape_exp.machine.processes import gather
from tape_exp.models import attention, peft
from tape_exp.models.decoder import Decoder
from tape_exp.runs.checkpoint_info import title
from tape_exp.runs.checkpoints import Checkpoints, newest
from tape_exp.runs.directory import LOG, RunDirectory
from tape_exp.runs.evaluation import Evaluation, is_result
from tape_exp.runs.llama_base import llama_title
from tape_exp.runs.loggers import (
    close,
    log_to_all,
    make_lightning_logger,
    make_loggers,
    publish,
    send_settings,
)
from tape_exp.runs.metrics import Stopwatch, curves, read_metrics
from tape_exp.runs.record import make_record
from tape_exp.runs.starting_weights import base_of
from tape_exp.settings.naming import display_name, task_title
from tape_exp.tasks.base import FINGERPRINT, Task
from tape_exp.training import from_config
from tape_exp.training.callbacks import StepReport
from tape_exp.training.cautions import cautions
from tape_exp.training.faults import ProcessWatch, explained
from tape_exp.training.finished import finished
from tape_exp.training.logs import logs_of_run, set_up_logging
from tape_exp.training.module import LanguageModule, NotFiniteError

log = logging.getLogger("tape_exp")


@dataclass(frozen=True)
class Run:
    """A run under way: its parts, and where it reports."""

    directory: RunDirectory
    task: Task
    decoder: Decoder
    preemption: Preemption
    accumulate: int  # forward passes of each device per optimizer step
    validate_every: int  # optimizer steps; a short run has one validation, at its end
    clock: Stopwatch = field(default_factory=Stopwatch)  # of earlier processes too
    loggers: list[Logger] = field(default_factory=list)


def run(cfg: DictConfig, further: Sequence[Callback] = ()) -> dict[str, Any]:
    """Train and evaluate what ``cfg`` says, or return the record of the finished run.

    With ``debug=plan`` an estimate is printed instead and the record is empty.

    Args:
        further: callbacks of the training, besides its own.

    Raises:
        ConfigError: the config cannot run; nothing was begun.
        TrialPruned: a callback ended the run early.
        Preempted: a signal told the run to leave; its checkpoint is saved, and the process ends
            with status 85.
        Exception: whatever stopped the run; FAILED in its directory holds the traceback.
    """
    if cfg.debug.plan:
        from tape_exp.training.plan import print_plan  # which few runs need

        print_plan(cfg)
        return {}
    directory = RunDirectory(cfg)
    with (
        Preemption() as preemption,  # until nothing of the run is left to be put away
        logs_of_run(),
        from_config.processes(cfg.trainer, directory.hash),
    ):
        if record := finished(directory):  # without the lock, which a read-only disk refuses
            return record
        with directory.lock():
            return finished(directory) or train_under_lock(directory, preemption, further)


def train_under_lock(
    directory: RunDirectory, preemption: Preemption, further: Sequence[Callback]
) -> dict[str, Any]:
    """Begin or resume the run in its folder, which no other command works on."""
    set_up_logging(directory.path / LOG)
    watch = ProcessWatch(directory, preemption)
    with ExitStack() as at_end, explained(directory, watch):
        parts = begin(directory, preemption)
        at_end.callback(lambda: close(parts.loggers, directory.done, bool(preemption.received)))
        record = train_and_evaluate(parts, watch, further)
        gather(None)  # no process goes on before the first has written the record
        watch.wait()
        return record


def begin(directory: RunDirectory, preemption: Preemption) -> Run:
    """Make task and decoder, and with them the run's folder."""
    cfg = directory.cfg
    from_config.require_devices(cfg.trainer)
    loggers = make_lightning_logger(cfg, directory)
    task = from_config.make_task(cfg, directory.start)
    accumulate = from_config.micro_batches(cfg, task)
    every = min(cfg.trainer.validate_every, task.optim.max_steps)
    task.prepare_data()  # which may set the size of the vocabulary
    decoder = from_config.make_decoder(cfg, task)
    directory.open(task.assets())
    return Run(directory, task, decoder, preemption, accumulate, every, loggers=loggers)


def train_and_evaluate(
    run: Run, watch: ProcessWatch, further: Sequence[Callback]
) -> dict[str, Any]:
    """From the last checkpoint, if there is one, to a record."""
    announce(run)
    attention.CHOICES.clear()
    directory = run.directory
    cfg = directory.cfg
    module = make_module(run)
    every = (cfg.trainer.checkpoint_every, run.validate_every, cfg.trainer.log_every)
    saving = Checkpoints(directory.checkpoints, *every, run.preemption)
    # The report of a step comes before its checkpoint: a resumed run would not repeat it.
    callbacks = [StepReport(cfg.trainer.log_every), watch, saving, *further]
    rhythm = (run.accumulate, run.validate_every)
    trainer = from_config.make_trainer(cfg, run.task, *rhythm, directory.path, callbacks)
    from_config.meet(trainer, module)  # the first may have had to clear the run's folder
    checkpoint, step = newest(directory.checkpoints, directory.hash, cfg.trainer.strategy == "fsdp")
    if checkpoint:
        log.info("Resuming from step %d (%s).", step, checkpoint.name)
    run.loggers.extend(make_loggers(cfg, directory, run.clock, step))
    trainer.loggers = run.loggers
    send_settings(run.loggers, directory)
    if run.task.trains:
        fit(run, trainer, module, saving, checkpoint)
    elif directory.start is None:
        log.info("No checkpoint= is given, so that an untrained model is evaluated.")
    seconds = {"training": run.clock.seconds(), "checkpoints": saving.seconds}
    trainer.test(module, run.task, verbose=False)
    return save_results(run, trainer, module, seconds)


def announce(run: Run) -> None:
    """Log which model trains where, and what to be careful about."""
    directory = run.directory
    parameters = run.decoder.parameter_count()
    positional = run.decoder.positional_count()
    part = f" ({positional:,} of them positional)" if positional else ""
    log.info("%s\n  %s parameters%s in %s", directory.name, f"{parameters:,}", part, directory.path)
    if run.decoder.adaptation and run.task.trains:
        trained = sum(p.numel() for _, p in peft.trained(run.decoder))
        log.info("  %s of them are trained", f"{trained:,}")
    for sentence in cautions(directory.cfg, run.task, run.decoder, directory.start):
        log.warning("%s", sentence)


def make_module(run: Run) -> LanguageModule:
    """The decoder as Lightning trains it; one that keeps only what it adapts knows its base."""
    start = run.directory.start
    adaptation = run.decoder.adaptation
    partial = adaptation is not None and adaptation.partial
    base = base_of(start) if start and partial else None
    return LanguageModule(run.decoder, run.task, run.directory.cfg, run.directory.hash, base)


def fit(
    run: Run,
    trainer: Trainer,
    module: LanguageModule,
    saving: Checkpoints,
    checkpoint: Path | None,
) -> None:
    """Train to the last step, save it, and validate it."""
    trainer.fit(module, run.task, ckpt_path=checkpoint, weights_only=True)
    if trainer.interrupted:
        raise KeyboardInterrupt
    saving.save(trainer)
    run.preemption.defer_signals(False)
    # The record has the validation of the last step. It is missing where the last step is between
    # two validations, and where an earlier process made it.
    if run.task.optim.max_steps % run.validate_every or not module.validation:
        trainer.validate(module, run.task, verbose=False)


def save_results(
    run: Run, trainer: Trainer, module: LanguageModule, seconds: dict[str, float]
) -> dict[str, Any]:
    """Save and send all results; return the record, which only the first process has."""
    directory = run.directory
    evaluation = module.evaluation
    step = trainer.global_step
    if not trainer.is_global_zero:
        return {}
    images = save_artifacts(directory, evaluation)
    log_to_all(trainer.loggers, lambda logger: logger.log_metrics(evaluation.metrics, step))
    record = run_record(run, trainer, module, seconds)
    if directory.cfg.debug.name == "none":
        check_finite(record["metrics"], run.task.optim.lr)
    else:  # a shortened evaluation leaves cells empty
        record["metrics"] = {k: v for k, v in record["metrics"].items() if math.isfinite(v)}
    directory.finish(record)
    publish(trainer.loggers, evaluation, images, record)
    log_result(directory, module, images)
    return record


def save_artifacts(directory: RunDirectory, evaluation: Evaluation) -> list[Path]:
    """Write accuracy and patterns (PNG and NPZ) and tables (JSON); return the images."""
    from tape_exp.drawing.plots import grids, run_matrices

    cfg = directory.cfg
    folder = directory.artifacts
    images = []
    model = display_name(cfg.model.name)
    title = f"{model} on {task_title(cfg.task)}, scale {cfg.scale.name}, seed {cfg.seed}"
    grid = evaluation.heatmap
    if grid is not None:
        images.append(grids({model: grid}, folder / f"{grid.name}.png", title))
        np.savez_compressed(folder / f"{grid.name}.npz", values=grid.values)
    if evaluation.matrices:
        path = folder / "patterns.png"
        images.append(run_matrices(evaluation.matrices, path, title))
        np.savez_compressed(folder / "patterns.npz", **evaluation.matrices)  # type: ignore[arg-type]
    for name, rows in evaluation.tables.items():
        write_atomically(folder / f"{name}.json", json.dumps(rows, indent=1) + "\n")
    return images


def run_record(
    run: Run, trainer: Trainer, module: LanguageModule, seconds: dict[str, float]
) -> dict[str, Any]:
    """The record of the run, with the seconds of its training and, in that, its checkpoints."""
    task = run.task
    decoder = run.decoder
    evaluation = module.evaluation
    steps = trainer.global_step
    start = run.directory.start
    trained = peft.trained(decoder) if task.trains else []
    optional = {
        "compiled": module.compiled,
        "begun_from": start and title(start),
        "llama": start and llama_title(start),
        "knows_digits": decoder.knows_digits(),
    }
    return make_record(
        run.directory,
        data_fingerprint=task.data_fingerprint(),
        fingerprint_version=FINGERPRINT,
        metrics={**module.validation, **evaluation.metrics},
        parameters=decoder.parameter_count(),
        positional_parameters=decoder.positional_count(),
        tokens=steps * task.optim.batch * task.arch.train_length,
        trained_parameters=sum(parameter.numel() for _, parameter in trained),
        steps=steps,
        precision=str(trainer.precision),
        attention=[*attention.CHOICES],
        seconds={
            "training": round(seconds["training"], 1),
            "checkpoints": round(seconds["checkpoints"], 2),
            "evaluation": round(run.clock.seconds() - seconds["training"], 1),
        },
        curves=curves(read_metrics(run.directory.metrics)),
        **{key: fact for key, fact in optional.items() if fact},
        **evaluation.for_record(),
    )


def check_finite(metrics: dict[str, float], lr: float) -> None:
    """Raise :class:`NotFiniteError` where a metric is no number: nothing could be drawn of it."""
    for name, value in metrics.items():
        if not math.isfinite(value):
            raise NotFiniteError(
                f"{name} is {value} after training. Lower task.optim.lr={lr}, or train with "
                "trainer.precision=32-true."
            )


def log_result(directory: RunDirectory, module: LanguageModule, images: list[Path]) -> None:
    """Log accuracy by length, metrics with their standard errors (SE), and where the files are."""
    evaluation = module.evaluation
    every = module.validation | module.evaluation.metrics
    if evaluation.heatmap is not None:
        with suppress(OSError):  # the run is DONE, whether or not somebody can read this
            print_heatmaps({directory.cfg.model.name: evaluation.heatmap})
    results = list(filter(is_result, every))
    width = max([28, *map(len, results)])
    for key in results:
        error = evaluation.metrics.get(f"{key}_stderr")
        spread = "" if error is None else f" (SE {error:.2f})"
        log.info("  %-*s %8s%s", width, key, brief(every[key], 2), spread)
    for image in images:
        log.info("  %s", image)
    log.info("DONE: %s", directory.path)
