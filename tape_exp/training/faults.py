"""What stopped a run, in a sentence that names the folder, the keys or the process at fault."""

import atexit
import errno
import logging
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from lightning import Callback, LightningModule, Trainer
from lightning.fabric.utilities.distributed import _destroy_dist_connection
from omegaconf import DictConfig

from tape_exp.machine.preemption import Preempted, Preemption
from tape_exp.runs.directory import RunDirectory
from tape_exp.settings.errors import ConfigError

log = logging.getLogger("tape_exp")
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class StorageError(RuntimeError):
    """A file of the run cannot be written: the disk is full, or a quota is reached."""


class OutOfMemoryError(RuntimeError):
    """The model does not fit into memory."""


class LostProcessError(RuntimeError):
    """Another process of the run has died."""


class GivenUpError(Exception):
    """A callback ends the training early, as a search does whose other trials are better."""


@contextmanager
def explained(
    cfg: DictConfig, directory: RunDirectory, preemption: Preemption, watch: "ProcessWatch"
) -> Iterator[None]:
    """Log how a run ends early, write FAILED if it failed, and raise :func:`explain`'s error."""
    try:
        with alone_at_exit(), no_exit():
            yield
    except (KeyboardInterrupt, Preempted) as error:
        by = f" by {error.name}" if isinstance(error, Preempted) else ""
        log.info("Stopped%s. %s", by, what_next(directory))
        raise
    except GivenUpError as error:
        log.info("Given up: %s", error)
        raise
    except Exception as error:
        # What fails after a signal fails because of it: another process has left before this one.
        if preemption.received is not None:
            by = f"{preemption.received} ({type(error).__name__})"
            log.info("Stopped by %s. %s", by, what_next(directory))
            raise Preempted(preemption.received) from error
        explanation = explain(error, cfg, directory, watch.lost_process())
        failed = directory.fail(explanation)
        where = f"The traceback is in {failed}." if failed else "FAILED could not be written."
        mistake = isinstance(explanation, ConfigError)  # with which the command fails again
        log.info("%s", where if mistake else f"{where} {what_next(directory)}")
        raise explanation from (None if explanation is error else error)


@contextmanager
def alone_at_exit() -> Iterator[None]:
    """A process that fails ends without the others.

    Lightning destroys NCCL's group at the exit, which waits for collectives that have begun, and
    those for processes that do not know of the failure: they learn of it when this one has ended.
    """
    try:
        yield
    except BaseException:
        atexit.unregister(_destroy_dist_connection)
        raise


@contextmanager
def no_exit() -> Iterator[None]:
    """An interruption and a failure instead of the SystemExit that they are met as."""
    try:
        yield
    except Preempted:
        raise
    except SystemExit as error:
        if isinstance(error.__context__, KeyboardInterrupt):  # Lightning made it a status of 1
            raise KeyboardInterrupt from error
        raise RuntimeError(
            f"the code of the model or the task has left Python with status {error.code}; an "
            "exception with a sentence would say why."
        ) from error


def what_next(directory: RunDirectory) -> str:
    """What the same command does after this one."""
    kept = directory.checkpoints.glob("step*.ckpt")
    if directory.cfg.debug.name == "none" and any(kept):
        return f"The same command goes on from the last checkpoint in {directory.checkpoints}."
    return "The same command begins anew."


def explain(
    error: Exception, cfg: DictConfig, directory: RunDirectory, lost: str | None
) -> Exception:
    """``error``, or a clear one where it is a lost process, a full disk or a lack of memory."""
    if lost is not None:
        return LostProcessError(f"{lost} The same command goes on from the last checkpoint.")
    for cause in chain(error):
        if isinstance(cause, OSError) and cause.errno in FULL:
            saved = "; the last checkpoint is whole" if any(directory.checkpoints.glob("*")) else ""
            return StorageError(
                f"{directory.path} cannot be written ({cause.strerror}): free space there or raise "
                f"the quota, and give the same command again{saved}."
            )
        if lacks_memory(cause):
            return OutOfMemoryError(
                f"out of memory; {memory_keys(cfg)}; debug=plan estimates what a run needs."
            )
    return error


def lacks_memory(error: BaseException) -> bool:
    """Whether an allocation failed, on a GPU or beside it."""
    lacking = isinstance(error, torch.OutOfMemoryError | MemoryError)
    return lacking or "can't allocate memory" in str(error)


def chain(error: BaseException) -> Iterator[BaseException]:
    """An error and what it came from."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__


def memory_keys(cfg: DictConfig) -> str:
    """The keys that lower memory, the cheapest first, with values below the present ones."""
    trainer, advice = cfg.trainer, []
    batch = cfg.task.optim.batch if "optim" in cfg.task else 1
    rows = trainer.micro_batch or batch // (trainer.devices * trainer.nodes)
    if rows > 1:
        advice.append(f"trainer.micro_batch={rows // 2}")
    if not trainer.checkpoint_activations:
        advice.append("trainer.checkpoint_activations=true")
    if trainer.strategy != "fsdp":
        advice.append("trainer=fsdp with more trainer.devices")
    for key in ("rows_per_batch", "windows.tokens_per_batch"):
        section, _, last = key.rpartition(".")
        holder = cfg.task.get(section) if section else cfg.task
        if holder is not None and holder.get(last):
            advice.append(f"in evaluation task.{key}={max(holder[last] // 2, 1)}")
    return "try " + ", ".join([*advice, "or a smaller task.arch"])


class ProcessWatch(Callback):
    """Notices when a process that Lightning started dies, and writes FAILED before it is killed.

    Args:
        fail: is called with the sentence.
        leaving: whether the run is leaving anyway.
    """

    def __init__(self, fail: Callable[[Exception], object], leaving: Callable[[], bool]) -> None:
        self.fail, self.leaving = fail, leaving
        self.lost: str | None = None
        self._threads: list[threading.Thread] = []

    def setup(self, trainer: Trainer, module: LightningModule, stage: str) -> None:
        """Begin to watch, once."""
        if not self._threads:
            for rank, child in enumerate(getattr(trainer.strategy.launcher, "procs", []), 1):
                whom = (rank, trainer.world_size, child)
                self._threads.append(threading.Thread(target=self._wait, args=whom, daemon=True))
                self._threads[-1].start()

    def _wait(self, rank: int, world: int, child: subprocess.Popen) -> None:
        code = child.wait()
        if code == 0 or self.leaving() or self.lost is not None:
            return
        how = f"ended with status {code}"
        if code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
        self.lost = f"the process of rank {rank} of {world} {how}."
        self.fail(LostProcessError(self.lost))

    def lost_process(self, seconds: float = 2.0) -> str | None:
        """The sentence on the process that died, if one has.

        An error of this process may be the first sign of another's death, a little before it: so
        much time is given to notice it.
        """
        for thread in self._threads:
            thread.join(seconds / len(self._threads))
        return self.lost
