"""The two commands of SLURM that a sweep needs."""

import subprocess
from collections.abc import Sequence
from typing import NamedTuple

from tape_exp.settings.errors import ConfigError


class Task(NamedTuple):
    """A task in the queue: SLURM's word for its state, and the id of its array."""

    state: str
    array: str


def queued(sweep: str) -> dict[int, Task]:
    """The user's tasks of a sweep that are in the queue, ``{3: Task("PENDING", "41")}``; empty
    where there is no SLURM.
    """
    command = ["squeue", "--me", "--noheader", "--array", f"--name=tape_exp-{sweep}"]
    try:
        rows = map(str.split, _run(*command, "--format=%K %T %F").splitlines())
    except FileNotFoundError:
        return {}
    return {int(row[0]): Task(row[1], row[2]) for row in rows if len(row) == 3}


def sbatch(arguments: Sequence[str]) -> str:
    """Submit a job and return its id."""
    return _run("sbatch", "--parsable", *arguments).strip().splitlines()[-1].split(";")[0]


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise ConfigError(f"{command[0]} failed: {' '.join(done.stderr.split()) or 'no reason'}")
    return done.stdout
