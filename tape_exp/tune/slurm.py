"""The workers of a search as one SLURM array."""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from tape_exp.launch import sweep
from tape_exp.launch.grid import Job, refuse_breaks
from tape_exp.machine.files import write_atomically
from tape_exp.settings.targets import refuse_secrets
from tape_exp.tune.plan import LAUNCHER, Search


def submit_workers(
    search: Search, words: Sequence[str], count: int, folder: Path, dry_run: bool
) -> None:
    """Submit so many tasks of one array, each of which is the search's command once.

    A task that is told to leave is queued again and goes on, as a run's is.
    """
    refuse_secrets(words)
    for word in words:
        refuse_breaks(word)
    job = Job(search.words(search.models[0], {}))
    own = [word for word in words if word.startswith(LAUNCHER)]
    settings = sweep.cluster(own, [job])
    place = folder / "slurm"
    told = shlex.join(["tape-exp", "tune", *words, f"--slurm={count}"])
    script = sweep.script_of(settings, place, told, [sys.executable, "-m", "tape_exp.tune"])
    line = shlex.join([*(word for word in words if word not in own), "--worker=0"])
    array = f"--array=0-{count - 1}"
    if dry_run:
        print(f"{script}# every task: {line}\n# sbatch {array} {place / 'script.sh'}")
        return
    with sweep.only_one(place):
        (place / "logs").mkdir(exist_ok=True)
        write_atomically(place / "jobs.txt", f"{line}\n" * count)
        write_atomically(place / "script.sh", script)
        number = sweep.submit([array, str(place / "script.sh")])
    print(f"Submitted job {number} ({count} workers).\nLogs:   {place}/logs")
    result = shlex.join(["tape-exp", "tune", *(word for word in words if word not in own)])
    print(f"Cancel: scancel {number}\nResult: {result}")
