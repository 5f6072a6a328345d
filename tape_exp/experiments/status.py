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
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from tape_exp.experiments.queue import Submissions, SubmittedRun
from tape_exp.experiments.run_spec import RunSpec


@dataclass(frozen=True)
class State:
    """What has become of a run.

    Attributes:
        name: missing, queued, running, stopped, failed or done.
        note: what more is known, as its error.
    """

    name: str
    note: str = ""


def sweeps_in(runs: Path) -> list[Path]:
    """List the folders of the sweeps that were submitted from a folder of runs, the latest last."""
    lists = sorted(runs.glob(".sweeps/*/jobs.tsv"), key=lambda file: file.stat().st_mtime)
    return [file.parent for file in lists]


def print_runs(specs: Sequence[RunSpec], submissions: Submissions) -> None:
    """Print a line for each run, with its overrides, state, step and a note, and the count of each
    state.
    """
    shared = overrides_of_all(specs)
    if shared:
        print("All with", shlex.join(shared))
    labels = []
    for spec in specs:
        own = [override for override in spec.overrides if override not in shared]
        labels.append(shlex.join(own))
    width = max(map(len, labels))
    counts = Counter[str]()
    for label, spec in zip(labels, specs, strict=True):
        state = state_of(spec, submissions.of(spec))
        counts[state.name] += 1
        print(f"{label:{width}}  {state.name:7}  {step_of(spec):>13}  {state.note}".rstrip())
    print(", ".join(f"{count} {name}" for name, count in counts.items()))


def overrides_of_all(specs: Sequence[RunSpec]) -> list[str]:
    """List the overrides that several runs have in common; none of a single run."""
    if len(specs) == 1:
        return []
    sets = [set(spec.overrides) for spec in specs]
    shared = set.intersection(*sets)
    return [override for override in specs[0].overrides if override in shared]


def state_of(spec: RunSpec, submitted: SubmittedRun | None) -> State:
    """Find the state of a run: from its folder, then from its task in the queue, then from what its
    job printed.
    """
    if spec.folder is None and submitted is not None:
        spec.folder = folder_in_log(submitted.log)
    if spec.done:
        return State("done", "recorded" if spec.recorded else str(spec.folder))
    task = submitted.task if submitted else None
    if task is not None and task.pending:
        reason = f" ({task.reason})" if task.reason else ""
        return State("queued", f"{task.state.lower()}{reason}")
    if task is not None or (spec.folder and is_locked(spec.folder)):
        return State("running", time_to_go(spec))
    error = error_of(spec, submitted)
    if error:
        return State("failed", error)
    if spec.folder and spec.folder.exists():
        return State("stopped", "the same command resumes it")
    if spec.folder is None:
        return State("missing", "starts from a run that is not finished")
    return State("missing")


def folder_in_log(log: Path) -> Path | None:
    """Find the folder of a run in what its job printed: it was not known at submission, since the
    run's base was not finished.
    """
    if not log.exists():
        return None
    text = log.read_text(encoding="utf-8", errors="replace")
    folders = re.findall(r" parameters.* in (/.+)", text)
    return Path(folders[-1]) if folders else None


def error_of(spec: RunSpec, submitted: SubmittedRun | None) -> str:
    """Find why a run failed, in its folder or in what its job printed; empty where it did not."""
    failed = tail(spec.folder / "FAILED") if spec.folder else []
    if failed:
        return failed[-1]
    return last_error(last_start(submitted.log)) if submitted else ""


def last_error(printed: Sequence[str]) -> str:
    """Find the error that ended a job: its own sentence, which says more than SLURM's, or else that
    of SLURM (killed, out of memory); empty where the run has saved or was cancelled.

    >>> last_error(["error: no GPU.", "srun: error: node1: task 0: Exited with exit code 2"])
    'error: no GPU.'
    >>> last_error(["… the same command begins again.", "srun: error: node1: task 0: Killed"])
    ''
    """
    own = [line for line in printed if line.startswith("error: ")]
    if own:
        return own[-1]
    if any("the same command " in line.lower() for line in printed):
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


def step_of(spec: RunSpec) -> str:
    """Return the last step that a run has reported, ``40/100``; empty without one."""
    rows = last_rows(spec)
    return f"{rows[-1]['step']}/{spec.steps}" if rows else ""


def time_to_go(spec: RunSpec) -> str:
    """Estimate the time that the rest of the training takes at the rate of the last reports,
    ``0:12:30 left``; nothing before there are two of them.
    """
    rows = last_rows(spec)
    if not rows or spec.steps is None:
        return ""
    steps = rows[-1]["step"] - rows[0]["step"]
    if steps == 0:
        return ""
    seconds_per_step = (rows[-1]["seconds"] - rows[0]["seconds"]) / steps
    left = (spec.steps - rows[-1]["step"]) * seconds_per_step
    return f"{timedelta(seconds=round(left))} left"


def last_rows(spec: RunSpec) -> list[dict[str, Any]]:
    """List the last rows of the metrics of a run that trains; a line may be cut at either end."""
    if spec.folder is None or not spec.steps:
        return []
    rows = []
    for line in tail(spec.folder / "metrics.jsonl"):
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
