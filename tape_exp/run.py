"""One run, from a composed config to a record. It reads like the method section: data, model, training, evaluation."""

import logging
import sys
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning import Trainer
from lightning.fabric.plugins.environments import SLURMEnvironment
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import Logger
from lightning.pytorch.strategies import Strategy
from omegaconf import DictConfig, OmegaConf

from tape_exp import checkpoints, faults, heatmap, weights
from tape_exp.callbacks import OwnSignals, Progress, Report, Throughput, tracker, trainable_summary
from tape_exp.config import ConfigError, build, check
from tape_exp.evaluation import Evaluation
from tape_exp.models import peft
from tape_exp.models.decoder import Decoder
from tape_exp.models.peft import Adaptation
from tape_exp.module import LanguageModule
from tape_exp.patterns import draw_patterns
from tape_exp.preemption import Preempted, Preemption, first_process, workers_dismissed
from tape_exp.redaction import RedactingFormatter, redact_tree
from tape_exp.runs import RunDirectory, identity, make_record
from tape_exp.sinks import JsonlLogger, close, curves, make_loggers, publish, read_metrics
from tape_exp.tasks.base import Task

log = logging.getLogger("tape_exp")


def run(cfg: DictConfig) -> dict[str, Any]:
    """Train and evaluate what ``cfg`` says, or return the record of the finished run.

    With ``debug=plan`` an estimate is printed instead and the record is empty.

    Raises:
        ConfigError: the config cannot run; nothing was begun.
        Preempted: a signal told the run to leave; its checkpoint is saved, and the process ends with status 85.
        Exception: whatever stopped the run; FAILED in its directory holds the traceback.
    """
    check(cfg)
    if cfg.debug.plan:
        from tape_exp.plan import show  # it builds task and model as this file does

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
        return train_and_evaluate(cfg, directory, task, decoder, adaptation, progress, loggers, preemption, watch)
    except (KeyboardInterrupt, SystemExit) as error:
        log.info("Stopped%s. %s", f" by {error.name}" if isinstance(error, Preempted) else "", goes_on)
        raise
    except Exception as error:
        if preemption.received is not None:  # what fails now, fails of leaving: another process has left before
            log.info("Stopped by %s (%s). %s", preemption.received, type(error).__name__, goes_on)
            raise Preempted(preemption.received) from error
        told = faults.explain(error, cfg, directory, watch.verdict())
        failed = directory.fail(told)
        log.info("%s %s", f"The traceback is in {failed}." if failed else "FAILED could not be written.", goes_on)
        raise told from (None if told is error else error)
    finally:
        close(loggers, cfg.logger.timeout, directory.done, preempted=preemption.received is not None)


def make_task(cfg: DictConfig) -> Task:
    """The task, with the checkpoint that its run begins from."""
    task = blank_task(cfg)
    begin = weights.wanted(cfg)
    task.checkpoint = weights.find(begin, cfg) if begin else None
    return task


def blank_task(cfg: DictConfig) -> Task:
    """The task, with the debug section's shortcuts applied and no checkpoint looked for."""
    section: Any = OmegaConf.to_container(cfg.task, resolve=True)
    if cfg.debug.max_steps is not None and "optim" in section:
        section["optim"]["max_steps"] = cfg.debug.max_steps
    task: Task = build(section, "task", seed=cfg.seed)
    task.overfit = cfg.debug.overfit
    task.workers = cfg.trainer.workers
    task.cache = Path(cfg.cache).expanduser()
    return task


def make_adaptation(cfg: DictConfig, task: Task) -> Adaptation | None:
    """The method of ``peft``, if it is one.

    Raises:
        ConfigError: there is nothing to adapt, or the context is longer than positions reach.
    """
    if cfg.peft.name == "none":
        return None
    adaptation: Adaptation = build(cfg.peft, "peft", name=cfg.peft.name)
    if task.checkpoint is None:
        raise ConfigError(f"peft={adaptation.name} adapts a trained model: name it in checkpoint=<run, folder or repository>.")
    weights.check_base(task.checkpoint)
    length, reach = task.arch.train_length, weights.trained_length(task.checkpoint)
    if task.trains and reach and adaptation.theta is None and length > reach * adaptation.interpolation:
        raise ConfigError(
            f"task.train_length={length} is longer than the {reach} tokens that the base was trained on, times "
            f"peft.interpolation={adaptation.interpolation}; set peft.interpolation={-(-length // reach)}."
        )
    return adaptation


def make_decoder(cfg: DictConfig, task: Task, adaptation: Adaptation | None = None) -> Decoder:
    """The model that the positional encoding and the task's sizes make, with the weights of ``checkpoint``, adapted."""
    model: Any = OmegaConf.to_container(cfg.model, resolve=True)
    if adaptation is not None:
        model = adaptation.positions(model)
    blank = task.checkpoint is not None and weights.llama_below(task.checkpoint) is not None
    decoder = Decoder(task.arch, partial(make_position, model), cfg.seed, cfg.trainer.attention, blank)
    if task.checkpoint is not None:
        weights.begin(decoder, task.checkpoint, adaptation, cfg.seed, task.trains)
        log.info("Weights of %s.", weights.title(task.checkpoint))
    elif adaptation is not None:
        adaptation.apply(decoder, cfg.seed)  # of a plan, which loads no weights
    if task.trains and task.optim.position_lr != 1 and not decoder.positional_count():
        raise ConfigError(
            f"task.optim.position_lr={task.optim.position_lr} has no effect: model={cfg.model.name} trains no parameters of "
            "positions; leave it at 1.0."
        )
    decoder.recompute = cfg.trainer.checkpoint_activations
    if cfg.trainer.frozen_bf16:
        peft.freeze_in_bf16(decoder)
    return decoder


def make_position(model: dict[str, Any], arch: Any) -> Any:
    """One layer's positional encoding from the ``model`` section."""
    return build(model, "model", arch=arch)


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
        base=weights.base_title(task.checkpoint) if adaptation is not None and adaptation.partial else None,
    )
    validate_every = min(cfg.trainer.validate_every, task.optim.max_steps)
    keep = checkpoints.Checkpoints(directory.checkpoints, cfg.trainer.checkpoint_every, validate_every, preemption)
    shown = [Throughput(cfg.trainer.log_every), Report(), Progress(progress)]
    trainer = make_trainer(cfg, directory, task, loggers, [*shown, OwnSignals(preemption), watch, keep])
    if task.trains:
        trainer.fit(module, task, ckpt_path=checkpoint, weights_only=True)
        if trainer.interrupted:
            raise KeyboardInterrupt
        keep.save(trainer)
        preemption.wait(False)
        if task.optim.max_steps % validate_every or not module.validation:
            trainer.validate(module, task, verbose=False)  # of the last step, beside which the record's metrics stand
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
        peft.save_adapter(adapter, directory.artifacts / "adapter", module.base, redact_tree(identity(cfg)))
    publish(loggers, evaluation, images, trainer.global_step)
    record = make_record(
        directory,
        task,
        metrics={**module.validation, **evaluation.metrics},
        parameters=decoder.parameter_count(),
        positional_parameters=decoder.positional_count(),
        trained_parameters=sum(parameter.numel() for _, parameter in peft.trained(decoder)) if task.trains else 0,
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


def make_trainer(cfg: DictConfig, directory: RunDirectory, task: Task, loggers: list, callbacks: list[Callback]) -> Trainer:
    """Lightning's trainer for the config, with accumulation to the global batch."""
    devices = cfg.trainer.devices * cfg.trainer.nodes
    accumulate = micro_batches(cfg, task)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Trainer(
            accelerator=cfg.trainer.accelerator,
            devices=cfg.trainer.devices,
            num_nodes=cfg.trainer.nodes,
            strategy=strategy(cfg.trainer.strategy, devices),
            precision=precision(cfg.trainer.precision, cfg.trainer.accelerator),  # type: ignore[arg-type]
            logger=loggers,
            callbacks=callbacks,
            plugins=[checkpoints.SafeCheckpointIO(), *without_requeue()],
            max_epochs=-1,
            max_steps=task.optim.max_steps,
            accumulate_grad_batches=accumulate,
            val_check_interval=min(cfg.trainer.validate_every, task.optim.max_steps) * accumulate,
            check_val_every_n_epoch=None,
            num_sanity_val_steps=0,
            use_distributed_sampler=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            profiler=profiler(cfg.debug.profiler, directory),
        )


def micro_batches(cfg: DictConfig, task: Task) -> int:
    """Forward passes of each device per optimizer step. Raises :class:`ConfigError` where the global batch does not split."""
    if not task.trains:
        return 1
    devices, batch = cfg.trainer.devices * cfg.trainer.nodes, task.optim.batch
    if batch % devices:
        raise ConfigError(
            f"task.optim.batch={batch} cannot be shared by {devices} devices; "
            f"task.optim.batch={-(-batch // devices) * devices} could."
        )
    per_device = batch // devices
    micro = min(cfg.trainer.micro_batch or per_device, per_device)
    if per_device % micro:
        fitting = next(m for m in range(micro, 0, -1) if per_device % m == 0)
        raise ConfigError(
            f"trainer.micro_batch={micro} does not divide the {per_device} rows of a device; "
            f"trainer.micro_batch={fitting} does."
        )
    return per_device // micro


def strategy(name: str, devices: int) -> "str | Strategy":
    """Lightning's strategy of that name; ``auto`` is DDP where there are several devices."""
    if name == "fsdp":
        from lightning.pytorch.strategies import ModelParallelStrategy

        return ModelParallelStrategy(data_parallel_size=devices, tensor_parallel_size=1, save_distributed_checkpoint=False)
    return "ddp" if devices > 1 or name == "ddp" else "auto"


def without_requeue() -> list[SLURMEnvironment]:
    """Lightning's plugin for a process that SLURM started: without its own requeueing, which would act beside ours."""
    return [SLURMEnvironment(auto_requeue=False)] if SLURMEnvironment.detect() else []


def precision(name: str, accelerator: str) -> str:
    """bf16-mixed where a GPU has it and ``auto`` is asked for; 32-true on a CPU."""
    if name != "auto":
        return name
    return "bf16-mixed" if accelerator != "cpu" and torch.cuda.is_available() and torch.cuda.is_bf16_supported() else "32-true"


def profiler(name: str | None, directory: RunDirectory) -> Any:
    """Lightning's profiler, writing into the run's artifacts."""
    if name == "simple":
        from lightning.pytorch.profilers import SimpleProfiler

        return SimpleProfiler(directory.artifacts, "profile")
    if name == "pytorch":
        from lightning.pytorch.profilers import PyTorchProfiler

        return PyTorchProfiler(directory.artifacts, "profile", export_to_chrome=True)
    return None


def save_artifacts(directory: RunDirectory, evaluation: Evaluation) -> list[Path]:
    """heatmap.png and heatmap.npz, patterns.png and patterns.npz, and a JSON file a table; returns the images."""
    images = []
    if evaluation.heatmap is not None:
        panels = {directory.cfg.model.name: evaluation.heatmap}
        images.append(heatmap.draw(panels, directory.artifacts / "heatmap.png", directory.name))
        np.savez_compressed(directory.artifacts / "heatmap.npz", values=evaluation.heatmap.values)
    if evaluation.matrices:
        path = directory.artifacts / "patterns.png"
        causal = [name for name in evaluation.matrices if name.startswith("attention")]
        images.append(draw_patterns(evaluation.matrices, path, directory.name, causal=causal, shared=False))
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
        grids["matrices"] = {name: np.round(values, 4).tolist() for name, values in evaluation.matrices.items()}
    return grids


def report(directory: RunDirectory, evaluation: Evaluation, images: list[Path]) -> None:
    """What a person wants to see at the end."""
    if evaluation.heatmap is not None:
        heatmap.show({directory.cfg.model.name: evaluation.heatmap})
    for key, value in evaluation.metrics.items():
        if not key.endswith("_stderr"):
            error = evaluation.metrics.get(f"{key}_stderr")
            shown = f"{value:.2f}" if abs(value) >= 0.01 or value == 0 else f"{value:.1e}"
            log.info("  %-28s %8s%s", key, shown, "" if error is None else f" ± {error:.2f}")
    for image in images:
        log.info("  %s", image)
    log.info("DONE: %s", directory.path)


def progress_mode(name: str) -> str:
    """rich on a terminal, lines elsewhere, unless the config says which."""
    if name != "auto":
        return name
    return "rich" if sys.stdout.isatty() else "lines"


def set_up_logging(path: Path | None, progress: str) -> None:
    """Messages to the console and to log.txt; progress lines to the console only where there is no bar.

    Of several processes the first alone speaks, but for warnings.
    """
    console = logging.StreamHandler(sys.stdout)
    handlers: list[logging.Handler] = [console]
    console.setFormatter(RedactingFormatter("%(message)s"))
    console.addFilter(lambda r: progress == "lines" or r.name != "tape_exp.progress")
    if path is not None and first_process():
        file = logging.FileHandler(path)
        file.handleError = lambda record: None  # type: ignore[method-assign] # a full disk: the console says it
        file.setFormatter(RedactingFormatter("%(asctime)s %(message)s", "%Y-%m-%d %H:%M:%S"))
        handlers.append(file)
    for old in list(log.handlers):
        log.removeHandler(old)
        old.close()
    for handler in handlers:
        log.addHandler(handler)
    log.setLevel(logging.INFO if first_process() else logging.WARNING)
    log.propagate = False
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
