"""One run, from a composed config to a record: data, model, training, evaluation."""

import logging
import math
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning import Callback, Trainer
from omegaconf import DictConfig

from tape_exp.drawing import heatmap
from tape_exp.drawing.diagnostics import diagnostic_figures
from tape_exp.drawing.patterns import draw_patterns, matrix_name
from tape_exp.drawing.terminal import brief, print_heatmaps
from tape_exp.machine.preemption import Preemption, workers_dismissed
from tape_exp.models import attention, peft
from tape_exp.models.attention import fastest
from tape_exp.runs import checkpoints, weights
from tape_exp.runs.checkpoints import Checkpoints
from tape_exp.runs.directory import RunDirectory
from tape_exp.runs.evaluation import Evaluation, is_diagnostic
from tape_exp.runs.identity import identity_of
from tape_exp.runs.record import make_record
from tape_exp.runs.sinks import close, curves, give, make_loggers, publish, read_metrics, setting_of
from tape_exp.settings import plugins
from tape_exp.settings.display import display_name
from tape_exp.settings.redaction import redact_tree
from tape_exp.settings.schema import check
from tape_exp.tasks.base import FINGERPRINT
from tape_exp.training.assembly import Run, assemble, make_trainer
from tape_exp.training.callbacks import OwnSignals, Progress, StepReport, parameter_text, tracker
from tape_exp.training.faults import LostProcessError, ProcessWatch, explained
from tape_exp.training.heartbeat import Heartbeat
from tape_exp.training.logs import progress_mode, set_up_logging
from tape_exp.training.module import LanguageModule, NotFiniteError

log = logging.getLogger("tape_exp")


def run(cfg: DictConfig, further: Sequence[Callback] = ()) -> dict[str, Any]:
    """Train and evaluate what ``cfg`` says, or return the record of the finished run.

    With ``debug=plan`` an estimate is printed instead and the record is empty.

    Args:
        further: callbacks of the training, besides its own.

    Raises:
        ConfigError: the config cannot run; nothing was begun.
        GivenUpError: a callback gave the run up.
        Preempted: a signal told the run to leave; its checkpoint is saved, and the process ends
            with status 85.
        Exception: whatever stopped the run; FAILED in its directory holds the traceback.
    """
    plugins.use_packages(cfg.plugins)  # in a process that another has started
    check(cfg)
    if cfg.debug.plan:
        from tape_exp.training.plan import print_plan  # which few runs need

        print_plan(cfg)
        return {}
    cfg = weights.adopt(cfg)
    directory = RunDirectory(cfg)
    if is_finished(directory):
        return finished_record(directory)
    set_up_logging(None, progress_mode(cfg.trainer.progress))
    with Preemption() as preemption:
        context = assemble(cfg, directory, preemption)
        with directory.lock(), workers_dismissed():
            if is_finished(directory):  # by another process, meanwhile
                return finished_record(directory)
            return work(context, further)


def is_finished(directory: RunDirectory) -> bool:
    """Whether nothing is left to do; a debug run is always made anew."""
    return directory.done and directory.cfg.debug.name == "none"


def finished_record(directory: RunDirectory) -> dict[str, Any]:
    """The record of a finished run, after a line that says so."""
    set_up_logging(None, "none")
    log.info("%s is DONE: %s", directory.name, directory.path)
    record = directory.record()
    directory.refuse_other_weights(record)
    if told := plugins.changed(record.get("plugins"), record["config"]):
        log.warning("%s Remove its folder to run it anew.", told)
    return record


def work(run: Run, further: Sequence[Callback] = ()) -> dict[str, Any]:
    """The run in its directory: what it leaves there, however it ends."""
    directory, preemption = run.directory, run.preemption
    directory.open(run.task.assets())
    set_up_logging(directory.path / "log.txt", run.progress)
    attention.forget()
    fastest.keep_in(run.task.surroundings.cache)
    log.info("%s\n  %s in %s", directory.name, parameter_text(run.decoder), directory.path)
    if run.adaptation is not None and run.task.trains:
        log.info("%s", peft.table(run.decoder))
    watch = ProcessWatch(directory.fail, lambda: preemption.received is not None)
    try:
        with explained(run.cfg, directory, preemption, watch):
            return train_and_evaluate(run, watch, further)
    finally:
        preempted = preemption.received is not None
        close(run.sinks, run.cfg.logger.timeout, directory.done, preempted)


def train_and_evaluate(
    run: Run, watch: ProcessWatch, further: Sequence[Callback]
) -> dict[str, Any]:
    """From the last checkpoint, if there is one, to a record."""
    checkpoint, step = checkpoints.newest(run.directory.checkpoints, run.directory.hash)
    if checkpoint:
        log.info("Going on from step %d (%s).", step, checkpoint.name)
    run.sinks.extend(make_loggers(run.cfg, run.directory, run.clock, step))

    module = make_module(run)
    folder, every = run.directory.checkpoints, run.cfg.trainer.checkpoint_every
    saving = Checkpoints(folder, every, run.validate_every, run.preemption)
    progress = Progress(run.progress)
    report = StepReport(run.cfg.trainer.log_every)
    heartbeat = Heartbeat(
        run.cfg.trainer.heartbeat, lambda sentence: run.directory.fail(LostProcessError(sentence))
    )
    # The report of a step comes before its checkpoint: going on from there would not repeat it.
    callbacks = [report, progress, OwnSignals(run.preemption), watch, heartbeat, saving, *further]
    trainer = make_trainer(run, callbacks)

    if not run.task.trains and run.task.surroundings.checkpoint is None:
        log.info("No checkpoint= is given, so that an untrained model is evaluated.")
    if run.task.trains:
        if step < run.task.optim.max_steps:
            run.task.forget()
        train(run, trainer, module, saving, checkpoint)
    seconds = {"training": run.clock.seconds(), "checkpoints": saving.seconds}
    trainer.test(module, run.task, verbose=False)
    adapter = gather_adapter(run, module)
    heartbeat.stop()  # all collectives are over: nobody waits for another process any more
    return save_results(run, trainer, module, adapter, seconds)


def make_module(run: Run) -> LanguageModule:
    """Model, loss and optimizer, as Lightning trains them."""
    if run.cfg.trainer.compile:
        run.decoder.compile()
    partial = run.adaptation is not None and run.adaptation.partial
    begun_from = run.task.surroundings.checkpoint
    base = weights.base_below(begun_from) if partial and begun_from is not None else None
    return LanguageModule(
        run.decoder,
        run.task,
        run.cfg.seed,
        run.cfg.trainer.log_every,
        run.directory.hash,
        tracker(run.progress),
        run.cfg.debug.evaluation_batches,
        base=None if base is None else weights.title(base),
        compiled=run.cfg.trainer.compile,
        base_weights=None if base is None else weights.fingerprint(base),
    )


def train(
    run: Run, trainer: Trainer, module: LanguageModule, saving: Checkpoints, begin: Path | None
) -> None:
    """Train from the checkpoint ``begin`` to the last step, which is validated and saved."""
    trainer.fit(module, run.task, ckpt_path=begin, weights_only=True)
    if trainer.interrupted:
        raise KeyboardInterrupt
    saving.save(trainer)
    run.preemption.wait(False)
    # The record has the validation of the last step. It is missing where the last step is between
    # two validations, and where an earlier process made it.
    if run.task.optim.max_steps % run.validate_every or not module.validation:
        trainer.validate(module, run.task, verbose=False)


def gather_adapter(run: Run, module: LanguageModule) -> dict[str, torch.Tensor] | None:
    """The weights of a trained adapter, if there is one.

    Every process takes part: a sharded model is gathered by collectives.
    """
    return peft.adapter(run.decoder) if module.base is not None and run.task.trains else None


def save_results(
    run: Run,
    trainer: Trainer,
    module: LanguageModule,
    adapter: dict[str, torch.Tensor] | None,
    seconds: dict[str, float],
) -> dict[str, Any]:
    """Save artifacts, adapter and metrics; return the record, which only the first process has."""
    evaluation = module.evaluation
    assert evaluation is not None
    if not trainer.is_global_zero:
        return {}
    images = save_artifacts(run.directory, evaluation)
    if adapter is not None and module.base is not None:
        folder = run.directory.artifacts / "adapter"
        peft.save_adapter(adapter, folder, module.base, redact_tree(identity_of(run.cfg)))
    step = trainer.global_step
    give(trainer.loggers, lambda logger: logger.log_metrics(evaluation.metrics, step))
    record = record_of(run, trainer, module, evaluation, seconds)
    if run.cfg.debug.name == "none":
        check_finite(record["metrics"], run.task.optim.lr)
    else:  # a shortened evaluation leaves cells empty
        record["metrics"] = {k: v for k, v in record["metrics"].items() if math.isfinite(v)}
    run.directory.finish(record)
    facts = {**sizes(run, step), "seconds": seconds["training"]} | module.validation
    publish(trainer.loggers, evaluation, images, step, facts)
    log_result(run.directory, module.validation, evaluation, images)
    return record


def save_artifacts(directory: RunDirectory, evaluation: Evaluation) -> list[Path]:
    """Write the heatmap and patterns (PNG and NPZ), the tables (JSON) and what is drawn of those
    (PNG); return the images.
    """
    images, model = [], display_name(directory.cfg.model.name)
    title = f"{setting_of(directory.cfg)} ({directory.hash})"
    if evaluation.heatmap is not None:
        path = directory.artifacts / "heatmap.png"
        images.append(heatmap.draw({model: evaluation.heatmap}, path, title))
        np.savez_compressed(directory.artifacts / "heatmap.npz", values=evaluation.heatmap.values)
    if evaluation.matrices:
        path = directory.artifacts / "patterns.png"
        matrices = {matrix_name(key): values for key, values in evaluation.matrices.items()}
        causal = [name for name in matrices if name.startswith("attention")]
        title = f"{model}: {title}"
        images.append(draw_patterns(matrices, path, title, causal=causal, shared=False))
        np.savez_compressed(directory.artifacts / "patterns.npz", **evaluation.matrices)  # type: ignore[arg-type]
    for name, rows in evaluation.tables.items():
        directory.write_json(f"artifacts/{name}.json", rows)
    for name, figure in diagnostic_figures(evaluation.tables, directory.cfg.model.name).items():
        images.append(figure.draw(directory.artifacts / f"{name}.png"))
    return images


def record_of(
    run: Run,
    trainer: Trainer,
    module: LanguageModule,
    evaluation: Evaluation,
    seconds: dict[str, float],
) -> dict[str, Any]:
    """The record of the run.

    Args:
        seconds: that ``training`` took, and ``checkpoints``, which are a part of it, of its last
            process.
    """
    begun_from = run.task.surroundings.checkpoint
    llama = weights.llama_title(begun_from) if begun_from else None
    trained = peft.trained(run.decoder) if run.task.trains else []
    return make_record(
        run.directory,
        run.task.data_fingerprint(),
        fingerprint_version=FINGERPRINT,
        metrics={**module.validation, **evaluation.metrics},
        **sizes(run, trainer.global_step),
        trained_parameters=sum(parameter.numel() for _, parameter in trained),
        steps=trainer.global_step,
        precision=str(trainer.precision),
        **({"compiled": True} if run.cfg.trainer.compile else {}),
        attention=attention.choices(),
        seconds={
            "training": round(seconds["training"], 1),
            "checkpoints": round(seconds["checkpoints"], 2),
            "evaluation": round(run.clock.seconds() - seconds["training"], 1),
        },
        curves=curves(read_metrics(run.directory.metrics)),
        **({"begun_from": weights.title(begun_from)} if begun_from else {}),
        **({"begun_from_weights": of_base} if (of_base := run.directory.begins_from) else {}),
        **({"llama": llama} if llama else {}),
        **({"knows_digits": True} if run.decoder.knows_digits() else {}),
        **evaluation.for_record(),
    )


def sizes(run: Run, steps: int) -> dict[str, int]:
    """Parameters of the model, those of its positions, and tokens of so many steps."""
    return {
        "parameters": run.decoder.parameter_count(),
        "positional_parameters": run.decoder.positional_count(),
        "tokens": steps * run.task.optim.batch * run.task.arch.train_length,
    }


def check_finite(metrics: dict[str, float], lr: float) -> None:
    """Raise :class:`NotFiniteError` where a metric is no number: nothing could be drawn of it."""
    for name, value in metrics.items():
        if not math.isfinite(value):
            raise NotFiniteError(
                f"{name} is {value} after training. Lower task.optim.lr={lr}, or train with "
                "trainer.precision=32-true."
            )


def log_result(
    directory: RunDirectory,
    validation: dict[str, float],
    evaluation: Evaluation,
    images: list[Path],
) -> None:
    """Log what a person wants to see at the end: heatmap, metrics with their standard errors (SE),
    the validation of the last step included, and where the files are.
    """
    if evaluation.heatmap is not None:
        with suppress(OSError):  # the run is DONE, whether or not somebody can read this
            print_heatmaps({directory.cfg.model.name: evaluation.heatmap})
    every = validation | evaluation.metrics
    told = [key for key in every if not key.endswith("_stderr") and not is_diagnostic(key)]
    wide = max([28, *map(len, told)])
    for key in told:
        error = evaluation.metrics.get(f"{key}_stderr")
        spread = "" if error is None else f" (SE {error:.2f})"
        log.info("  %-*s %8s%s", wide, key, brief(every[key], 2), spread)
    for image in images:
        log.info("  %s", image)
    log.info("DONE: %s", directory.path)
