"""Leave on a signal: SIGUSR1 and SIGTERM, as SLURM sends them, and SIGHUP of a terminal that is
closed. The run saves a checkpoint, and its status asks for a requeue.
"""

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
from dataclasses import dataclass
from types import FrameType
from typing import Any

from tape_exp.machine.processes import first_process, this_process

REQUEUE = 85  # exit status: the checkpoint is saved, start the same command again
SIGNALS = (signal.SIGUSR1, signal.SIGTERM, signal.SIGHUP)
PARENT = "TAPE_EXP_PARENT"  # the process with which this one leaves
PR_SET_PDEATHSIG = 1  # of Linux


class Preempted(SystemExit):
    """The run leaves because it was asked to; the first process has status REQUEUE, others 0."""

    def __init__(self, name: str) -> None:
        super().__init__(REQUEUE if first_process() else 0)
        self.name = name


@dataclass
class Preemption:
    """Catches the signals while a run is under way (``with Preemption() as preemption:``).

    In training (``waits``) a signal is remembered, and the run leaves at the end of the step. At
    any other time the first process leaves at once, by raising :class:`Preempted`, and ends the
    others; those that SLURM started get its signal themselves and leave likewise. A second signal
    changes nothing: SLURM sends SIGTERM after SIGUSR1. Under nohup SIGHUP stays ignored. Data
    workers that were started meanwhile ignore signals (:func:`ignore_signals`), since their batches
    are needed until a step is saved; they are killed at the end, where Python would wait for them.
    """

    received: str | None = None
    waits: bool = False
    further: bool = False  # a process other than the first has received it

    def __enter__(self) -> "Preemption":
        self.children = set(multiprocessing.active_children())
        # Lightning ignores Ctrl-C once it has ended a training by it.
        self.before = {number: signal.getsignal(number) for number in (*SIGNALS, signal.SIGINT)}
        if threading.current_thread() is threading.main_thread():  # others run without
            for number in SIGNALS:
                under_nohup = number == signal.SIGHUP and self.before[number] == signal.SIG_IGN
                if not under_nohup:
                    signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: Any) -> None:
        for worker in set(multiprocessing.active_children()) - self.children:
            worker.kill()
            worker.join(5)
        # srun ends the others with SIGTERM as soon as the first has left, and its own status is the
        # highest of all: one that died of that would hide the first's REQUEUE.
        if threading.current_thread() is threading.main_thread():
            for number, handler in self.before.items():
                signal.signal(number, signal.SIG_IGN if self.further else handler)

    def _handle(self, number: int, _: FrameType | None) -> None:
        if self.received is None:
            self.received = signal.Signals(number).name
            self.further = not first_process()
            self.defer_signals(self.waits)

    def defer_signals(self, waits: bool) -> None:
        """Let signals wait for the end of the step from now on, or no longer, and leave if one has
        waited.
        """
        self.waits = waits
        leaves = first_process() or this_process().launcher == "SLURM"
        if self.received is not None and not self.waits and leaves:
            raise Preempted(self.received)


def ignore_signals(*_: int) -> None:
    """Take no notice of further signals: this process leaves with the status that it has."""
    if threading.current_thread() is threading.main_thread():
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)


def with_parent() -> dict[str, str]:
    """Return the environment for a process that calls :func:`leave_with_parent`."""
    return {**os.environ, PARENT: str(os.getpid())}


def leave_with_parent() -> None:
    """Let this process get SIGTERM when the one that started it for a run of its own dies, even
    killed: nobody else would end it. Only Linux can do this.
    """
    parent = os.environ.pop(PARENT, None)
    if parent is None or sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(parent):  # it has died already
        os.kill(os.getpid(), signal.SIGTERM)
