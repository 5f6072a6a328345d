"""Say what stopped a run, in one sentence that names the folder, keys or process at fault."""

import errno
import logging
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import torch
from lightning import Callback, LightningModule, Trainer

from tape_exp.machine.preemption import REQUEUE, Preempted, Preemption
from tape_exp.runs.checkpoint_files import saved_checkpoints
from tape_exp.runs.directory import RunDirectory
from tape_exp.settings.errors import ConfigError

log = logging.getLogger("tape_exp")
END_SECONDS = 10.0  # in which a process whose work is done ends by itself
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class RunError(RuntimeError):
    """A run was stopped from outside: by a lack of memory, or because another process died."""


class HungProcessError(RunError):
    """Another process of the run does not answer."""


class TrialPruned(Exception):  # noqa: N818  (as Optuna calls it)
    """A callback ends the training early, as a search does whose other trials are better."""


@contextmanager
def explained(directory: RunDirectory, watch: "ProcessWatch") -> Iterator[None]:
    """Log how a run ends early, write FAILED if it failed, and raise the error of :func:`explain`;
    a mistake of the user before the run has begun leaves nothing.

    A process that does not answer ends the run with the status that asks for a requeue.
    """
    try:
        yield
    except (KeyboardInterrupt, SystemExit, TrialPruned) as error:
        watch.end()
        how = f"by {error.name}" if isinstance(error, Preempted) else "early"
        log.info("Stopped %s. %s", how, what_is_saved(directory))
        if isinstance(error.__context__, KeyboardInterrupt):  # Lightning exits with status 1
            raise KeyboardInterrupt from error
        raise
    except Exception as error:
        if isinstance(error, ConfigError) and not directory.begun:
            raise
        log.debug("What stopped the run:", exc_info=error)
        explanation = explain(error, directory, watch.lost_process())
        watch.end()
        signal_name = watch.preemption.received
        if signal_name is not None:  # another process may have left before this one
            saved = what_is_saved(directory)
            log.info("Stopped by %s (%s). %s", signal_name, type(error).__name__, saved)
            raise Preempted(signal_name) from error
        failed = directory.fail(explanation)
        where = f"The traceback is in {failed}." if failed else "FAILED could not be written."
        mistake = isinstance(explanation, ConfigError)  # with which the command fails again
        log.info("%s", where if mistake else f"{where} {what_is_saved(directory)}")
        if isinstance(explanation, HungProcessError):
            print(f"error: {explanation}", file=sys.stderr)
            raise SystemExit(REQUEUE) from error
        raise explanation from (None if explanation is error else error)


def what_is_saved(directory: RunDirectory) -> str:
    """Say at which step the same command goes on."""
    saved = saved_checkpoints(directory.checkpoints)
    if not saved:
        return "No step is saved: the same command begins again."
    step = int(saved[-1].stem.removeprefix("step"))
    return f"Step {step} is saved: the same command resumes from it."


def explain(error: Exception, directory: RunDirectory, lost: str | None) -> Exception:
    """Return ``error``, or a clear one of a lost or hung process, a full disk, or no memory."""
    if lost is not None:
        return RunError(f"{lost} {what_is_saved(directory)}")
    task = directory.cfg.task
    trainer = directory.cfg.trainer
    devices = trainer.devices * trainer.nodes
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in FULL:
            advice = f"{cause.strerror}: free space there or raise the quota"
            return OSError(cause.errno, advice, cause.filename or str(directory.path))
        lacking = isinstance(cause, torch.OutOfMemoryError | MemoryError)
        if lacking or "can't allocate memory" in str(cause):
            rows = trainer.micro_batch or ("optim" in task and task.optim.batch // devices)
            return RunError(
                f"out of memory; try trainer.micro_batch={max(rows // 2, 1)}, "
                "trainer.checkpoint_activations=true, trainer=fsdp with more trainer.devices, or a "
                "smaller task.arch; in evaluation fewer task.rows_per_batch or "
                "task.windows.tokens_per_batch; debug=plan estimates what a run needs."
            )
        late = isinstance(cause, RuntimeError) and re.search("(?i)timed? ?out", str(cause))
        if devices > 1 and late:
            return HungProcessError(
                "another process of the run has not answered for trainer.timeout="
                f"{trainer.timeout} seconds: it hangs, or cannot be reached. "
                f"{what_is_saved(directory)}"
            )
        cause = cause.__cause__ or cause.__context__
    return error


@dataclass(eq=False)
class ProcessWatch(Callback):
    """Notices when a process that Lightning started dies, and writes FAILED at once: this process
    may wait for that one for ever, and Lightning kills it a few seconds later.
    """

    directory: RunDirectory
    preemption: Preemption
    lost: str | None = None
    children: list[subprocess.Popen] = field(default_factory=list)
    first: int = 0  # rank of the first child
    world: int = 1  # processes of the run

    def setup(self, trainer: Trainer, module: LightningModule, stage: str) -> None:
        """Begin to watch, once."""
        started = getattr(trainer.strategy.launcher, "procs", [])
        if started and not self.children:
            self.children = started
            self.first = trainer.global_rank + 1
            self.world = trainer.world_size
            threading.Thread(target=self.lost_process, args=(None,), daemon=True).start()

    def lost_process(self, seconds: float | None = 2.0) -> str | None:
        """Say which process died, if one does within so many seconds: an error of this one may
        precede the news by a moment.
        """
        began = time.monotonic()
        while self.lost is None and any(child.returncode != 0 for child in self.children):
            for rank, child in enumerate(self.children, self.first):
                status = child.poll()
                if status and self.preemption.received is None:
                    how = f"ended with status {status}"
                    if status < 0:
                        how = f"was killed by {signal.Signals(-status).name}"
                    self.lost = f"the process of rank {rank} of {self.world} {how}."
                    self.directory.fail(RunError(self.lost))
            if seconds is not None and time.monotonic() - began > seconds:
                break
            time.sleep(0.1)
        return self.lost

    def wait(self) -> None:
        """Wait for the end of the children, which have done their part."""
        for child in self.children:
            with suppress(subprocess.TimeoutExpired):
                child.wait(END_SECONDS)
        self.end()

    def end(self) -> None:
        """Let no child wait for this process, which leaves."""
        children = list(self.children)
        self.children.clear()  # else Lightning's own watch ends this process when they have ended
        for child in children:
            child.kill()
