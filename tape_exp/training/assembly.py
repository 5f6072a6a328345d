"""The parts of a run, each made from its section of the config."""

import logging
import os
import warnings
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from lightning import Trainer
from lightning.fabric.plugins.environments import SLURMEnvironment, TorchElasticEnvironment
from lightning.pytorch.accelerators import CUDAAccelerator, MPSAccelerator
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import Logger
from lightning.pytorch.strategies import Strategy
from omegaconf import DictConfig, OmegaConf

from tape_exp.machine.hardware import cpu_name, emulates_bf16, machine_memory
from tape_exp.machine.preemption import Preemption
from tape_exp.machine.processes import RANKS, first_process
from tape_exp.models import peft
from tape_exp.models.decoder import Decoder
from tape_exp.models.layers import kinds_of, whose_positions
from tape_exp.models.peft import Adaptation
from tape_exp.runs import checkpoints, loading, weights
from tape_exp.runs.clock import Stopwatch
from tape_exp.runs.directory import RunDirectory
from tape_exp.settings.construct import build
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.folders import path_of
from tape_exp.settings.schema import Arch
from tape_exp.tasks.base import Surroundings, Task
from tape_exp.training.faults import lacks_memory
from tape_exp.training.logs import progress_mode
from tape_exp.training.rendezvous import DDP, FSDP

log = logging.getLogger("tape_exp")


@dataclass(frozen=True)
class Run:
    """A run under way: its parts, and where it reports.

    Args:
        accumulate: forward passes of each device per optimizer step.
        clock: seconds that the run has taken, those of earlier processes included.
        sinks: where its metrics go, from its beginning in its directory on.
    """

    cfg: DictConfig
    directory: RunDirectory
    task: Task
    decoder: Decoder
    adaptation: Adaptation | None
    accumulate: int
    preemption: Preemption
    clock: Stopwatch = field(default_factory=Stopwatch)
    sinks: list[Logger] = field(default_factory=list)

    @property
    def progress(self) -> str:
        """``rich``, ``lines`` or ``none``."""
        return progress_mode(self.cfg.trainer.progress)

    @property
    def validate_every(self) -> int:
        """Optimizer steps between validations; a short run has one, at its end."""
        return min(self.cfg.trainer.validate_every, self.task.optim.max_steps)


def assemble(cfg: DictConfig, directory: RunDirectory, preemption: Preemption) -> Run:
    """Data and model of a run. Raises :class:`ConfigError` where the config cannot run."""
    check_accelerator(cfg.trainer.accelerator)
    check_environment(cfg.trainer.devices * cfg.trainer.nodes)
    check_nodes(cfg.trainer.nodes)
    check_parts(cfg)
    task = make_task(cfg, directory.artifacts)
    accumulate = micro_batches(cfg, task)
    adaptation = make_adaptation(cfg, task)
    decoder = make_ready(cfg, task, adaptation)
    return Run(cfg, directory, task, decoder, adaptation, accumulate, preemption)


def make_ready(cfg: DictConfig, task: Task, adaptation: Adaptation | None) -> Decoder:
    """The model, after the task's data, which may set the size of its vocabulary.

    Raises:
        ConfigError: this machine lacks memory for it, or it does not fit its checkpoint.
    """
    if task.arch.matrix_bytes > machine_memory():
        raise too_large(task.arch)
    task.prepare_data()
    try:
        return make_decoder(cfg, task, adaptation)
    except (RuntimeError, MemoryError) as error:
        if lacks_memory(error):
            raise too_large(task.arch) from error
        raise


def too_large(arch: Arch) -> ConfigError:
    """The sentence for a model that this machine has no memory for."""
    return ConfigError(
        f"the matrices of the model need {arch.matrix_bytes:,} bytes, for which this machine lacks "
        f"memory; lower task.arch.width={arch.width}, task.arch.ffn={arch.ffn} or "
        f"task.arch.layers={arch.layers}."
    )


def check_parts(cfg: DictConfig) -> None:
    """Raise :class:`ConfigError` where task, encoding or method cannot be made of their keys.

    Nothing is read and nothing is computed, so that it costs milliseconds.
    """
    task = blank_task(cfg)
    micro_batches(cfg, task)
    if cfg.peft.name != "none":
        build(cfg.peft, "peft", name=cfg.peft.name)
    model: Any = OmegaConf.to_container(cfg.model, resolve=True)
    with torch.device("meta"):
        kinds = kinds_of(model, task.arch)
        positions = [kind.position(task.arch) for kind in dict.fromkeys(kinds)]
        whose_positions(positions)
    _check_rate_of_positions(cfg, task, any(True for p in positions for _ in p.parameters()))


def check_accelerator(name: str) -> None:
    """Raise :class:`ConfigError` where a GPU is asked for and there is none."""
    if name == "gpu" and not (CUDAAccelerator.is_available() or MPSAccelerator.is_available()):
        raise ConfigError(
            "trainer.accelerator=gpu finds no GPU on this machine; trainer=cpu runs without one."
        )


def check_environment(processes: int) -> None:
    """Raise :class:`ConfigError` where a variable of the environment would make another run of it.

    Args:
        processes: of the run, by its config.
    """
    for name, value in sorted(os.environ.items()):
        if name.startswith("PL_TRAINER_"):
            raise ConfigError(
                f"{name}={value} in the environment changes what Lightning's trainer does, which "
                f"no config and no record shows; unset {name}, and set keys of trainer instead."
            )
    if processes == 1 and not first_process():
        name = next(name for name in RANKS if os.environ.get(name, "0") != "0")
        raise ConfigError(
            f"{name}={os.environ[name]} in the environment says that another process is the first "
            "one of this run, which has only one (trainer.devices=1, trainer.nodes=1): unset "
            f"{name}."
        )
    tasks = os.environ.get("SLURM_NTASKS", "")
    if SLURMEnvironment.detect() and tasks != str(processes):
        raise ConfigError(
            f"SLURM_NTASKS={tasks} says that SLURM has started {tasks} processes, and the run has "
            f"{processes} (trainer.nodes times trainer.devices): start it with srun --ntasks="
            f"{processes}, or set trainer.devices and trainer.nodes."
        )


def check_nodes(nodes: int) -> None:
    """Raise :class:`ConfigError` where nobody has started processes on the other nodes."""
    started = SLURMEnvironment.detect() or TorchElasticEnvironment.detect()
    if nodes > 1 and not started and "MASTER_ADDR" not in os.environ:
        raise ConfigError(
            f"trainer.nodes={nodes} waits for processes of {nodes} nodes, which this command does "
            f"not start: use tape-exp sweep, srun or torchrun --nnodes={nodes}, or set "
            "MASTER_ADDR, MASTER_PORT and NODE_RANK on each node."
        )


def make_task(cfg: DictConfig, folder: Path | None = None) -> Task:
    """The task, with the checkpoint that its run begins from and the run's ``folder``."""
    task = blank_task(cfg)
    begin = weights.wanted(cfg)
    checkpoint = weights.find(begin, cfg) if begin else None
    return task.placed_in(replace(task.surroundings, checkpoint=checkpoint, folder=folder))


def blank_task(cfg: DictConfig) -> Task:
    """The task, with the debug section's shortcuts applied and no checkpoint looked for."""
    section: Any = OmegaConf.to_container(cfg.task, resolve=True)
    if cfg.debug.max_steps is not None and isinstance(section.get("optim"), dict):
        section["optim"]["max_steps"] = cfg.debug.max_steps
    task: Task = build(section, "task", seed=cfg.seed)
    for key, given in section.get("arch", {}).items():
        if given != (size := getattr(task.arch, key)):
            raise ConfigError(
                f"task.arch.{key}={given} has no effect, since this task sets it to {size}; leave "
                "it out."
            )
    cache = path_of("cache", cfg.cache)
    return task.placed_in(Surroundings(cache, None, cfg.trainer.workers, cfg.debug.overfit))


def make_adaptation(cfg: DictConfig, task: Task) -> Adaptation | None:
    """The method of ``peft``, if it is one.

    Raises:
        ConfigError: there is nothing to adapt, or the context is longer than positions reach.
    """
    if cfg.peft.name == "none":
        return None
    adaptation: Adaptation = build(cfg.peft, "peft", name=cfg.peft.name)
    if task.surroundings.checkpoint is None:
        raise ConfigError(
            f"peft={adaptation.name} adapts a trained model: name it in checkpoint=<run, folder or "
            "repository>."
        )
    checkpoint = task.surroundings.checkpoint
    loading.check_base(checkpoint)
    length, reach = task.arch.train_length, weights.trained_length(checkpoint)
    stretched = OmegaConf.select(cfg, "model.scaling.method", default="none") != "none"
    if (
        task.trains
        and reach
        and adaptation.theta is None
        and not adaptation.drop
        and not (stretched and checkpoint.is_file())  # a Llama's length counts its own scaling
        and length > reach * adaptation.interpolation
    ):
        raise ConfigError(
            f"task.train_length={length} is longer than the {reach} tokens that the base was "
            f"trained on, times peft.interpolation={adaptation.interpolation}; set "
            f"peft.interpolation={-(-length // reach)}."
        )
    return adaptation


def make_decoder(cfg: DictConfig, task: Task, adaptation: Adaptation | None = None) -> Decoder:
    """The adapted model of the encoding and task, with the weights of ``checkpoint``."""
    model: Any = OmegaConf.to_container(cfg.model, resolve=True)
    if adaptation is not None:
        model = adaptation.positions(model)
    checkpoint = task.surroundings.checkpoint
    blank = checkpoint is not None and weights.llama_below(checkpoint) is not None
    kinds = kinds_of(model, task.arch)
    decoder = Decoder(task.arch, kinds, cfg.seed, cfg.trainer.attention, blank)
    if checkpoint is not None:
        if adaptation is not None:
            loading.check_encoding(cfg, checkpoint, adaptation, decoder)
            loading.check_adaptation(cfg, checkpoint)
        loading.begin(decoder, checkpoint, adaptation, cfg.seed, task.trains)
        if adaptation is None:
            loading.warn_of_other_positions(cfg, checkpoint)
        log.info("Weights of %s.", weights.title(checkpoint))
    elif adaptation is not None:
        adaptation.apply(decoder, cfg.seed)  # of a plan, which loads no weights
    _check_rate_of_positions(cfg, task, decoder.positional_count() > 0)
    _warn_of_one_layer(decoder, cfg.model.name)
    decoder.recompute = cfg.trainer.checkpoint_activations
    if cfg.trainer.frozen_bf16:
        peft.freeze_in_bf16(decoder)
    return decoder


def _check_rate_of_positions(cfg: DictConfig, task: Task, learned: bool) -> None:
    if task.trains and task.optim.position_lr != 1 and not learned:
        raise ConfigError(
            f"task.optim.position_lr={task.optim.position_lr} has no effect: "
            f"model={cfg.model.name} trains no parameters of positions; leave it at 1.0."
        )


def _warn_of_one_layer(decoder: Decoder, model: str) -> None:
    for block in decoder.blocks():
        if block.begins and not block.updates_state and block.position.update_parameters:
            log.warning(
                "No layer reads what model=%s updates, since it has one layer only: its positions "
                "stay as they begin. Give it two or more, as task.arch.layers=2.",
                model,
            )


def make_trainer(run: Run, callbacks: list[Callback]) -> Trainer:
    """Lightning's trainer for the config, with accumulation to the global batch."""
    cfg, devices = run.cfg, run.cfg.trainer.devices * run.cfg.trainer.nodes
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = Trainer(
            accelerator=cfg.trainer.accelerator,
            devices=cfg.trainer.devices,
            num_nodes=cfg.trainer.nodes,
            strategy=strategy(cfg.trainer.strategy, devices, cfg.trainer.rendezvous),
            precision=precision(cfg.trainer.precision, cfg.trainer.accelerator),  # type: ignore[arg-type]
            logger=run.sinks,
            callbacks=callbacks,
            plugins=[checkpoints.SafeCheckpointIO(), *without_requeue()],
            max_epochs=-1,
            max_steps=run.task.optim.max_steps,
            accumulate_grad_batches=run.accumulate,
            val_check_interval=run.validate_every * run.accumulate,
            check_val_every_n_epoch=None,
            num_sanity_val_steps=0,
            # What FSDP gathers in inference mode could not be gathered again in training.
            inference_mode=cfg.trainer.strategy != "fsdp",
            use_distributed_sampler=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            profiler=profiler(cfg.debug.profiler, run.directory),
        )
    # Signals are Preemption's. Lightning's processes agree on theirs before each forward pass, for
    # which a GPU would finish its queue.
    trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = lambda: None  # type: ignore[method-assign]
    _warn_of_emulation(trainer)
    return trainer


def _warn_of_emulation(trainer: Trainer) -> None:
    on_cpu = trainer.strategy.root_device.type == "cpu"
    if on_cpu and trainer.precision.startswith("bf16") and emulates_bf16():
        log.warning(
            "This processor (%s) has no instructions for bf16: a step with trainer.precision=%s "
            "takes several times as long as one with trainer.precision=32-true.",
            cpu_name(),
            trainer.precision,
        )


def micro_batches(cfg: DictConfig, task: Task) -> int:
    """The number of forward passes of each device per optimizer step."""
    if not task.trains:
        return 1
    devices, batch = cfg.trainer.devices * cfg.trainer.nodes, task.optim.batch
    if batch % devices:
        raise ConfigError(
            f"task.optim.batch={batch} cannot be shared by {devices} devices; "
            f"task.optim.batch={-(-batch // devices) * devices} could."
        )
    if (cfg.trainer.micro_batch or 0) > batch:
        raise ConfigError(
            f"trainer.micro_batch={cfg.trainer.micro_batch} is above task.optim.batch={batch}; "
            "trainer.micro_batch=null takes the whole share of a device."
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


def strategy(name: str, devices: int, seconds: int) -> "str | Strategy":
    """The strategy of that name, whose processes wait ``seconds`` for one another; ``auto`` is DDP
    where there are several devices.
    """
    if name == "fsdp":
        return FSDP(
            seconds,
            data_parallel_size=devices,
            tensor_parallel_size=1,
            save_distributed_checkpoint=False,
        )
    if devices == 1 and name != "ddp":
        return "auto"
    # Gradients are views of what DDP exchanges, which would otherwise hold each of them again.
    return DDP(seconds, gradient_as_bucket_view=True)


def without_requeue() -> list[SLURMEnvironment]:
    """Lightning's SLURM plugin without its requeueing, in processes that SLURM started."""
    return [SLURMEnvironment(auto_requeue=False)] if SLURMEnvironment.detect() else []


def precision(name: str, accelerator: str) -> str:
    """bf16-mixed where a GPU has it, not emulated, and ``auto`` is asked for; 32-true on a CPU."""
    if name != "auto":
        return name
    on_gpu = accelerator != "cpu" and torch.cuda.is_available()
    native = on_gpu and torch.cuda.is_bf16_supported(including_emulation=False)
    return "bf16-mixed" if native else "32-true"


def profiler(name: str | None, directory: RunDirectory) -> Any:
    """Lightning's profiler, writing into the run's artifacts."""
    if name == "simple":
        from lightning.pytorch.profilers import SimpleProfiler

        return SimpleProfiler(directory.artifacts, "profile")
    if name == "pytorch":
        from lightning.pytorch.profilers import PyTorchProfiler

        return PyTorchProfiler(directory.artifacts, "profile", export_to_chrome=True)
    return None
