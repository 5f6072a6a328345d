"""Runs on this machine: each a process, some at a time, within a limit of minutes."""

import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO, Any

from tape_exp.experiments.run_spec import RunSpec
from tape_exp.machine.preemption import REQUEUE, Preempted, Preemption, with_parent
from tape_exp.runs.directory import RunDirectory
from tape_exp.settings.errors import ConfigError

log = logging.getLogger("tape_exp")
# Statuses of a run that left after it had saved, or before there was anything to save.
RESUMABLE = (REQUEUE, -signal.SIGUSR1)


@dataclass
class Outcome:
    """How a set of runs ended.

    Attributes:
        failed: the runs that failed and why; without a reason those that begin from a failed one.
        left: how many have not ended.
        rerun: whether ``rerun=true`` was given, which runs again what is done whenever it is given.
    """

    failed: dict[RunSpec, str] = field(default_factory=dict)
    left: int = 0
    rerun: bool = False

    def status(self) -> int:
        """Print what failed and what is left, and return the status of the command."""
        reasons = [reason for reason in self.failed.values() if reason]
        for reason in reasons:
            print(f"failed: {reason}", file=sys.stderr)
        without_base = len(self.failed) - len(reasons)
        if without_base:
            print(f"runs that begin from these: {without_base}.", file=sys.stderr)
        if self.left:
            more = ", and makes those that are done anew (rerun=true)" if self.rerun else ""
            print(f"runs left: {self.left}; the same command resumes{more}.", file=sys.stderr)
            return REQUEUE
        return 1 if self.failed else 0


@dataclass
class Running:
    """A run that is under way.

    Attributes:
        process: a ``subprocess.Popen``.
        errors: the file of what it says of errors; None where it prints to the terminal.
    """

    process: Any
    errors: IO[bytes] | None = None

    def last_line(self) -> str:
        """Return what the process said last, which is its error where there is one."""
        if self.errors is None:
            return ""
        with self.errors:
            self.errors.seek(0)
            return last_line(self.errors.read().decode(errors="replace"))


def run(
    specs: Sequence[RunSpec], cores: int | None = None, minutes: float | None = None
) -> Outcome:
    """Run each in a process of ``tape-exp train``; a failure stops only what begins from it.

    With ``cores`` so many run at a time, a thread each, else one after the other with all threads.
    After so many minutes, and on SIGTERM, SIGUSR1, SIGHUP and Ctrl-C, those under way save a
    checkpoint and leave, as they do where this process is killed.
    """
    outcome = Outcome(left=len(specs), rerun=any(spec.rerun for spec in specs))
    waiting = [*specs]
    running: dict[RunSpec, Running] = {}
    began = time.monotonic()
    with time_limit(minutes):
        try:
            while waiting or running:
                start_ready(waiting, running, outcome, cores)
                ended = [spec for spec in running if running[spec].process.poll() is not None]
                for spec in ended:
                    end(spec, running.pop(spec), outcome)
                    minutes_passed = (time.monotonic() - began) / 60
                    log.info("%d to go after %.0f min.", outcome.left, minutes_passed)
                time.sleep(0.1)
        except (KeyboardInterrupt, Preempted):
            save_and_leave(running, outcome)
            raise
    return outcome


def start_ready(
    waiting: list[RunSpec], running: dict[RunSpec, Running], outcome: Outcome, cores: int | None
) -> None:
    """Start the runs whose bases have ended, as many as there is room for; those whose base has
    failed have failed too.
    """
    to_come = {*waiting, *running}
    ready = [spec for spec in waiting if spec.base not in to_come]
    room = (cores or 1) - len(running)
    for spec in ready[:room]:
        waiting.remove(spec)
        if spec.base in outcome.failed:
            outcome.failed[spec] = ""
            outcome.left -= 1
            continue
        running[spec] = start(spec, cores is not None)
        log.info("%s: started.", spec.title)


def save_and_leave(running: dict[RunSpec, Running], outcome: Outcome) -> None:
    """Let all processes save their checkpoints and end; note those that fail meanwhile."""
    if running:
        log.info("Runs under way, which save what they have and leave: %d.", len(running))
    for each in running.values():
        each.process.send_signal(signal.SIGUSR1)
    for spec, each in running.items():
        if each.process.wait() not in RESUMABLE:
            end(spec, each, outcome)


def start(spec: RunSpec, one_thread: bool) -> Running:
    """Start the process of a run. Ctrl-C reaches only the parent, which asks it to save."""
    command = [sys.executable, "-m", "tape_exp.training", *spec.overrides]
    environment = with_parent()
    if not one_thread:
        return Running(subprocess.Popen(command, env=environment, process_group=0))
    environment["OMP_NUM_THREADS"] = "1"
    errors = tempfile.TemporaryFile()  # noqa: SIM115 - the process outlives this function
    silent = subprocess.Popen(
        command, env=environment, process_group=0, stdout=subprocess.DEVNULL, stderr=errors
    )
    return Running(silent, errors)


def end(spec: RunSpec, ended: Running, outcome: Outcome) -> None:
    """Count a run that has ended, and note why it failed, if it did."""
    outcome.left -= 1
    status = ended.process.returncode
    error = ended.last_line()
    if status == 0:
        return
    if status in RESUMABLE:
        reason = "it was told to leave, or hung; the same command resumes it."
    elif status < 0:
        name = signal.Signals(-status).name
        reason = f"it was killed by {name}, maybe for lack of memory; the same command resumes it."
    else:
        reason = written_reason(spec) or error or f"status {status}."
    outcome.failed[spec] = f"{spec.title}: {reason}"
    log.error("%s", outcome.failed[spec])


def written_reason(spec: RunSpec) -> str:
    """Read why a run failed from its folder; empty where that has nothing."""
    try:
        path = RunDirectory(spec.config).path / "FAILED"
    except ConfigError as error:
        return str(error)
    return last_line(path.read_text(encoding="utf-8")) if path.exists() else ""


def last_line(text: str) -> str:
    """Return the last line of what a command printed, without what marks it as an error.

    >>> last_line("Traceback …\\nerror: no GPU.\\n")
    'no GPU.'
    """
    lines = text.strip().splitlines()
    return lines[-1].removeprefix("error: ") if lines else ""


@contextmanager
def time_limit(minutes: float | None) -> Iterator[None]:
    """Signal this process when the time is over; wherever it was met, it ends quietly here."""
    timer = threading.Timer((minutes or 0) * 60, os.kill, (os.getpid(), signal.SIGUSR1))
    timer.daemon = True
    with Preemption():
        try:
            if minutes is not None:
                timer.start()
            yield
        except Preempted:
            pass
        finally:
            timer.cancel()
