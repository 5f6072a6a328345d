"""The state of every run of a sweep: missing, queued, running, stopped, failed or done.

It is read from the run directories that the sweep's jobs.tsv names, and from SLURM's queue. Nothing
is composed, and neither Hydra nor torch is imported.
"""

import fcntl
import json
import re
import shlex
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from shutil import which
from typing import Any

from tape_exp.experiments import slurm
from tape_exp.experiments.run_spec import RunSpec, read_specs
from tape_exp.settings.errors import ConfigError

WAITING = ("PENDING", "REQUEUED", "REQUEUE_HOLD", "SUSPENDED")  # in SLURM's words


def print_sweeps(runs: Path) -> None:
    """Print every sweep that was submitted from a folder of runs, the latest last."""
    files = sorted(runs.resolve().glob(".sweeps/*/jobs.tsv"), key=lambda f: f.stat().st_mtime)
    if not files:
        raise ConfigError(
            f"no sweep was submitted from here ({runs / '.sweeps'} has none): name the runs, "
            "as in tape-exp status model=rope,tape seed=0,1, or another folder by --runs."
        )
    for file in files:
        print_sweep(read_specs(file.parent), file.parent)


def print_sweep(jobs: Sequence[RunSpec], sweep: Path) -> None:
    """Print words, state and step of each run of a sweep, and a note."""
    queue: dict[int, tuple[str, str]] = {}
    try:
        queue = slurm.queued(sweep.name)
    except ConfigError as error:
        if which("squeue") or (sweep / "jobs.tsv").exists():  # else nothing was submitted
            print(f"Without SLURM's queue: {error}")
    shared = set.intersection(*(set(job.overrides) for job in jobs)) if len(jobs) > 1 else set()
    if shared:
        print("All with", shlex.join(word for word in jobs[0].overrides if word in shared))
    own = []
    for job in jobs:
        own.append(shlex.join(word for word in job.overrides if word not in shared))
    width = max(map(len, own))
    counts = Counter[str]()
    for number, job in enumerate(jobs):
        queued, _ = queue.get(number, ("", ""))
        state, note = state_of(job, queued, sweep / "logs" / f"{number}.txt")
        if state == "running":
            note = time_to_go(job)
        counts[state] += 1
        print(f"{own[number]:{width}}  {state:7}  {step_of(job):>13}  {note}".rstrip())
    print(", ".join(f"{count} {state}" for state, count in counts.items()))


def state_of(job: RunSpec, queued: str, log: Path) -> tuple[str, str]:
    """List the state of a run and a note, such as the last line of an error: from its folder,
    SLURM's word for its task in the queue, if that is there, and what it printed.
    """
    if job.folder is None and log.exists():  # its base was not finished at submission
        printed = re.findall(
            r" parameters.* in (/.+)", log.read_text(encoding="utf-8", errors="replace")
        )
        job.folder = Path(printed[-1]) if printed else None
    if job.done:
        return "done", "recorded" if job.recorded else str(job.folder)
    folder = job.folder
    if queued in WAITING:
        return "queued", queued.lower()
    if queued or (folder and is_locked(folder)):
        return "running", ""
    # The log has errors from before the run had a folder, and SLURM's: killed, out of memory.
    errors = tail(folder / "FAILED") if folder else []
    errors = errors or re.findall(r"(?:\w+: )?\berror: .*", "\n".join(tail(log)[-4:]))
    if errors:
        return "failed", errors[-1]
    if folder and folder.exists():
        return "stopped", "the same command resumes it"
    return "missing", "" if folder else "starts from a run that is not finished"


def step_of(job: RunSpec) -> str:
    """Find the last step that a run has reported, ``40/100``."""
    rows = last_rows(job)
    return f"{rows[-1]['step']}/{job.steps}" if rows else ""


def time_to_go(job: RunSpec) -> str:
    """Estimate the time that the rest of the training takes at the rate of the last reports,
    ``0:12:30 left``; nothing before there are two of them.
    """
    rows = last_rows(job)
    steps = rows[-1]["step"] - rows[0]["step"] if rows else 0
    if not steps or job.steps is None:
        return ""
    seconds_per_step = (rows[-1]["seconds"] - rows[0]["seconds"]) / steps
    left = (job.steps - rows[-1]["step"]) * seconds_per_step
    return f"{timedelta(seconds=round(left))} left"


def last_rows(job: RunSpec) -> list[dict[str, Any]]:
    """List the last rows of the metrics of a run that trains; a line may be cut at either end."""
    rows = []
    for line in tail(job.folder / "metrics.jsonl") if job.folder and job.steps else []:
        with suppress(ValueError):
            rows.append(json.loads(line))
    return [row for row in rows if isinstance(row, dict)]


def is_locked(folder: Path) -> bool:
    """Say whether a process holds the lock of a run, here or on a machine that shares locks."""
    with suppress(FileNotFoundError), (folder / ".lock").open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def tail(path: Path) -> list[str]:
    """List the last lines of a file that are not empty; none if there is no file."""
    if not path.exists():
        return []
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 8192))
        lines = file.read().decode(errors="replace").splitlines()
    return [line.strip() for line in lines if line.strip()]
