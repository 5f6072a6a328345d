"""``tape-exp status [<the words of the sweep>]``: the state of the runs of a grid, or of
every sweep.

It is read from the run directories, whose paths are functions of the configs, and from SLURM's
queue where there is one.
"""

import re
import shlex
import sys
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tape_exp.launch.grid import Job, folder_of, jobs_of
from tape_exp.launch.queue import Task, states
from tape_exp.runs.directory import RunDirectory
from tape_exp.runs.sinks import metric_rows
from tape_exp.settings.arguments import Parser, command
from tape_exp.settings.errors import ConfigError, printable
from tape_exp.settings.redaction import shown

COLOURS = {
    "done": "green",
    "running": "cyan",
    "queued": "blue",
    "failed": "red",
    "stopped": "yellow",
    "missing": "dim",
}
LATEST = 20  # rows of metrics.jsonl that tell the speed of a run
QUIET = 300.0  # seconds without a line after which a run without a queue counts as stopped


@dataclass
class State:
    """What a run is at: a word of ``COLOURS``, the step, the time left, an error's last line."""

    word: str
    step: str = ""
    eta: str = ""
    note: str = ""


@command
def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table and a line of counts."""
    parser = Parser(prog="tape-exp status", description="What has become of a grid of runs.")
    parser.add_argument(
        "words",
        nargs="*",
        metavar="key=value",
        help="the words of the sweep; without any, every sweep that was submitted",
    )
    parser.add_argument(
        "--runs",
        type=Path,
        default=Path("runs"),
        help="where to look for sweeps if no words are given",
    )
    given = parser.parse_intermixed_args(arguments)
    console = Console(width=None if sys.stdout.isatty() else 200)
    if not given.words:
        for folder, jobs in kept(given.runs).items():
            print_sweep(jobs, folder, console)
        return 0
    jobs = jobs_of(given.words)
    if all(job.recorded for job in jobs):
        console.print("Every run has a record.")
    else:
        print_sweep(jobs, folder_of(jobs), console)
    return 0


def kept(root: Path) -> dict[Path, list[Job]]:
    """Folder and runs of every sweep that was submitted; one that cannot be read is named on stderr
    and left out.

    Raises:
        ConfigError: there is none, or none that can be read.
    """
    files = sorted(root.resolve().glob(".sweeps/*/jobs.txt"), key=lambda path: path.stat().st_mtime)
    if not files:
        raise ConfigError(
            f"no sweep was submitted from here ({root}/.sweeps has none); name the runs: "
            "model=rope,tape seed=0,1."
        )
    sweeps = {}
    for folder in (file.parent for file in files):
        try:
            sweeps[folder] = read(folder)
        except (ValueError, OSError) as error:
            sentence = (
                f"The sweep {folder} is left out ({str(error).rstrip('.')}); remove the folder if "
                "this code has outgrown it."
            )
            print(shown(sentence), file=sys.stderr)
    if not sweeps:
        raise ConfigError(
            f"no sweep below {root}/.sweeps can be read; name the runs: model=rope,tape seed=0,1."
        )
    return sweeps


def read(folder: Path) -> list[Job]:
    """The runs of a sweep that was submitted, in the order of its array, placed where the folder
    is.

    Raises:
        ValueError: a line is no run of this code.
        OSError: a file cannot be read.
    """
    record = folder / "recorded.txt"
    recorded = record.read_text().split() if record.exists() else []
    lines = (folder / "jobs.txt").read_text().splitlines()
    jobs = [Job(shlex.split(line), recorded=str(i) in recorded) for i, line in enumerate(lines)]
    if not jobs:
        raise ConfigError("its jobs.txt is empty")
    if len({job.cfg.runs for job in jobs}) == 1:  # else the sweep is over runs=
        for job in jobs:
            job.cfg.runs = str(folder.parents[1])
    return jobs


def print_sweep(jobs: Sequence[Job], folder: Path, console: Console) -> None:
    """The table of a sweep, and how many runs are at what."""
    try:
        queue = states(folder.name)
    except ConfigError as error:
        queue = {}
        console.print(f"The queue is left out: {error}", soft_wrap=True)
    run_states = [
        state_of(job, queue.get(i), folder / "logs" / f"{i}.txt") for i, job in enumerate(jobs)
    ]
    shared = [w for w in jobs[0].words if len(jobs) > 1 and all(w in job.words for job in jobs)]
    table = Table("run", "state", "step", "to go", "", box=None, pad_edge=False)
    for job, state in zip(jobs, run_states, strict=True):
        colour = COLOURS[state.word]
        own = printable(shlex.join(word for word in job.words if word not in shared))
        table.add_row(
            escape(own), f"[{colour}]{state.word}[/]", state.step, state.eta, escape(state.note)
        )
    counts = Counter(state.word for state in run_states)
    if shared:
        told = printable(shlex.join(shared))
        console.print(f"All with {told}", soft_wrap=True, markup=False)
    console.print(table)
    console.print(", ".join(f"{counts[word]} {word}" for word in COLOURS if counts[word]))


def state_of(job: Job, queued: Task | None, log: Path) -> State:
    """What a run is at.

    Args:
        job: the run.
        queued: its task, if that is in the queue.
        log: what its task printed, if it was submitted.
    """
    place = job.place()
    if place is not None and place.done:
        return State("done", note=str(place.path))
    begun = place is not None and place.path.exists()
    step, eta = progress(place) if begun and place is not None else ("", "")
    if queued is not None and queued.state in ("PENDING", "REQUEUED", "REQUEUE_HOLD", "SUSPENDED"):
        return State("queued", step, note=queued.state.lower())
    if queued is not None:
        return State("running", step, eta)
    if job.recorded:
        return State("done", note="recorded")
    wrote = newest(place.path) if begun and place is not None else 0.0
    if place is not None and (place.path / "FAILED").exists():
        return State("failed", step, note=last_line(place.path / "FAILED"))
    said = error_at_end(log) if log.exists() and log.stat().st_mtime >= wrote else ""
    if said:  # of train.py, before it made a directory, or of SLURM: killed, out of memory
        return State("failed", step, note=said)
    if begun and place is not None:
        if time.time() - wrote >= QUIET or said_stopped(place.path / "log.txt"):
            return State("stopped", step, note="the same command goes on")
        return State("running", step, eta)
    return State(
        "missing",
        note=""
        if job.level == 0 or place is not None
        else "begins from a run that is not finished",
    )


def progress(place: RunDirectory) -> tuple[str, str]:
    """The (step of all, time left in training at the rate of the last rows) of a run."""
    path = place.path / "metrics.jsonl"
    every = metric_rows(path) if path.exists() else iter(())
    rows = deque((row for row in every if row["step"]), maxlen=LATEST)
    if not rows or "optim" not in place.cfg.task:
        return "", ""
    last, before = rows[-1], rows[0]
    steps = place.cfg.task.optim.max_steps
    rate = (last["step"] - before["step"]) / max(last["seconds"] - before["seconds"], 1e-9)
    return f"{last['step']}/{steps}", clock((steps - last["step"]) / rate) if rate else ""


def clock(seconds: float) -> str:
    """``1:02:03``."""
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"


def newest(path: Path) -> float:
    """When a run last wrote a line."""
    files = (path / "log.txt", path / "metrics.jsonl", path / "config.yaml")
    return max((file.stat().st_mtime for file in files if file.exists()), default=0.0)


def said_stopped(log: Path) -> bool:
    """Whether a run's log ends with its leaving; one that goes on writes further lines."""
    return log.exists() and bool(re.match(r"\S+ \S+ Stopped( by \w+)?\.", last_line(log)))


def last_line(path: Path) -> str:
    """The last line of a file that is not empty."""
    return next(reversed(tail(path)), "")


def error_at_end(log: Path) -> str:
    """The error that a task's log ends with, if it does; SLURM adds a line or two after its own."""
    matches = [re.search(r"(\w+: )?\berror: .*", line) for line in tail(log)[-4:]]
    return next((match.group() for match in reversed(matches) if match), "")


def tail(path: Path) -> list[str]:
    """The last lines of a file that are not empty."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 8192))
        lines = file.read().decode(errors="replace").splitlines()
    return [printable(line.strip()) for line in lines if line.strip()]


if __name__ == "__main__":
    sys.exit(main())
