"""What SLURM's queue says of a sweep."""

import subprocess
from typing import NamedTuple

from tape_exp.settings.errors import ConfigError


class Task(NamedTuple):
    """A task of an array in the queue: SLURM's word for its state, and the id of the array."""

    state: str
    array: str


def states(name: str) -> dict[int, Task]:
    """Every task of the user's sweep that is in the queue, ``{3: Task("PENDING", "41")}``; empty
    where there is no SLURM.

    Raises:
        ConfigError: SLURM does not answer.
    """
    command = [
        "squeue",
        "--me",
        "--noheader",
        "--array",
        f"--name=tape_exp-{name}",
        "--format=%K %T %F",
    ]
    try:
        asked = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except FileNotFoundError:
        return {}
    except subprocess.TimeoutExpired as error:
        raise ConfigError(
            "squeue does not answer within a minute; try again when SLURM does."
        ) from error
    if asked.returncode:
        reason = (asked.stderr.strip().splitlines() or ["no reason"])[-1]
        raise ConfigError(
            f"squeue fails ({reason}); where there is a cluster, try again when SLURM answers."
        )
    rows = (line.split() for line in asked.stdout.splitlines())
    whole = (row for row in rows if len(row) == 3 and row[0].isdigit())
    return {int(number): Task(state, array) for number, state, array in whole}
