"""Task, model and trainer of a run, each made from its section of the config."""

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer
from lightning.fabric.plugins.environments import (
    ClusterEnvironment,
    LightningEnvironment,
    SLURMEnvironment,
    TorchElasticEnvironment,
)
from lightning.pytorch.profilers import (
    AdvancedProfiler,
    Profiler,
    PyTorchProfiler,
    SimpleProfiler,
)
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy, Strategy
from omegaconf import DictConfig, OmegaConf

from tape_exp.machine.processes import gather, part_of_run, read_process, this_process
from tape_exp.models import peft
from tape_exp.models.decoder import Decoder
from tape_exp.models.layers import kinds_of
from tape_exp.models.peft import Adaptation
from tape_exp.runs import loading
from tape_exp.runs.checkpoint_info import edited_since, title
from tape_exp.runs.checkpoints import SafeCheckpointIO
from tape_exp.runs.starting_weights import base_of
from tape_exp.settings.construct import build
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.schema import divisor, multiple
from tape_exp.tasks.base import RunContext, Task
from tape_exp.tasks.text import TextTask

log = logging.getLogger("tape_exp")


def make_task(cfg: DictConfig, start: Path | None = None) -> Task:
    """The task, with the shortcuts of ``debug=`` and the checkpoint that its run begins from."""
    section: Any = OmegaConf.to_container(cfg.task, resolve=True)
    if isinstance(optim := section.get("optim"), dict):
        instead = {"max_steps": cfg.debug.max_steps, "lr": cfg.peft.get("lr")}
        optim |= {key: value for key, value in instead.items() if value is not None}
    task: Task = build(section, "task", seed=cfg.seed)
    cache = Path(cfg.cache).expanduser()
    workers = cfg.trainer.workers
    task.run_context = RunContext(cache, start, workers, cfg.debug.overfit)
    return task


def make_decoder(cfg: DictConfig, task: Task, blank: bool = False) -> Decoder:
    """The model of the encoding and task, adapted by the method of ``peft``, with the weights that
    the task begins from; a ``blank`` one is neither initialised nor loaded.

    Raises:
        ConfigError: there are no weights to adapt, or they do not fit.
    """
    model: Any = OmegaConf.to_container(cfg.model, resolve=True)
    start = None if blank else task.run_context.checkpoint
    adaptation: Adaptation | None = None
    if cfg.peft.name != "none":
        adaptation = build(cfg.peft, "peft", name=cfg.peft.name)
        if start is None and not blank:
            raise ConfigError(
                f"peft={cfg.peft.name} adapts a trained model; name it in checkpoint=."
            )
        model = adaptation.positions(model)
    unset = blank or (start is not None and base_of(start).is_dir())
    decoder = Decoder(task.arch, kinds_of(model), cfg.seed, cfg.trainer.attention, unset)
    if start is not None:
        loading.load_and_adapt(decoder, cfg, start, adaptation, task.trains)
        log.info("Weights of %s.", title(start))
        if edited := edited_since(start, model):
            log.warning("%s: trained with another version of %s.", start, " and ".join(edited))
    elif adaptation is not None:
        adaptation.apply(decoder, cfg.seed)
    decoder.recompute = cfg.trainer.checkpoint_activations
    decoder.adaptation = adaptation
    if cfg.trainer.frozen_bf16:
        if cfg.trainer.precision != "bf16-mixed" or cfg.trainer.strategy == "fsdp":
            raise ConfigError(
                "trainer.frozen_bf16=true needs trainer.precision=bf16-mixed and no strategy=fsdp."
            )
        peft.freeze_in_bf16(decoder)
    return decoder


def blank_parts(cfg: DictConfig) -> tuple[Decoder, Task]:
    """The adapted model without storage, and the task, whose data are not read: milliseconds.

    Raises:
        ConfigError: they cannot be made of their keys.
    """
    task = make_task(cfg)
    micro_batches(cfg, task)
    if isinstance(task, TextTask) and not task.arch.vocab:  # no tokenizer is loaded
        byte = task.tokenization.kind == "byte"  # 256 and two special tokens
        task.size_vocabulary(258 if byte else task.tokenization.vocab)
    with torch.device("meta"):
        return make_decoder(cfg, task, blank=True), task


def micro_batches(cfg: DictConfig, task: Task) -> int:
    """The number of forward passes of each device per optimizer step.

    Raises:
        ConfigError: devices do not divide the batch, or micro-batches the share of a device.
    """
    if not task.trains:
        return 1
    devices = cfg.trainer.devices * cfg.trainer.nodes
    batch = task.optim.batch
    if batch % devices:
        raise ConfigError(
            f"task.optim.batch={batch} cannot be shared by {devices} devices; "
            f"task.optim.batch={multiple(devices, batch)} could."
        )
    rows = batch // devices
    micro = min(cfg.trainer.micro_batch or rows, rows)
    if rows % micro:
        raise ConfigError(
            f"trainer.micro_batch={micro} does not divide a device's {rows} rows; "
            f"trainer.micro_batch={divisor(rows, micro)} does."
        )
    return rows // micro


def precision(name: str, accelerator: str) -> str:
    """bf16-mixed where a GPU has it, not emulated, and ``auto`` is asked for; 32-true on a CPU."""
    if name != "auto":
        return name
    on_gpu = accelerator != "cpu" and torch.cuda.is_available()
    native = on_gpu and torch.cuda.is_bf16_supported(including_emulation=False)
    return "bf16-mixed" if native else "32-true"


@contextmanager
def processes(cfg: DictConfig, run: str) -> Iterator[None]:
    """Be the process of the run that the environment and ``trainer`` say. Raises
    :class:`ConfigError` where they do not agree.
    """
    try:
        process = read_process(cfg.devices, cfg.nodes, os.environ)
    except ValueError as error:
        raise ConfigError(error) from None
    with part_of_run(process, run):
        yield


def require_devices(cfg: DictConfig) -> None:
    """Raise :class:`ConfigError` where ``trainer`` asks for GPUs that are not here, or would wait
    for processes on other nodes that nobody has started.
    """
    present = torch.accelerator.device_count()
    if cfg.accelerator == "gpu" and present < cfg.devices:
        remedy = f"set trainer.devices={present}" if present else "use trainer=cpu"
        gpus = "1 GPU" if present == 1 else f"{present or 'no'} GPUs"
        raise ConfigError(f"trainer.devices={cfg.devices}, but this machine has {gpus}; {remedy}.")
    if cfg.nodes > 1 and not this_process().launcher and "MASTER_ADDR" not in os.environ:
        raise ConfigError(
            f"trainer.nodes={cfg.nodes} waits for processes that this command does not start: use "
            f"tape-exp sweep, srun or torchrun --nnodes={cfg.nodes}, or set MASTER_ADDR, "
            "MASTER_PORT and NODE_RANK on each node."
        )


def make_profiler(name: str | None, folder: Path) -> Profiler | None:
    """Lightning's profiler of this name, which writes to ``profile/`` of the run's folder.

    ``pytorch`` looks at the third to the fifth step of training and of a validation, both of which
    are in its table.
    """
    place: dict[str, Any] = {"dirpath": folder / "profile", "filename": name}
    if name == "simple":
        return SimpleProfiler(**place)
    if name == "advanced":
        return AdvancedProfiler(**place)
    if name == "pytorch":
        # By default only the last cycle is in the table, and of its operators only 20.
        return PyTorchProfiler(**place, acc_events=True, row_limit=200)
    return None


def cluster_environment() -> ClusterEnvironment:
    """Where Lightning reads which process of the run it is: what the launcher has set."""
    launcher = this_process().launcher
    if launcher == "torchrun":
        return TorchElasticEnvironment()
    if launcher == "SLURM":
        return SLURMEnvironment(auto_requeue=False)
    return LightningEnvironment()


def make_strategy(cfg: DictConfig) -> str | Strategy:
    """How the devices of ``trainer`` share a run: FSDP, DDP, or Lightning's choice for one."""
    devices = cfg.devices * cfg.nodes
    timeout = timedelta(seconds=cfg.timeout)
    if cfg.strategy == "fsdp":
        return ModelParallelStrategy(
            data_parallel_size=devices,
            tensor_parallel_size=1,
            save_distributed_checkpoint=False,
            timeout=timeout,
        )
    if devices > 1 or cfg.strategy == "ddp":
        # Gradients are views of what DDP exchanges, which would otherwise hold each of them again.
        return DDPStrategy(gradient_as_bucket_view=True, timeout=timeout)
    return "auto"


def make_trainer(
    cfg: DictConfig,
    task: Task,
    accumulate: int,
    validate_every: int,
    folder: Path,
    callbacks: list[Callback],
) -> Trainer:
    """Lightning's trainer for the config, with accumulation to the global batch.

    Under SLURM it begins from any ``hpc_ckpt_1.ckpt`` in its ``folder``, which is therefore the
    run's: the working directory may be that of another Lightning project.
    """
    cfg = cfg.trainer
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = Trainer(
            accelerator=cfg.accelerator,
            devices=cfg.devices,
            num_nodes=cfg.nodes,
            strategy=make_strategy(cfg),
            precision=precision(cfg.precision, cfg.accelerator),  # type: ignore[arg-type]
            logger=False,
            callbacks=callbacks,
            profiler=make_profiler(cfg.profiler, folder),
            default_root_dir=folder,
            plugins=[SafeCheckpointIO(), cluster_environment()],
            max_epochs=-1,
            max_steps=task.optim.max_steps,
            accumulate_grad_batches=accumulate,
            val_check_interval=validate_every * accumulate,
            check_val_every_n_epoch=None,
            num_sanity_val_steps=0,
            # What FSDP gathers in inference mode could not be gathered again in training.
            inference_mode=cfg.strategy != "fsdp",
            use_distributed_sampler=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
    # Signals are Preemption's. Lightning's handler would end training without a checkpoint, and its
    # processes would agree on theirs before each forward pass, for which a GPU finishes its queue.
    trainer._signal_connector.register_signal_handlers = lambda: None  # type: ignore[method-assign]
    trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = lambda: None  # type: ignore[method-assign]
    return trainer


def meet(trainer: Trainer, module: LightningModule) -> None:
    """Wait until every process that a launcher has started is here. (Those that Lightning starts
    begin later than the first has come here.)
    """
    if this_process().launcher:
        trainer.strategy.connect(module)
        trainer.strategy.setup_environment()  # which Lightning's fit does again, to no effect
        gather(None)
