"""Checkpoints: written whole or not at all, loaded without pickle, the newest whole one found."""

import itertools
import logging
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from lightning import LightningModule, Trainer
from lightning.fabric.plugins.io import TorchCheckpointIO
from lightning.pytorch.callbacks import Checkpoint

from tape_exp.machine.files import open_atomically, zip_is_sound
from tape_exp.machine.preemption import Preempted, Preemption
from tape_exp.machine.processes import gather, sum_over_processes
from tape_exp.runs.checkpoint_files import file_name, saved_checkpoints
from tape_exp.settings.errors import ConfigError

log = logging.getLogger("tape_exp")


class SafeCheckpointIO(TorchCheckpointIO):
    """Writes a checkpoint to the disk whole or not at all, without Lightning's copy in memory."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, *_: Any, **__: Any) -> None:
        """Write, flush, rename."""
        with open_atomically(path) as file:
            torch.save(checkpoint, file)


@dataclass(eq=False)
class Checkpoints(Checkpoint):
    """Saves at the end of every ``every``-th step and on a signal to leave; keeps the newest two.

    The end of a step is after its report, and after its validation where one is due, so that a
    resumed run repeats neither. (Lightning's own callback saves before both, and a run killed in
    between would lack them.) All processes leave at the same step: every ``agree_every`` steps they
    ask one another, at a report, which waits for the GPU anyway.
    """

    folder: Path
    every: int
    validate_every: int
    agree_every: int
    preemption: Preemption
    seconds: float = 0.0  # for which training has waited

    def on_load_checkpoint(
        self, trainer: Trainer, module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Count Lightning's progress in this run's micro-batches: on another number of devices, or
        with another ``trainer.micro_batch``, only the optimizer step is the same.
        """
        progress = checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"]
        batches = checkpoint["global_step"] * trainer.accumulate_grad_batches
        for counts in (progress["total"], progress["current"]):
            shift = batches - counts["ready"]
            counts |= {stage: count + shift for stage, count in counts.items()}

    def on_train_start(self, trainer: Trainer, module: LightningModule) -> None:
        """Let a signal wait for the end of the step from now on. Raises :class:`ConfigError` where
        processes work on different runs, or resume from different steps: each takes the newest
        checkpoint that it sees, and the folder may look older from another node.
        """
        processes = gather((str(self.folder.parent), trainer.global_step))
        runs = {run for run, _ in processes}
        steps = {step for _, step in processes}
        if len({Path(run).name for run in runs}) > 1:
            raise ConfigError(
                f"the processes work on different runs, {' and '.join(sorted(runs))}: give all of "
                "them the same words, or each one device, trainer.devices=1."
            )
        if len(steps) > 1:
            raise ConfigError(
                f"the processes of the run go on from different steps, {sorted(steps)}: see that "
                "runs= is the same folder on all nodes, and give the command again."
            )
        self.preemption.waits = True

    def on_exception(self, trainer: Trainer, module: LightningModule, error: BaseException) -> None:
        """Let no signal wait any more: no step will end."""
        self.preemption.waits = False

    def on_train_batch_end(
        self, trainer: Trainer, module: LightningModule, outputs: Any, batch: Any, index: int
    ) -> None:
        """End a step, unless its validation follows."""
        last = (index + 1) % trainer.accumulate_grad_batches == 0
        validates = trainer.global_step % self.validate_every == 0 and any(trainer.num_val_batches)
        if last and not validates:
            self._step_ends(trainer)

    def on_validation_end(self, trainer: Trainer, module: LightningModule) -> None:
        """End a step after its validation."""
        if trainer.state.fn == "fit":
            self._step_ends(trainer)

    def _step_ends(self, trainer: Trainer) -> None:
        step = trainer.global_step
        leave = self.preemption.received is not None
        due = step % self.every == 0
        if trainer.world_size > 1:
            agree = due or step % self.agree_every == 0 or step % self.validate_every == 0
            leave = agree and bool(sum_over_processes(torch.tensor(float(leave))))
        if leave or due:
            self.save(trainer)
        if leave:
            raise Preempted(self.preemption.received or "a signal to another process")

    def save(self, trainer: Trainer) -> None:
        """Save this step, unless it is there; remove all but the newest two. Weights that are not
        finite are not saved: those before them can be trained on.
        """
        began = time.perf_counter()
        path = self.folder / file_name(trainer.global_step)
        if not trainer.strategy.broadcast(path.exists()):
            module: Any = trainer.lightning_module
            module.require_finite()
            for logger in trainer.loggers:
                logger.save()  # the rows of a step are on the disk before its checkpoint
            trainer.save_checkpoint(path)
        for old in saved_checkpoints(self.folder)[:-2]:
            trainer.strategy.remove_checkpoint(old)
        self.seconds += time.perf_counter() - began


def newest(folder: Path, config_hash: str, sharded: bool = False) -> tuple[Path | None, int]:
    """Find the newest whole checkpoint and its step, or (None, 0); put damaged ones aside. Raises
    :class:`ConfigError` where it belongs to a run of another config, or where FSDP (``sharded``)
    would give its moments to other parameters.
    """
    for path in reversed(saved_checkpoints(folder)):
        with suppress(FileNotFoundError):  # another process of the run has put it aside
            if zip_is_sound(path):
                return path, _step_of(path, config_hash, sharded)
            log.warning("%s is damaged and put aside; trying the checkpoint before it.", path)
            path.replace(path.with_suffix(".damaged"))
    return None, 0


def _step_of(path: Path, config_hash: str, sharded: bool) -> int:
    """Read the step of a checkpoint; refuse one that cannot be resumed."""
    checkpoint = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    if checkpoint["config_hash"] != config_hash:
        raise ConfigError(f"{path} belongs to a run of another config; move it away.")
    if sharded and _numbered_by_groups(checkpoint):
        raise ConfigError(
            f"{path} is of an older version, which trainer.strategy=fsdp would read "
            "wrongly: use trainer.strategy=ddp until the next checkpoint."
        )
    return checkpoint["global_step"]


def _numbered_by_groups(checkpoint: dict[str, Any]) -> bool:
    """Say whether the parameters of AdamW are numbered group after group, as older versions did,
    and not by their place in the model. Whole weights are resumed exactly from both.
    """
    groups = [group["params"] for group in checkpoint["optimizer_states"][0]["param_groups"]]
    numbers = list(itertools.chain.from_iterable(groups))
    return all(groups) and numbers == sorted(numbers)
