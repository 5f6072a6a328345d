"""The runs of a sweep, as its jobs.tsv lists them for SLURM's tasks and for ``tape-exp status``."""

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tape_exp.machine.files import write_atomically


@dataclass
class Job:
    """One run of a sweep.

    Args:
        words: its overrides; ``tape-exp train <words>`` is the run.
        folder: its run directory; None if that depends on another run which is not finished.
        steps: its optimizer steps; None if it does not train.
        recorded: it has a record, or every run that starts from it has one.
        level: 0 if it starts from no run of the sweep, else one more than the level of that run.
        cfg: its config, where it was composed.
    """

    words: list[str]
    folder: Path | None
    steps: int | None
    recorded: bool = False
    level: int = 0
    cfg: Any = field(default=None, repr=False)

    @property
    def line(self) -> str:
        """The words as the shell reads them."""
        return shlex.join(self.words)

    @property
    def done(self) -> bool:
        """Whether it need not run."""
        return self.recorded or (self.folder is not None and (self.folder / "DONE").exists())


def write_jobs(jobs: Sequence[Job], sweep: Path) -> None:
    """Write ``<runs>/.sweeps/<name>/jobs.tsv``: words, folder below ``<runs>``, steps, recorded."""
    lines = []
    for job in jobs:
        folder = os.path.relpath(job.folder, sweep.parents[1]) if job.folder else ""
        lines.append(f"{job.line}\t{folder}\t{job.steps or ''}\t{'recorded' * job.recorded}\n")
    write_atomically(sweep / "jobs.tsv", "".join(lines))


def read_jobs(sweep: Path) -> list[Job]:
    """The runs of a submitted sweep, in the order of its array."""
    jobs = []
    for line in (sweep / "jobs.tsv").read_text().splitlines():
        words, folder, steps, recorded = line.split("\t")
        path = sweep.parents[1] / folder if folder else None
        jobs.append(Job(shlex.split(words), path, int(steps) if steps else None, bool(recorded)))
    return jobs
