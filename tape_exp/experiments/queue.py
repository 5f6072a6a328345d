"""SLURM's queue, and the jobs of every run that was submitted from a folder of runs, whatever words
named it then.

Hydra and torch are not imported here, so that ``tape-exp status`` answers at once.
"""

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from shutil import which
from typing import TypeVar

from tape_exp.experiments.run_spec import RunSpec, read_specs
from tape_exp.settings.errors import ConfigError

Key = TypeVar("Key", Path, str)
NAME = "tape_exp-"  # of a job, followed by that of its sweep
WAITING = ("PENDING", "REQUEUED", "REQUEUE_HOLD", "SUSPENDED")  # in SLURM's words
FORMAT = "%j %K %T %F %r"  # name, number in its array, state, array and the reason to wait


@dataclass(frozen=True)
class Task:
    """A task of an array of jobs that is in the queue: a run."""

    sweep: str  # the name of its folder
    number: int  # of the run in the list of the sweep
    state: str  # SLURM's word
    array: str  # its id
    reason: str = ""  # why it waits

    @property
    def waits(self) -> bool:
        """Whether it has not begun."""
        return self.state in WAITING


@dataclass(frozen=True)
class Job:
    """A run as it was submitted: what its job prints, and its task where that is in the queue."""

    log: Path
    task: Task | None


class Submissions:
    """The jobs of the runs that were submitted from one folder of runs.

    A run is known by its folder, and by its words where that was not known then, since its base was
    not finished, or is not known now. The same words may name another folder after a pull, whose
    defaults differ: that is another run.
    """

    def __init__(self, sweeps: Path, queue: Sequence[Task]) -> None:
        tasks = {(task.sweep, task.number): task for task in queue}
        self._by_folder: dict[Path, Job] = {}
        self._by_words: dict[str, Job] = {}  # of all runs
        self._without_folder: dict[str, Job] = {}  # by words, of runs whose folder was not known
        for sweep in sweeps.glob("*/jobs.tsv"):
            folder = sweep.parent
            for number, spec in enumerate(read_specs(folder)):
                log = folder / "logs" / f"{number}.txt"
                job = Job(log, tasks.get((folder.name, number)))
                keep(self._by_words, spec.line, job)
                if spec.folder is None:
                    keep(self._without_folder, spec.line, job)
                else:
                    keep(self._by_folder, spec.folder, job)

    def of(self, spec: RunSpec) -> Job | None:
        """Find the job of a run: the one in the queue, or else the last one; None without any."""
        if spec.folder is None:
            return self._by_words.get(spec.line)
        return self._by_folder.get(spec.folder) or self._without_folder.get(spec.line)

    def in_queue(self, specs: Sequence[RunSpec]) -> dict[int, Task]:
        """Map the numbers of those of some runs that are in the queue to their tasks."""
        tasks = {}
        for number, spec in enumerate(specs):
            job = self.of(spec)
            if job is not None and job.task is not None:
                tasks[number] = job.task
        return tasks


def keep(jobs: dict[Key, Job], key: Key, job: Job) -> None:
    """Keep a job unless a known one of the same run is in the queue, or has printed later."""
    if key not in jobs or precedence(job) > precedence(jobs[key]):
        jobs[key] = job


def precedence(job: Job) -> tuple[bool, float]:
    """Rank a job among those of one run: one in the queue first, then by what it printed last."""
    printed = job.log.stat().st_mtime if job.log.exists() else 0.0
    return job.task is not None, printed


def tasks_in_queue() -> list[Task]:
    """Ask for the user's tasks of all sweeps that are in the queue.

    Raises:
        ConfigError: there is no squeue, or it does not answer: the queue may hold anything.
    """
    said = slurm_says("squeue", "--me", "--noheader", "--array", f"--format={FORMAT}")
    tasks = []
    for line in said.splitlines():
        words = line.split(maxsplit=4)
        if len(words) < 4 or not words[0].startswith(NAME) or not words[1].isdecimal():
            continue  # no task of a sweep
        name, number, state, array = words[:4]
        reason = "" if words[4:] in ([], ["None"]) else words[4]
        tasks.append(Task(name.removeprefix(NAME), int(number), state, array, reason))
    return tasks


def known_queue() -> list[Task]:
    """Ask for the tasks in the queue. Raises :class:`ConfigError` where these are not known, since
    runs that are to be submitted may be among them.
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


def slurm_says(*command: str) -> str:
    """Return what a command of SLURM prints; what it says of a failure has lines of its own."""
    try:
        done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace")
    except FileNotFoundError:
        raise ConfigError(f"this machine has no {command[0]}.") from None
    if done.returncode:
        said = done.stderr.strip()
        if not said:
            raise ConfigError(f"{command[0]} failed and gives no reason.")
        print(said, file=sys.stderr)
        raise ConfigError(f"{command[0]} failed, as it says above.")
    return done.stdout
