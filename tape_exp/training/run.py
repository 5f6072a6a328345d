"""One run, from a composed config to a record. It reads like the method section: data, model,
training, evaluation.
"""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch.loggers import Logger
from omegaconf import DictConfig

from tape_exp.drawing import heatmap
from tape_exp.drawing.patterns import draw_patterns
from tape_exp.machine.preemption import Preempted, Preemption, workers_dismissed
from tape_exp.models import peft
from tape_exp.models.decoder import Decoder
from tape_exp.models.peft import Adaptation
from tape_exp.runs import checkpoints, weights
from tape_exp.runs.directory import RunDirectory
from tape_exp.runs.evaluation import Evaluation
from tape_exp.runs.identity import identity_of
from tape_exp.runs.record import make_record
from tape_exp.runs.sinks import JsonlLogger, close, curves, make_loggers, publish, read_metrics
from tape_exp.settings.redaction import redact_tree
from tape_exp.settings.schema import check
from tape_exp.tasks.base import Task
from tape_exp.training import faults
from tape_exp.training.assembly import (
    make_adaptation,
    make_decoder,
    make_task,
    make_trainer,
    micro_batches,
)
from tape_exp.training.callbacks import (
    OwnSignals,
    Progress,
    Report,
    Throughput,
    tracker,
    trainable_summary,
)
from tape_exp.training.logs import progress_mode, set_up_logging
from tape_exp.training.module import LanguageModule

log = logging.getLogger("tape_exp")


def run(cfg: DictConfig) -> dict[str, Any]:
    """Train and evaluate what ``cfg`` says, or return the record of the finished run.

    With ``debug=plan`` an estimate is printed instead and the record is empty.

    Raises:
        ConfigError: the config cannot run; nothing was begun.
        Preempted: a signal told the run to leave; its checkpoint is saved, and the process ends
            with status 85.
        Exception: whatever stopped the run; FAILED in its directory holds the traceback.
    """
    check(cfg)
    if cfg.debug.plan:
        from tape_exp.training.plan import show  # it builds task and model as this file does

        show(cfg)
        return {}
    cfg = weights.adopt(cfg)
    directory = RunDirectory(cfg)
    if finished(cfg, directory):
        return directory.record()

    progress = progress_mode(cfg.trainer.progress)
    set_up_logging(None, progress)
    with Preemption() as preemption:
        task = make_task(cfg)
        micro_batches(cfg, task)
        adaptation = make_adaptation(cfg, task)
        task.prepare_data()
        decoder = make_decoder(cfg, task, adaptation)
        with directory.lock(), workers_dismissed():
            if finished(cfg, directory):  # by another process, meanwhile
                return directory.record()
            return run_in(directory, cfg, task, decoder, adaptation, progress, preemption)


def finished(cfg: DictConfig, directory: RunDirectory) -> bool:
    """Whether nothing is left to do, which is then said."""
    if not directory.done or cfg.debug.name != "none":
        return False
    set_up_logging(None, "none")
    log.info("%s is DONE: %s", directory.name, directory.path)
    return True


def run_in(
    directory: RunDirectory,
    cfg: DictConfig,
    task: Task,
    decoder: Decoder,
    adaptation: Adaptation | None,
    progress: str,
    preemption: Preemption,
) -> dict[str, Any]:
    """The run in its directory: what it leaves there, however it ends."""
    directory.open(task.assets())
    task.folder = directory.artifacts
    set_up_logging(directory.path / "log.txt", progress)
    log.info("%s\n  %s in %s", directory.name, trainable_summary(decoder), directory.path)
    if adaptation is not None and task.trains:
        log.info("%s", peft.table(decoder))
    loggers: list[Logger] = []
    watch = faults.Watch(directory.fail, lambda: preemption.received is not None)
    goes_on = f"The same command goes on from the last checkpoint in {directory.checkpoints}."
    try:
        loggers = make_loggers(cfg, directory)
        return train_and_evaluate(
            cfg, directory, task, decoder, adaptation, progress, loggers, preemption, watch
        )
    except (KeyboardInterrupt, SystemExit) as error:
        log.info(
            "Stopped%s. %s", f" by {error.name}" if isinstance(error, Preempted) else "", goes_on
        )
        raise
    except Exception as error:
        if (
            preemption.received is not None
        ):  # what fails now, fails of leaving: another process has left before
            log.info("Stopped by %s (%s). %s", preemption.received, type(error).__name__, goes_on)
            raise Preempted(preemption.received) from error
        told = faults.explain(error, cfg, directory, watch.verdict())
        failed = directory.fail(told)
        log.info(
            "%s %s",
            f"The traceback is in {failed}." if failed else "FAILED could not be written.",
            goes_on,
        )
        raise told from (None if told is error else error)
    finally:
        close(
            loggers, cfg.logger.timeout, directory.done, preempted=preemption.received is not None
        )


def train_and_evaluate(
    cfg: DictConfig,
    directory: RunDirectory,
    task: Task,
    decoder: Decoder,
    adaptation: Adaptation | None,
    progress: str,
    loggers: list[Logger],
    preemption: Preemption,
    watch: faults.Watch,
) -> dict[str, Any]:
    """From the last checkpoint, if there is one, to a record."""
    checkpoint, step = checkpoints.newest(directory.checkpoints, directory.hash)
    jsonl = loggers[0]
    assert isinstance(jsonl, JsonlLogger)
    jsonl.rewind(step)
    if checkpoint:
        log.info("Going on from step %d (%s).", step, checkpoint.name)

    module = LanguageModule(
        torch.compile(decoder) if cfg.trainer.compile else decoder,  # type: ignore[arg-type]
        task,
        cfg.seed,
        cfg.trainer.log_every,
        directory.hash,
        tracker(progress),
        cfg.debug.evaluation_batches,
        base=weights.base_title(task.checkpoint)
        if adaptation is not None and adaptation.partial
        else None,
    )
    validate_every = min(cfg.trainer.validate_every, task.optim.max_steps)
    keep = checkpoints.Checkpoints(
        directory.checkpoints, cfg.trainer.checkpoint_every, validate_every, preemption
    )
    shown = [Throughput(cfg.trainer.log_every), Report(), Progress(progress)]
    trainer = make_trainer(
        cfg, directory, task, loggers, [*shown, OwnSignals(preemption), watch, keep]
    )
    if task.trains:
        trainer.fit(module, task, ckpt_path=checkpoint, weights_only=True)
        if trainer.interrupted:
            raise KeyboardInterrupt
        keep.save(trainer)
        preemption.wait(False)
        if task.optim.max_steps % validate_every or not module.validation:
            trainer.validate(
                module, task, verbose=False
            )  # of the last step, beside which the record's metrics stand
    trained = jsonl.watch.seconds()
    trainer.test(module, task, verbose=False)
    evaluation = module.evaluation
    assert evaluation is not None
    adapter = peft.adapter(decoder) if module.base is not None and task.trains else None
    if not trainer.is_global_zero:
        return {}
    llama = weights.llama_below(task.checkpoint) if task.checkpoint else None
    images = save_artifacts(directory, evaluation)
    if adapter is not None and module.base is not None:
        peft.save_adapter(
            adapter, directory.artifacts / "adapter", module.base, redact_tree(identity_of(cfg))
        )
    publish(loggers, evaluation, images, trainer.global_step)
    record = make_record(
        directory,
        task,
        metrics={**module.validation, **evaluation.metrics},
        parameters=decoder.parameter_count(),
        positional_parameters=decoder.positional_count(),
        trained_parameters=sum(parameter.numel() for _, parameter in peft.trained(decoder))
        if task.trains
        else 0,
        steps=trainer.global_step,
        tokens=trainer.global_step * task.optim.batch * task.arch.train_length,
        precision=str(trainer.precision),
        seconds={
            "training": round(trained, 1),
            "checkpoints": round(keep.seconds, 2),  # part of the training, of its last process
            "evaluation": round(jsonl.watch.seconds() - trained, 1),
        },
        curves=curves(read_metrics(jsonl.path)),
        **({"begun_from": weights.title(task.checkpoint)} if task.checkpoint else {}),
        **({"llama": weights.title(llama)} if llama else {}),
        **({"samples": evaluation.samples} if evaluation.samples else {}),
        **grids_of(evaluation),
    )
    directory.finish(record)
    report(directory, evaluation, images)
    return record


def save_artifacts(directory: RunDirectory, evaluation: Evaluation) -> list[Path]:
    """heatmap.png and heatmap.npz, patterns.png and patterns.npz, and a JSON file a table; returns
    the images.
    """
    images = []
    if evaluation.heatmap is not None:
        panels = {directory.cfg.model.name: evaluation.heatmap}
        images.append(heatmap.draw(panels, directory.artifacts / "heatmap.png", directory.name))
        np.savez_compressed(directory.artifacts / "heatmap.npz", values=evaluation.heatmap.values)
    if evaluation.matrices:
        path = directory.artifacts / "patterns.png"
        causal = [name for name in evaluation.matrices if name.startswith("attention")]
        images.append(
            draw_patterns(evaluation.matrices, path, directory.name, causal=causal, shared=False)
        )
        np.savez_compressed(directory.artifacts / "patterns.npz", **evaluation.matrices)  # type: ignore[arg-type]
    for name, rows in evaluation.tables.items():
        directory.write_json(f"artifacts/{name}.json", rows)
    return images


def grids_of(evaluation: Evaluation) -> dict[str, Any]:
    """What a record keeps of pictures: rounded, since it is committed."""
    grids: dict[str, Any] = {}
    if evaluation.heatmap:
        grids["heatmap"] = evaluation.heatmap.to_rows()
    if evaluation.matrices:
        grids["matrices"] = {
            name: np.round(values, 4).tolist() for name, values in evaluation.matrices.items()
        }
    return grids


def report(directory: RunDirectory, evaluation: Evaluation, images: list[Path]) -> None:
    """What a person wants to see at the end."""
    if evaluation.heatmap is not None:
        heatmap.print_heatmaps({directory.cfg.model.name: evaluation.heatmap})
    for key, value in evaluation.metrics.items():
        if not key.endswith("_stderr"):
            error = evaluation.metrics.get(f"{key}_stderr")
            shown = f"{value:.2f}" if abs(value) >= 0.01 or value == 0 else f"{value:.1e}"
            log.info("  %-28s %8s%s", key, shown, "" if error is None else f" ± {error:.2f}")
    for image in images:
        log.info("  %s", image)
    log.info("DONE: %s", directory.path)
