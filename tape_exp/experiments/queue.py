"""SLURM's queue, and the runs that were submitted from a folder of runs, whatever overrides named
them then.

Hydra and torch are not imported here, so that ``tape-exp status`` answers at once.
"""

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from shutil import which
from typing import TypeVar

from tape_exp.experiments.run_spec import RunSpec, read_specs
from tape_exp.settings.errors import ConfigError

Key = TypeVar("Key", Path, str)
NAME = "tape_exp-"  # of a job, before that of its sweep or search
PENDING = ("PENDING", "REQUEUED", "REQUEUE_HOLD", "SUSPENDED")  # SLURM's states
FORMAT = "%j %K %T %F %r"  # name, index in its array, state, id of the array, reason


@dataclass(frozen=True)
class ArrayTask:
    """A task of a job array that is in the queue: a run.

    Attributes:
        sweep: the name of its sweep, which the job's name has.
        index: its place in the array, and of the run in the list of the sweep.
        state: SLURM's word, as ``PENDING``.
        job_id: of the array.
        reason: why it is pending.
    """

    sweep: str
    index: int
    state: str
    job_id: str
    reason: str = ""

    @property
    def pending(self) -> bool:
        """Say whether it has not begun."""
        return self.state in PENDING


@dataclass(frozen=True)
class SubmittedRun:
    """A run as it was submitted: where its job prints, and its task where that is in the queue."""

    log: Path
    task: ArrayTask | None


class Submissions:
    """The runs that were submitted from one folder of runs.

    A run is known by its folder, and by its overrides where that was not known then, since its base
    was not finished, or is not known now. The same overrides may name another folder after a pull,
    whose defaults differ: that is another run.
    """

    def __init__(self, sweeps: Path, queue: Sequence[ArrayTask]) -> None:
        tasks = {(task.sweep, task.index): task for task in queue}
        self._by_folder: dict[Path, SubmittedRun] = {}
        self._by_overrides: dict[str, SubmittedRun] = {}  # of all runs
        self._without_folder: dict[str, SubmittedRun] = {}  # of those whose folder was not known
        for sweep in sweeps.glob("*/jobs.tsv"):
            folder = sweep.parent
            for index, spec in enumerate(read_specs(folder)):
                log = folder / "logs" / f"{index}.txt"
                run = SubmittedRun(log, tasks.get((folder.name, index)))
                keep_latest(self._by_overrides, spec.line, run)
                if spec.folder is None:
                    keep_latest(self._without_folder, spec.line, run)
                else:
                    keep_latest(self._by_folder, spec.folder, run)

    def of(self, spec: RunSpec) -> SubmittedRun | None:
        """Find a run as it was submitted: as it is in the queue, or else the last time; None where
        it never was.
        """
        if spec.folder is None:
            return self._by_overrides.get(spec.line)
        return self._by_folder.get(spec.folder) or self._without_folder.get(spec.line)

    def in_queue(self, specs: Sequence[RunSpec]) -> dict[int, ArrayTask]:
        """Return those of some runs that are in the queue: place in ``specs`` -> task."""
        tasks = {}
        for index, spec in enumerate(specs):
            run = self.of(spec)
            if run is not None and run.task is not None:
                tasks[index] = run.task
        return tasks


def keep_latest(runs: dict[Key, SubmittedRun], key: Key, run: SubmittedRun) -> None:
    """Keep a run unless a known submission of it is in the queue, or has printed later."""
    if key not in runs or precedence(run) > precedence(runs[key]):
        runs[key] = run


def precedence(run: SubmittedRun) -> tuple[bool, float]:
    """Rank the submissions of one run: one in the queue first, then by what it printed last."""
    printed = run.log.stat().st_mtime if run.log.exists() else 0.0
    return run.task is not None, printed


def tasks_in_queue() -> list[ArrayTask]:
    """Ask for the user's tasks of all sweeps that are in the queue.

    Raises:
        ConfigError: there is no squeue, or it does not answer: the queue may hold anything.
    """
    printed = output_of("squeue", "--me", "--noheader", "--array", f"--format={FORMAT}")
    tasks = []
    for line in printed.splitlines():
        fields = line.split(maxsplit=4)
        if len(fields) < 4 or not fields[0].startswith(NAME) or not fields[1].isdecimal():
            continue  # no task of a sweep
        name, index, state, job_id = fields[:4]
        reason = fields[4] if len(fields) > 4 and fields[4] != "None" else ""
        tasks.append(ArrayTask(name.removeprefix(NAME), int(index), state, job_id, reason))
    return tasks


def queue_if_known(told: bool) -> list[ArrayTask]:
    """Ask for the tasks in the queue; where they are not known none, and why is ``told``."""
    try:
        return tasks_in_queue()
    except ConfigError as error:
        if told:
            print(f"Without SLURM's queue: {error}")
        return []


def queue_to_submit() -> list[ArrayTask]:
    """Ask for the tasks in the queue before runs are submitted, which may be among them.

    Raises:
        ConfigError: they are not known, so that nothing may be submitted.
    """
    try:
        return tasks_in_queue()
    except ConfigError as error:
        if which("squeue") is None:
            remedy = "give the same command on the cluster, or run here with --cores=1."
            raise ConfigError(f"{error} Nothing is submitted: {remedy}") from error
        raise ConfigError(
            f"{error} Nothing is submitted, since these runs may be in the queue: give the same "
            "command when squeue answers."
        ) from error


def output_of(*command: str) -> str:
    """Return what a command of SLURM prints.

    Raises:
        ConfigError: it failed, with what it says of that.
    """
    try:
        done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace")
    except FileNotFoundError:
        raise ConfigError(f"this machine has no {command[0]}.") from None
    if done.returncode:
        reason = " ".join(done.stderr.split()).rstrip(".")
        says = f": {reason}." if reason else " and gives no reason."
        raise ConfigError(f"{command[0]} failed{says}")
    return done.stdout
