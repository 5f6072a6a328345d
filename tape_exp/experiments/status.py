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
from typing import Any

from tape_exp.experiments.queue import Job, Submissions, Task, tasks_in_queue
from tape_exp.experiments.run_spec import RunSpec, read_specs
from tape_exp.settings.errors import ConfigError


def print_sweeps(runs: Path) -> None:
    """Print every sweep that was submitted from a folder of runs, the latest last."""
    files = sorted(runs.resolve().glob(".sweeps/*/jobs.tsv"), key=lambda f: f.stat().st_mtime)
    if not files:
        raise ConfigError(
            f"no sweep was submitted from here ({runs / '.sweeps'} has none): name the runs, "
            "as in tape-exp status model=rope,tape seed=0,1, or another folder by --runs."
        )
    submissions = submissions_of(runs.resolve() / ".sweeps")
    for file in files:
        print_runs(read_specs(file.parent), submissions)


def submissions_of(sweeps: Path) -> Submissions:
    """Read which runs were submitted, and what of them is in the queue, if that can be known."""
    queue: list[Task] = []
    try:
        queue = tasks_in_queue()
    except ConfigError as error:
        if any(sweeps.glob("*/jobs.tsv")):  # else nothing was submitted
            print(f"Without SLURM's queue: {error}")
    return Submissions(sweeps, queue)


def print_runs(jobs: Sequence[RunSpec], submissions: Submissions) -> None:
    """Print words, state and step of each run, and a note."""
    shared = set.intersection(*(set(job.overrides) for job in jobs)) if len(jobs) > 1 else set()
    if shared:
        print("All with", shlex.join(word for word in jobs[0].overrides if word in shared))
    own = []
    for job in jobs:
        own.append(shlex.join(word for word in job.overrides if word not in shared))
    width = max(map(len, own))
    counts = Counter[str]()
    for number, job in enumerate(jobs):
        state, note = state_of(job, submissions.of(job))
        if state == "running":
            note = time_to_go(job)
        counts[state] += 1
        print(f"{own[number]:{width}}  {state:7}  {step_of(job):>13}  {note}".rstrip())
    print(", ".join(f"{count} {state}" for state, count in counts.items()))


def state_of(run: RunSpec, job: Job | None) -> tuple[str, str]:
    """Return the state of a run and a note, such as its error: from its folder, from its task in
    the queue, and from what its job printed.
    """
    printed = last_start(job.log) if job else []
    if run.folder is None and job and job.log.exists():  # its base was not finished at submission
        text = job.log.read_text(encoding="utf-8", errors="replace")
        folders = re.findall(r" parameters.* in (/.+)", text)
        run.folder = Path(folders[-1]) if folders else None
    if run.done:
        return "done", "recorded" if run.recorded else str(run.folder)
    if job and job.task and job.task.waits:
        reason = f" ({job.task.reason})" if job.task.reason else ""
        return "queued", f"{job.task.state.lower()}{reason}"
    if (job and job.task) or (run.folder and is_locked(run.folder)):
        return "running", ""
    failed = tail(run.folder / "FAILED") if run.folder else []
    if failed:
        return "failed", failed[-1]
    error = last_error(printed)
    if error:
        return "failed", error
    if run.folder and run.folder.exists():
        return "stopped", "the same command resumes it"
    return "missing", "" if run.folder else "starts from a run that is not finished"


def last_error(printed: Sequence[str]) -> str:
    """Find the error that ended a job: its own sentence, which says more than SLURM's, or else that
    of SLURM (killed, out of memory); empty where the run has saved or was cancelled.

    >>> last_error(["error: no GPU.", "srun: error: node1: task 0: Exited with exit code 2"])
    'error: no GPU.'
    >>> last_error(["The same command resumes.", "srun: error: node1: task 0: Killed"])
    ''
    """
    own = [line for line in printed if line.startswith("error: ")]
    if own:
        return own[-1]
    if any("same command resumes" in line for line in printed):
        return ""
    of_slurm = [line for line in printed if re.match(r"\w+: error: ", line)]
    if not of_slurm or of_slurm[-1].endswith("Terminated"):  # by scancel, before it began
        return ""
    return of_slurm[-1]


def last_start(log: Path) -> list[str]:
    """List the last lines that a job printed since it began, or was requeued and began again."""
    lines = tail(log)
    starts = [number for number, line in enumerate(lines) if line.startswith("== job ")]
    return lines[starts[-1] :] if starts else lines


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
