"""A run under way, and Lightning's trainer for it."""

import os
import warnings
from dataclasses import dataclass, field
from datetime import timedelta

import torch
from lightning import Trainer
from lightning.fabric.plugins.environments import SLURMEnvironment, TorchElasticEnvironment
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import Logger
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy, Strategy
from omegaconf import DictConfig

from tape_exp.machine.preemption import Preemption
from tape_exp.models.decoder import Decoder
from tape_exp.runs.checkpoints import SafeCheckpointIO
from tape_exp.runs.directory import RunDirectory
from tape_exp.runs.metrics import Stopwatch
from tape_exp.settings.errors import ConfigError
from tape_exp.tasks.base import Task
from tape_exp.training.from_config import precision


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


def require_devices(cfg: DictConfig) -> None:
    """Raise :class:`ConfigError` where ``trainer`` asks for GPUs that are not here, or would wait
    for processes on other nodes that nobody has started.
    """
    present = torch.accelerator.device_count()
    if cfg.accelerator == "gpu" and present < cfg.devices:
        raise ConfigError(
            f"trainer.accelerator=gpu with trainer.devices={cfg.devices}: torch sees {present} "
            "GPUs here; trainer=cpu needs none."
        )
    started = SLURMEnvironment.detect() or TorchElasticEnvironment.detect()
    if cfg.nodes > 1 and not started and "MASTER_ADDR" not in os.environ:
        raise ConfigError(
            f"trainer.nodes={cfg.nodes} waits for processes that this command does not start: use "
            "tape-exp sweep, srun or torchrun, or set MASTER_ADDR, MASTER_PORT and NODE_RANK on "
            "each node."
        )


def make_trainer(run: Run, callbacks: list[Callback]) -> Trainer:
    """Lightning's trainer for the config, with accumulation to the global batch."""
    cfg, on_slurm = run.directory.cfg.trainer, SLURMEnvironment.detect()
    devices, timeout = cfg.devices * cfg.nodes, timedelta(seconds=cfg.timeout)
    strategy: str | Strategy = "auto"
    if cfg.strategy == "fsdp":
        strategy = ModelParallelStrategy(
            data_parallel_size=devices,
            tensor_parallel_size=1,
            save_distributed_checkpoint=False,
            timeout=timeout,
        )
    elif devices > 1 or cfg.strategy == "ddp":
        # Gradients are views of what DDP exchanges, which would otherwise hold each of them again.
        strategy = DDPStrategy(gradient_as_bucket_view=True, timeout=timeout)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = Trainer(
            accelerator=cfg.accelerator,
            devices=cfg.devices,
            num_nodes=cfg.nodes,
            strategy=strategy,
            precision=precision(cfg.precision, cfg.accelerator),  # type: ignore[arg-type]
            logger=run.loggers,
            callbacks=callbacks,
            plugins=[SafeCheckpointIO(), *[SLURMEnvironment(auto_requeue=False)] * on_slurm],
            max_epochs=-1,
            max_steps=run.task.optim.max_steps,
            accumulate_grad_batches=run.accumulate,
            val_check_interval=run.validate_every * run.accumulate,
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
