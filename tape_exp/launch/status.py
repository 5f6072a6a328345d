"""``tape-exp status [<words of the sweep>]``: the state of every run of a sweep.

It is read from the run directories that the sweep's jobs.tsv names, and from SLURM's queue. Nothing
is composed, so that neither Hydra nor torch is imported, unless there are words.
"""

import argparse
import fcntl
import json
import re
import shlex
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tape_exp.launch import slurm
from tape_exp.launch.slurm import SweepRun, read_runs
from tape_exp.settings.commands import command
from tape_exp.settings.errors import ConfigError

COLOURS = {
    "done": "green",
    "running": "cyan",
    "queued": "blue",
    "failed": "red",
    "stopped": "yellow",
    "missing": "dim",
}
WAITING = ("PENDING", "REQUEUED", "REQUEUE_HOLD", "SUSPENDED")  # in SLURM's words


class State(NamedTuple):
    """A word of ``COLOURS``, the step, the time left, and a note: the last line of an error."""

    word: str
    step: str = ""
    time_left: str = ""
    note: str = ""


@command
def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table for each sweep, and how many of its runs are in each state."""
    parser = argparse.ArgumentParser("tape-exp status", description="The runs of a sweep.")
    parser.add_argument("words", nargs="*", metavar="word", help="of one sweep; none: every sweep")
    parser.add_argument("--runs", type=Path, default="runs", help="the folder of the runs")
    args = parser.parse_intermixed_args(arguments)
    console = Console(width=None if sys.stdout.isatty() else 200)
    if args.words:
        from tape_exp.launch.grid import runs_of, sweep_folder  # import Hydra

        jobs = runs_of(args.words)
        print_sweep(jobs, sweep_folder(jobs), console)
        return 0
    files = sorted(args.runs.resolve().glob(".sweeps/*/jobs.tsv"), key=lambda f: f.stat().st_mtime)
    if not files:
        raise ConfigError(f"no sweep was submitted to {args.runs}; --runs names another folder.")
    for file in files:
        print_sweep(read_runs(file.parent), file.parent, console)
    return 0


def print_sweep(jobs: Sequence[SweepRun], sweep: Path, console: Console) -> None:
    """Print the table of a sweep."""
    queue: dict[int, slurm.Task] = {}
    try:
        queue = slurm.queued(sweep.name)
    except ConfigError as error:
        console.print(f"Without SLURM's queue: {error}", soft_wrap=True, markup=False)
    logs = sweep / "logs"
    states = [state_of(job, queue.get(i), logs / f"{i}.txt") for i, job in enumerate(jobs)]
    shared = set.intersection(*(set(job.words) for job in jobs)) if len(jobs) > 1 else set()
    table = Table("run", "state", "step", "to go", "", box=None, pad_edge=False)
    for job, state in zip(jobs, states, strict=True):
        own = shlex.join(word for word in job.words if word not in shared)
        word = f"[{COLOURS[state.word]}]{state.word}[/]"
        table.add_row(escape(own), word, state.step, state.time_left, escape(state.note))
    if shared:
        line = shlex.join(word for word in jobs[0].words if word in shared)
        console.print(f"All with {line}", soft_wrap=True, markup=False)
    console.print(table)
    counts = Counter(state.word for state in states)
    console.print(", ".join(f"{counts[word]} {word}" for word in COLOURS if counts[word]))


def state_of(job: SweepRun, task: slurm.Task | None, log: Path) -> State:
    """The state of a run, from its folder, its task in the queue and what that printed."""
    folder = job.folder
    if folder is None and log.exists():  # its base was not finished at submission
        printed = re.findall(r" parameters.* in (/.+)", log.read_text(errors="replace"))
        folder = Path(printed[-1]) if printed else None
    if folder and (folder / "DONE").exists():
        return State("done", note=str(folder))
    step, time_left = progress(folder / "metrics.jsonl", job.steps) if folder else ("", "")
    if task and task.state in WAITING:
        return State("queued", step, note=task.state.lower())
    if task or (folder and is_locked(folder)):
        return State("running", step, time_left)
    if job.recorded:
        return State("done", note="recorded")
    # The log has errors from before the run had a folder, and SLURM's: killed, out of memory.
    errors = tail(folder / "FAILED") if folder else []
    errors = errors or re.findall(r"(?:\w+: )?\berror: .*", "\n".join(tail(log)[-4:]))
    if errors:
        return State("failed", step, note=errors[-1])
    if folder and folder.exists():
        return State("stopped", step, note="the same command resumes it")
    return State("missing", note="" if folder else "starts from a run that is not finished")


def progress(metrics: Path, steps: int | None) -> tuple[str, str]:
    """The step, ``40/100``, and the time left at the rate of the last rows, ``0:00:30``."""
    rows = []
    for line in tail(metrics):
        with suppress(ValueError):  # the first or the last line may be cut
            rows.append(json.loads(line))
    if not rows or steps is None:
        return "", ""
    first, last = rows[0], rows[-1]
    seconds = (last["seconds"] - first["seconds"]) / max(1, last["step"] - first["step"])
    left = timedelta(seconds=round(seconds * (steps - last["step"])))
    return f"{last['step']}/{steps}", str(left) if seconds else ""


def is_locked(folder: Path) -> bool:
    """Whether a process holds the lock of a run: one on this machine, or any that shares locks."""
    with suppress(FileNotFoundError), (folder / ".lock").open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def tail(path: Path) -> list[str]:
    """The last lines of a file that are not empty; none if there is no file."""
    if not path.exists():
        return []
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 8192))
        lines = file.read().decode(errors="replace").splitlines()
    return [line.strip() for line in lines if line.strip()]


if __name__ == "__main__":
    sys.exit(main())
