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
LEFT = (REQUEUE, -signal.SIGUSR1)  # statuses of a run that left in time, or before it could save


@dataclass
class Outcome:
    """How a set of runs ended: which failed and why, and how many are left; no reason is given
    for one that begins from another that failed.
    """

    failed: dict[RunSpec, str] = field(default_factory=dict)
    left: int = 0
    anew: bool = False  # rerun=true, which makes what is done anew whenever it is given

    def status(self) -> int:
        """Say what failed and what is left; the status of the command."""
        reasons = [reason for reason in self.failed.values() if reason]
        for reason in reasons:
            print(f"failed: {reason}", file=sys.stderr)
        if after := len(self.failed) - len(reasons):
            print(f"runs that begin from these: {after}.", file=sys.stderr)
        if self.left:
            more = ", and makes those that are done anew (rerun=true)" if self.anew else ""
            print(f"runs left: {self.left}; the same command resumes{more}.", file=sys.stderr)
            return REQUEUE
        return 1 if self.failed else 0


@dataclass
class Running:
    """The process of a run and, where that prints nothing, the file of its errors."""

    process: Any  # subprocess.Popen
    errors: IO[bytes] | None = None

    def last_line(self) -> str:
        """Say what the process said last, which is its error where there is one."""
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
    outcome = Outcome(left=len(specs), anew=any(spec.anew for spec in specs))
    waiting = [*specs]
    running: dict[RunSpec, Running] = {}
    began = time.monotonic()
    with time_limit(minutes):
        try:
            while waiting or running:
                to_come = {*waiting, *running}
                ready = [spec for spec in waiting if spec.needs not in to_come]
                for spec in ready[: max(cores or 1, 1) - len(running)]:
                    waiting.remove(spec)
                    if spec.needs in outcome.failed:
                        outcome.failed[spec] = ""
                        outcome.left -= 1
                        continue
                    log.info("%s: begins.", spec.title)
                    running[spec] = start(spec, cores is not None)
                ended = [spec for spec in running if running[spec].process.poll() is not None]
                for spec in ended:
                    end(spec, running.pop(spec), outcome)
                    minutes_passed = (time.monotonic() - began) / 60
                    log.info("%d to go after %.0f minutes.", outcome.left, minutes_passed)
                time.sleep(0.1)
        except (KeyboardInterrupt, Preempted):
            log.info("Runs that save their checkpoints and leave: %d.", len(running))
            for one in running.values():
                one.process.send_signal(signal.SIGUSR1)
            for spec, one in running.items():
                if one.process.wait() not in LEFT:
                    end(spec, one, outcome)
            raise
    return outcome


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
    """Note why a run failed, if it did."""
    outcome.left -= 1
    status = ended.process.returncode
    said = ended.last_line()
    if status == 0:
        return
    if status in LEFT:
        reason = "it was told to leave, or hung; the same command resumes it."
    elif status < 0:
        name = signal.Signals(-status).name
        reason = f"it was killed by {name}, maybe for lack of memory; the same command resumes it."
    else:
        reason = written_reason(spec) or said or f"status {status}."
    outcome.failed[spec] = f"{spec.title}: {reason}"
    log.error("%s", outcome.failed[spec])


def written_reason(spec: RunSpec) -> str:
    """Say why a run failed, as its folder has it; empty where it has nothing."""
    try:
        path = RunDirectory(spec.config).path / "FAILED"
    except ConfigError as error:
        return str(error)
    return last_line(path.read_text(encoding="utf-8")) if path.exists() else ""


def last_line(text: str) -> str:
    """Find the last line of what a command printed, without what marks it as an error."""
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
