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

from tape_exp.experiments.run_spec import RunSpec, read_specs
from tape_exp.settings.errors import ConfigError

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

    A run is known by its folder, and one whose base was not finished then by its words.
    """

    def __init__(self, sweeps: Path, queue: Sequence[Task]) -> None:
        tasks = {(task.sweep, task.number): task for task in queue}
        self._jobs: dict[str, Job] = {}
        for sweep in sweeps.glob("*/jobs.tsv"):
            folder = sweep.parent
            for number, spec in enumerate(read_specs(folder)):
                log = folder / "logs" / f"{number}.txt"
                self._add(spec, Job(log, tasks.get((folder.name, number))))

    def _add(self, spec: RunSpec, job: Job) -> None:
        for key in keys_of(spec):
            known = self._jobs.get(key)
            if known is None or precedence(job) > precedence(known):
                self._jobs[key] = job

    def of(self, spec: RunSpec) -> Job | None:
        """Find the job of a run: the one in the queue, or else the last one; None without any."""
        for key in keys_of(spec):
            if key in self._jobs:
                return self._jobs[key]
        return None

    def in_queue(self, specs: Sequence[RunSpec]) -> dict[int, Task]:
        """Map the numbers of those of some runs that are in the queue to their tasks."""
        tasks = {}
        for number, spec in enumerate(specs):
            job = self.of(spec)
            if job is not None and job.task is not None:
                tasks[number] = job.task
        return tasks


def keys_of(spec: RunSpec) -> list[str]:
    """List what a run is known by: its folder, if that is known, and its words."""
    return [str(spec.folder), spec.line] if spec.folder else [spec.line]


def precedence(job: Job) -> tuple[bool, float]:
    """Rank a job among those of one run: one in the queue first, then by what it printed last."""
    printed = job.log.stat().st_mtime if job.log.exists() else 0.0
    return job.task is not None, printed


def tasks_in_queue() -> list[Task]:
    """Ask for the user's tasks of all sweeps that are in the queue.

    Raises:
        ConfigError: there is no squeue, or it does not answer: the queue may hold anything.
    """
    tasks = []
    for line in slurm_says("squeue", "--me", "--noheader", "--array", f"--format={FORMAT}").split(
        "\n"
    ):
        words = line.split(maxsplit=4)
        if len(words) >= 4 and words[0].startswith(NAME) and words[1].isdecimal():
            name, number, state, array, *reason = words
            waits_for = "" if reason in ([], ["None"]) else reason[0]
            tasks.append(Task(name.removeprefix(NAME), int(number), state, array, waits_for))
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
