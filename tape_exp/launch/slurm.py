"""The runs of a sweep as jobs of SLURM: their list in jobs.tsv, the queue, and submission."""

import os
import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tape_exp.machine.files import write_atomically
from tape_exp.settings.errors import ConfigError


@dataclass
class SweepRun:
    """One run of a sweep.

    Args:
        words: its overrides; ``tape-exp train <words>`` is the run.
        folder: its run directory; None if that depends on another run which is not finished.
        cfg: its config, where it was composed.
        recorded: it has a record, or every run that starts from it has one.
        level: 0 if it starts from no run of the sweep, else one more than the level of that run.
        steps: its optimizer steps; None if it does not train.
    """

    words: list[str]
    folder: Path | None
    cfg: Any = field(default=None, repr=False)
    recorded: bool = False
    level: int = 0
    steps: int | None = None

    def __post_init__(self) -> None:
        if self.cfg is not None and "optim" in self.cfg.task:
            self.steps = self.cfg.task.optim.max_steps

    @property
    def line(self) -> str:
        """The words as the shell reads them."""
        return shlex.join(self.words)

    @property
    def done(self) -> bool:
        """Whether it need not run."""
        return self.recorded or (self.folder is not None and (self.folder / "DONE").exists())


def write_runs(jobs: Sequence[SweepRun], sweep: Path) -> None:
    """Write ``<runs>/.sweeps/<name>/jobs.tsv``: words, folder below ``<runs>``, steps, recorded."""
    lines = []
    for job in jobs:
        folder = os.path.relpath(job.folder, sweep.parents[1]) if job.folder else ""
        lines.append(f"{job.line}\t{folder}\t{job.steps or ''}\t{'recorded' * job.recorded}\n")
    write_atomically(sweep / "jobs.tsv", "".join(lines))


def read_runs(sweep: Path) -> list[SweepRun]:
    """The runs of a submitted sweep, in the order of its array."""
    jobs = []
    for line in (sweep / "jobs.tsv").read_text(encoding="utf-8").splitlines():
        words, folder, steps, recorded = line.split("\t")
        path = sweep.parents[1] / folder if folder else None
        job = SweepRun(shlex.split(words), path, recorded=bool(recorded))
        job.steps = int(steps) if steps else None
        jobs.append(job)
    return jobs


def queued(sweep: str) -> dict[int, tuple[str, str]]:
    """The user's tasks of a sweep that are in the queue: SLURM's word for the state of each, and
    the id of its array, ``{3: ("PENDING", "41")}``.

    Raises:
        ConfigError: there is no squeue, or it does not answer: the queue may hold anything.
    """
    command = ["squeue", "--me", "--noheader", "--array", f"--name=tape_exp-{sweep}"]
    try:
        rows = map(str.split, _run(*command, "--format=%K %T %F").splitlines())
    except FileNotFoundError:
        raise ConfigError("this machine has no squeue.") from None
    return {int(row[0]): (row[1], row[2]) for row in rows if len(row) == 3}


def sbatch(arguments: Sequence[str]) -> str:
    """Submit a job and return its id."""
    return _run("sbatch", "--parsable", *arguments).strip().splitlines()[-1].split(";")[0]


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace")
    if done.returncode:
        reason = " ".join(done.stderr.split()).rstrip(".") or "it gives no reason"
        raise ConfigError(f"{command[0]} failed: {reason}.")
    return done.stdout
