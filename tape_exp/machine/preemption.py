"""Leaving on SIGUSR1 and SIGTERM: a checkpoint, and a status that asks for a requeue."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from tape_exp.machine.processes import first_process

REQUEUE = 85  # exit status: the checkpoint is saved, start the same command again
SIGNALS = (signal.SIGUSR1, signal.SIGTERM)
DISMISS = signal.SIGUSR2  # to a process that prepares data


@contextmanager
def signals_held_back() -> Iterator[None]:
    """Signals that would end this process are obeyed at the end of the block, not within it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    handlers = {
        number: signal.signal(number, lambda number, _: came.append(number))
        for number in (*SIGNALS, signal.SIGHUP, signal.SIGINT)
        if callable(signal.getsignal(number))
    }
    try:
        yield
    finally:
        for held, handler in handlers.items():
            signal.signal(held, handler)
    for number in came:
        signal.raise_signal(number)


class Preempted(SystemExit):
    """The run leaves because it was asked to; the first process has status REQUEUE, others 0."""

    def __init__(self, name: str) -> None:
        super().__init__(REQUEUE if first_process() else 0)
        self.name = name


class Preemption:
    """Catches the signals while a run is under way (``with Preemption() as preemption:``).

    In training (``waits``) the signal is remembered, and the run leaves at the end of the step. At
    any other time the first process leaves at once, by raising :class:`Preempted`; further
    processes are ended by it, or leave likewise where SLURM started them and sends the signal to
    each. A second signal changes nothing: SLURM sends SIGTERM after SIGUSR1.
    """

    def __init__(self) -> None:
        self.received: str | None = None
        self.waits = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Preemption":
        self._before = {number: signal.getsignal(number) for number in SIGNALS}
        self.install()
        return self

    def __exit__(self, *_: Any) -> None:
        if threading.current_thread() is threading.main_thread():
            # srun ends the others with SIGTERM as soon as the first has left, and its own status
            # is the highest of all: one that died of that would hide the first's REQUEUE.
            leaving = self.received is not None and not first_process()
            for number, handler in self._before.items():
                signal.signal(number, signal.SIG_IGN if leaving else handler)

    def install(self) -> None:
        """Take the signals; a thread other than the main one cannot, and runs without."""
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                signal.signal(number, self._handle)

    def _handle(self, number: int, _: FrameType | None) -> None:
        if self.received is not None:
            return
        self.received = signal.Signals(number).name
        if not self.waits and _leaves():
            raise Preempted(self.received)

    def wait(self, waits: bool) -> None:
        """Whether a signal waits for the end of the step from now on."""
        self.waits = waits
        if not waits and self.received is not None and _leaves():
            raise Preempted(self.received)


def _leaves() -> bool:
    """Whether a signal outside training makes this process leave: one that ignored SLURM's would be
    killed, and the status of that would hide the first's REQUEUE.
    """
    return first_process() or "SLURM_PROCID" in os.environ


def ignore_signals() -> None:
    """Take no notice of further signals: this process leaves with the status that it has."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def worker_signals(_: int) -> None:
    """Ignore signals in a data process: its batches are needed until the step is saved."""
    ignore_signals()
    signal.signal(DISMISS, lambda *_: os._exit(0))


@contextmanager
def workers_dismissed() -> Iterator[None]:
    """End the data processes started meanwhile, which ignore Python's SIGTERM at its exit."""
    before = set(multiprocessing.active_children())
    try:
        yield
    finally:
        for worker in set(multiprocessing.active_children()) - before:
            assert worker.pid is not None
            with suppress(ProcessLookupError):
                os.kill(worker.pid, DISMISS)
            worker.join(5)
