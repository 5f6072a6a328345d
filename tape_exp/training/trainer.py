"""Lightning's trainer of a run: the processes and devices it has, and how they share the work."""

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
from omegaconf import DictConfig

from tape_exp.machine.processes import gather, part_of_run, read_process, this_process
from tape_exp.runs.checkpoints import SafeCheckpointIO
from tape_exp.settings.errors import ConfigError
from tape_exp.tasks.base import Task


@contextmanager
def processes(cfg: DictConfig, run: str) -> Iterator[None]:
    """Make this process the one of the run that the environment and ``trainer`` say. Raises
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


def meet(trainer: Trainer, module: LightningModule) -> None:
    """Wait until every process that a launcher has started is here. (Those that Lightning starts
    begin later than the first has come here.)
    """
    if this_process().launcher:
        trainer.strategy.connect(module)
        trainer.strategy.setup_environment()  # which Lightning's fit does again, to no effect
        gather(None)


def make_trainer(
    cfg: DictConfig,
    task: Task,
    accumulate: int,
    validate_every: int,
    folder: Path,
    callbacks: list[Callback],
) -> Trainer:
    """Make Lightning's trainer for the config, with accumulation to the global batch.

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
    _leave_signals_alone(trainer)
    return trainer


def _leave_signals_alone(trainer: Trainer) -> None:
    """Keep Lightning from handling signals, which are those of
    :class:`~tape_exp.machine.preemption.Preemption`.

    Its handler of SIGTERM would end training without a checkpoint, and its processes would agree
    on theirs before each forward pass, for which a GPU finishes its queue. Lightning 2.6 has no
    option for either: ``auto_requeue=False`` is of SLURM's signal only.
    """
    trainer._signal_connector.register_signal_handlers = lambda: None  # type: ignore[method-assign]
    trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = lambda: None  # type: ignore[method-assign]


def precision(name: str, accelerator: str) -> str:
    """Return the precision of a name: of ``auto`` bf16-mixed where a GPU has it, not emulated, and
    else 32-true.
    """
    if name != "auto":
        return name
    on_gpu = accelerator != "cpu" and torch.cuda.is_available()
    native = on_gpu and torch.cuda.is_bf16_supported(including_emulation=False)
    return "bf16-mixed" if native else "32-true"


def make_profiler(name: str | None, folder: Path) -> Profiler | None:
    """Make Lightning's profiler of this name, which writes to ``profile/`` of the run's folder.

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
    """Make what tells Lightning which process of the run this is, as the launcher has set it."""
    launcher = this_process().launcher
    if launcher == "torchrun":
        return TorchElasticEnvironment()
    if launcher == "SLURM":
        return SLURMEnvironment(auto_requeue=False)
    return LightningEnvironment()


def make_strategy(cfg: DictConfig) -> str | Strategy:
    """Choose how the devices of ``trainer`` share a run: FSDP, DDP, or Lightning's for one."""
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
