"""Checkpoints that are written atomically, carry a checksum, and load without pickle."""

import json
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
from torch import distributed

from tape_exp.machine.files import parse_json, sha256, write_atomically
from tape_exp.machine.preemption import Preempted, Preemption
from tape_exp.runs.sinks import CsvLogger, JsonlLogger
from tape_exp.runs.weights import signature_of
from tape_exp.settings.errors import ConfigError

log = logging.getLogger("tape_exp")


class SafeCheckpointIO(TorchCheckpointIO):
    """Writes a checkpoint under another name and its signature, then renames the checkpoint.

    The signature, a ``.json``, has the SHA-256 and the config hash. A file that it does not fit is
    damaged and is not used. Loading allows tensors and plain values only.
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None
    ) -> None:
        """Write, flush to the disk, sign, rename: a checkpoint that is there is signed."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.writing")
        try:
            with temporary.open("wb") as file:
                torch.save(checkpoint, file)
                file.flush()
                os.fsync(file.fileno())
            signature = {
                "sha256": sha256(temporary),
                "config_hash": checkpoint["config_hash"],
                "step": checkpoint["global_step"],
            }
            write_atomically(signature_of(path), json.dumps(signature) + "\n")
            os.replace(temporary, path)
        except BaseException as error:
            temporary.unlink(missing_ok=True)
            causes = (error.__cause__, error.__context__)
            unwritten = next((cause for cause in causes if isinstance(cause, OSError)), None)
            if unwritten is not None and not isinstance(error, OSError):
                raise unwritten from error  # torch says only that its writer failed
            raise

    def load_checkpoint(
        self, path: Any, map_location: Any = lambda s, _: s, weights_only: bool | None = True
    ) -> Any:
        """Load tensors and plain values; anything else is refused."""
        return super().load_checkpoint(path, map_location, weights_only=True)

    def remove_checkpoint(self, path: Any) -> None:
        """Remove a checkpoint and its signature."""
        signature_of(Path(path)).unlink(missing_ok=True)
        super().remove_checkpoint(path)


class Checkpoints(Checkpoint):
    """Saves at the end of every ``every``-th step and on a signal to leave; keeps the newest two.

    The end of a step is after its report, and after its validation where one is due: going on
    repeats neither. (Lightning's own callback saves before both, and a run killed in between would
    lack them.) All processes leave at the same step; of several, one later than the signal.

    Args:
        folder: holds the checkpoints.
        every: optimizer steps.
        validate_every: optimizer steps.
        preemption: knows whether the run has been asked to leave.
    """

    def __init__(
        self, folder: Path, every: int, validate_every: int, preemption: Preemption
    ) -> None:
        self.folder, self.preemption = folder, preemption
        self.every, self.validate_every = every, validate_every
        self.seconds = 0.0  # for which training has waited
        self._anybody: Anybody | None = None

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
        leave = self.preemption.received is not None
        if trainer.world_size > 1:
            self._anybody = self._anybody or Anybody(trainer.strategy.root_device)
            leave = self._anybody(leave)
        if leave or trainer.global_step % self.every == 0:
            self.save(trainer)
        if leave:
            raise Preempted(self.preemption.received or "a signal to another process")

    def save(self, trainer: Trainer) -> None:
        """Save this step, unless it is there; remove all but the newest two."""
        began = time.perf_counter()
        path = self.folder / file_name(trainer.global_step)
        there = trainer.strategy.broadcast(path.exists())
        if not there:
            for logger in trainer.loggers:
                if isinstance(logger, JsonlLogger):  # no row before a checkpoint may be missing
                    logger.flush()
                elif isinstance(logger, CsvLogger):
                    logger.save()
            trainer.save_checkpoint(path)
        for old in sorted(self.folder.glob("step*.ckpt"))[:-2]:
            trainer.strategy.remove_checkpoint(old)
        self.seconds += time.perf_counter() - began


class Anybody:
    """Whether any process has said yes, as all of them learn it at their next call.

    The answer of this call is still in the queue of the GPU. Reading it would let the queue run
    empty at each step, since a process queues the next one while the GPU computes.

    Args:
        device: of the process, whose group must be up.
    """

    def __init__(self, device: torch.device) -> None:
        on_gpu = device.type == "cuda"
        self._yes = torch.zeros((), device=device)
        self._read = torch.zeros((), pin_memory=on_gpu)
        self._copied = torch.cuda.Event() if on_gpu else None

    def __call__(self, mine: bool) -> bool:
        """Say ``mine``; what all said at the call before, False at the first."""
        if self._copied is not None:
            self._copied.synchronize()
        before = bool(self._read)
        self._yes.fill_(mine)
        distributed.all_reduce(self._yes, distributed.ReduceOp.MAX)
        self._read.copy_(self._yes, non_blocking=True)
        if self._copied is not None:
            self._copied.record()
        return before


def file_name(step: int) -> str:
    """The name of the checkpoint of a step."""
    return f"step{step:08d}.ckpt"


def newest(folder: Path, config_hash: str) -> tuple[Path | None, int]:
    """The newest intact checkpoint and its step, or (None, 0); a damaged one is put aside.

    Raises:
        ConfigError: the checkpoint belongs to a run of another config.
    """
    for unfinished in folder.glob(".step*"):  # a process was killed while it wrote it
        unfinished.unlink(missing_ok=True)
    aside = None
    for path in sorted(folder.glob("step*.ckpt"), reverse=True):
        try:
            signature = parse_json(signature_of(path).read_text())
            step, signed_by = signature["step"], signature["config_hash"]
            intact = (
                type(step) is int
                and path.name == file_name(step)
                and isinstance(signed_by, str)
                and signature["sha256"] == sha256(path)
            )
        except FileNotFoundError as error:
            if path.exists():  # else another process of the run has put it aside
                raise ConfigError(
                    f"{signature_of(path)} is missing, which says whether {path.name} beside it is "
                    "whole; restore it, or move the checkpoint away to go back to the one before."
                ) from error
            intact = False
        except (ValueError, KeyError, TypeError):
            intact = False
        except OSError as error:  # it may be whole: a disk or its permissions failed
            raise ConfigError(
                f"{path} cannot be read ({error.strerror}); mend that and give the same command "
                "again, or move the file away to go back to the checkpoint before it."
            ) from error
        if not intact:
            aside = path.with_suffix(".damaged")
            with suppress(FileNotFoundError):  # another process of the run has put it aside
                os.replace(path, aside)
            signature_of(path).unlink(missing_ok=True)
            log.warning(
                "checkpoint %s is damaged: put aside as %s, going back to the one before.",
                path.name,
                aside.name,
            )
            continue
        if signed_by != config_hash:
            raise ConfigError(
                f"{path} belongs to a run of another config ({signed_by}, this one is "
                f"{config_hash}); remove it from there to begin anew."
            )
        return path, step
    if aside is not None:
        log.warning("No whole checkpoint is left in %s: the run begins anew.", folder)
    return None, 0
