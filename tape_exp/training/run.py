"""One run, from a composed config to a record: data, model, training, evaluation."""

import logging
import math
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lightning import Callback, Trainer
from lightning.pytorch.loggers import Logger
from omegaconf import DictConfig

from tape_exp.machine.preemption import Preemption
from tape_exp.machine.processes import gather
from tape_exp.models import compilation, peft
from tape_exp.models.decoder import Decoder
from tape_exp.runs.checkpoints import Checkpoints, newest
from tape_exp.runs.directory import LOG, RunDirectory
from tape_exp.runs.loggers import (
    close,
    log_to_all,
    make_lightning_logger,
    make_loggers,
    publish,
    send_settings,
)
from tape_exp.runs.metrics import Stopwatch
from tape_exp.runs.starting_weights import base_of
from tape_exp.tasks.base import Task
from tape_exp.training.callbacks import StepReport
from tape_exp.training.cautions import cautions
from tape_exp.training.faults import ProcessWatch, explained
from tape_exp.training.finished import finished
from tape_exp.training.from_config import make_decoder, make_task, micro_batches
from tape_exp.training.logs import logs_of_run, set_up_logging
from tape_exp.training.module import LanguageModule
from tape_exp.training.outcome import (
    check_finite,
    log_result,
    run_record,
    save_artifacts,
    summary_of,
)
from tape_exp.training.trainer import make_trainer, meet, processes, require_devices

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
        processes(cfg.trainer, directory.hash),
    ):
        record = finished(directory)  # without the lock, which a read-only disk refuses
        if record:
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
    require_devices(cfg.trainer)
    loggers = make_lightning_logger(cfg, directory)
    task = make_task(cfg, directory.start)
    accumulate = micro_batches(cfg, task)
    task.prepare_data()  # which may set the size of the vocabulary
    decoder = make_decoder(cfg, task)
    directory.open(task.assets())
    return Run(
        directory,
        task,
        decoder,
        preemption,
        accumulate=accumulate,
        validate_every=min(cfg.trainer.validate_every, task.optim.max_steps),
        loggers=loggers,
    )


def train_and_evaluate(
    run: Run, watch: ProcessWatch, further: Sequence[Callback]
) -> dict[str, Any]:
    """Train from the last checkpoint, if there is one, evaluate, and return the record."""
    log_begin(run)
    compilation.CHOSEN_BACKENDS.clear()  # to which the run adds the backends that the record names
    directory = run.directory
    cfg = directory.cfg
    module = make_module(run)
    saving = make_checkpoints(run)
    # The report of a step comes before its checkpoint: a resumed run would not repeat it.
    callbacks = [StepReport(cfg.trainer.log_every), watch, saving, *further]
    trainer = make_trainer(
        cfg, run.task, run.accumulate, run.validate_every, directory.path, callbacks
    )
    meet(trainer, module)  # the first may have had to clear the run's folder
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
    trained_for = run.clock.seconds()
    trainer.test(module, run.task, verbose=False)
    return save_results(run, trainer, module, trained_for, saving.seconds)


def log_begin(run: Run) -> None:
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
    """Make the decoder one that Lightning trains. Where checkpoints hold only what is adapted, they
    name the base.
    """
    start = run.directory.start
    adaptation = run.decoder.adaptation
    base = None
    if start is not None and adaptation is not None and adaptation.partial:
        base = base_of(start)
    return LanguageModule(run.decoder, run.task, run.directory.cfg, run.directory.hash, base)


def make_checkpoints(run: Run) -> Checkpoints:
    """Make the callback that saves checkpoints, also on a signal to leave."""
    trainer = run.directory.cfg.trainer
    return Checkpoints(
        run.directory.checkpoints,
        every=trainer.checkpoint_every,
        validate_every=run.validate_every,
        agree_every=trainer.log_every,
        preemption=run.preemption,
    )


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
    run: Run,
    trainer: Trainer,
    module: LanguageModule,
    trained_for: float,
    saved_for: float,
) -> dict[str, Any]:
    """Save and send all results; return the record, which only the first process has.

    Args:
        trained_for: the seconds of training.
        saved_for: those of them in which it waited for its checkpoints.
    """
    directory = run.directory
    evaluation = module.evaluation
    step = trainer.global_step
    if not trainer.is_global_zero:
        return {}
    images = save_artifacts(directory, evaluation)
    log_to_all(trainer.loggers, lambda logger: logger.log_metrics(evaluation.metrics, step))
    seconds = {
        "training": round(trained_for, 1),
        "checkpoints": round(saved_for, 2),
        "evaluation": round(run.clock.seconds() - trained_for, 1),
    }
    record = run_record(directory, trainer, module, seconds)
    if directory.cfg.debug.name == "none":
        check_finite(record["metrics"], run.task.optim)
    else:  # a shortened evaluation leaves cells empty
        record["metrics"] = {k: v for k, v in record["metrics"].items() if math.isfinite(v)}
    directory.finish(record)
    tables = {"samples": evaluation.samples, **evaluation.tables}
    publish(trainer.loggers, images, tables, summary_of(record))
    log_result(directory, module, images)
    return record
