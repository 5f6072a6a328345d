"""Checkpoints: written whole or not at all, loaded without pickle, the newest whole one found."""

import logging
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from lightning import LightningModule, Trainer
from lightning.fabric.plugins.io import TorchCheckpointIO
from lightning.pytorch.callbacks import Checkpoint

from tape_exp.machine.files import zip_is_sound
from tape_exp.machine.preemption import Preempted, Preemption
from tape_exp.machine.processes import sum_over_processes
from tape_exp.settings.errors import ConfigError

log = logging.getLogger("tape_exp")


class SafeCheckpointIO(TorchCheckpointIO):
    """Writes under another name and renames; loads tensors and plain values only."""

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None
    ) -> None:
        """Write, flush to the disk, rename."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.writing")
        try:
            with temporary.open("wb") as file:
                torch.save(checkpoint, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)

    def load_checkpoint(
        self, path: Any, map_location: Any = lambda s, _: s, weights_only: bool | None = True
    ) -> Any:
        """Load tensors and plain values; anything else is refused."""
        return super().load_checkpoint(path, map_location, weights_only=True)


class Checkpoints(Checkpoint):
    """Saves at the end of every ``every``-th step and on a signal to leave; keeps the newest two.

    The end of a step is after its report, and after its validation where one is due, so that a
    resumed run repeats neither. (Lightning's own callback saves before both, and a run killed in
    between would lack them.) All processes leave at the same step.

    Args:
        folder: holds the checkpoints.
        every: optimizer steps.
        validate_every: optimizer steps.
        agree_every: optimizer steps between two at which several processes ask one another whether
            to leave: those of a report, which waits for the GPU anyway.
        preemption: knows whether the run has been asked to leave.
    """

    def __init__(
        self,
        folder: Path,
        every: int,
        validate_every: int,
        agree_every: int,
        preemption: Preemption,
    ) -> None:
        self.folder, self.preemption = folder, preemption
        self.every, self.validate_every, self.agree_every = every, validate_every, agree_every
        self.seconds = 0.0  # for which training has waited

    def on_load_checkpoint(
        self, trainer: Trainer, module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Count Lightning's progress in micro-batches of this process, not of the one that saved.

        Only the optimizer step is the same on another number of devices or with another
        ``trainer.micro_batch``.
        """
        progress = checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"]
        batches = checkpoint["global_step"] * trainer.accumulate_grad_batches
        for counts in (progress["total"], progress["current"]):
            shift = batches - counts["ready"]
            counts |= {stage: count + shift for stage, count in counts.items()}

    def on_train_batch_end(
        self, trainer: Trainer, module: LightningModule, outputs: Any, batch: Any, index: int
    ) -> None:
        """The end of a step, unless its validation follows."""
        last = (index + 1) % trainer.accumulate_grad_batches == 0
        validates = trainer.global_step % self.validate_every == 0 and any(trainer.num_val_batches)
        if last and not validates:
            self._step_ends(trainer)

    def on_validation_end(self, trainer: Trainer, module: LightningModule) -> None:
        """The end of a step with its validation."""
        if trainer.state.fn == "fit":
            self._step_ends(trainer)

    def _step_ends(self, trainer: Trainer) -> None:
        step, leave = trainer.global_step, self.preemption.received is not None
        due = step % self.every == 0
        if trainer.world_size > 1:
            agree = due or step % self.agree_every == 0 or step % self.validate_every == 0
            leave = agree and bool(sum_over_processes(torch.tensor(float(leave))))
        if leave or due:
            self.save(trainer)
        if leave:
            raise Preempted(self.preemption.received or "a signal to another process")

    def save(self, trainer: Trainer) -> None:
        """Save this step, unless it is there; remove all but the newest two."""
        began = time.perf_counter()
        path = self.folder / file_name(trainer.global_step)
        if not trainer.strategy.broadcast(path.exists()):
            for logger in trainer.loggers:
                logger.save()  # the rows of a step are on the disk before its checkpoint
            trainer.save_checkpoint(path)
        for old in sorted(self.folder.glob("step*.ckpt"))[:-2]:
            trainer.strategy.remove_checkpoint(old)
        self.seconds += time.perf_counter() - began


def file_name(step: int) -> str:
    """The name of the checkpoint of a step."""
    return f"step{step:08d}.ckpt"


def newest(folder: Path, config_hash: str) -> tuple[Path | None, int]:
    """The newest whole checkpoint and its step, or (None, 0); damaged ones are put aside.

    Raises:
        ConfigError: the checkpoint belongs to a run of another config.
    """
    for unfinished in folder.glob(".step*"):  # a process was killed while it wrote it
        unfinished.unlink(missing_ok=True)
    for path in sorted(folder.glob("step*.ckpt"), reverse=True):
        with suppress(FileNotFoundError):  # another process of the run has put it aside
            if zip_is_sound(path):
                checkpoint = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
                if checkpoint["config_hash"] != config_hash:
                    raise ConfigError(f"{path} belongs to a run of another config; move it away.")
                return path, checkpoint["global_step"]
            log.warning("%s is damaged and put aside; trying the checkpoint before it.", path)
            os.replace(path, path.with_suffix(".damaged"))
    return None, 0
