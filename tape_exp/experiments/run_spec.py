"""A run of a set: its overrides and config, its folder, and the run that it begins from.

Hydra and torch are not imported here, so that ``tape-exp status`` answers at once.
"""

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tape_exp.machine.files import write_atomically


@dataclass(eq=False)
class RunSpec:
    """A run of ``tape-exp train <overrides>``.

    Args:
        overrides: those of the command line, the seed among them.
        config: what they compose to; None of a spec that a sweep's list holds.
        title: what the run is for.
        base: the run that it begins from, if that is of the same set.
        recorded: it has a record, or all that begins from it has one.
        folder: its run directory; None where nobody has looked for it, and where it depends on a
            run that is not finished.
        steps: its optimizer steps; None if it does not train.
        metrics: those of a table's columns, by the pattern that a column asks for.
        results: the folder to whose ``records/`` its record is collected; None: ``results/``.
    """

    overrides: list[str]
    config: Any = field(default=None, repr=False)
    title: str = ""
    base: "RunSpec | None" = None
    recorded: bool = False
    folder: Path | None = None
    steps: int | None = None
    metrics: dict[str, str] = field(default_factory=dict)
    results: Path | None = None

    def __post_init__(self) -> None:
        self.title = self.title or self.line
        if self.config is not None and "optim" in self.config.task:
            self.steps = self.config.task.optim.max_steps

    @property
    def line(self) -> str:
        """The overrides as the shell reads them."""
        return shlex.join(self.overrides)

    @property
    def level(self) -> int:
        """Count the runs that must end before this one begins, one after the other."""
        return 0 if self.base is None else self.base.level + 1

    @property
    def rerun(self) -> bool:
        """Say whether it is to run though it may be done: ``rerun=true``."""
        return bool(self.config is not None and self.config.rerun)

    @property
    def done(self) -> bool:
        """Say whether it has a record, here or in its folder."""
        if self.recorded:
            return True
        if self.folder is None:
            return False
        return all((self.folder / name).exists() for name in ("DONE", "record.json"))

    @property
    def to_run(self) -> bool:
        """Say whether it must run: it is not done, or is to run again."""
        return self.rerun or not self.done


def write_specs(specs: Sequence[RunSpec], sweep: Path) -> None:
    """Write ``<runs>/.sweeps/<name>/jobs.tsv``, a line for each run: overrides, folder below
    ``<runs>``, steps, and whether it is recorded.
    """
    lines = []
    for spec in specs:
        folder = os.path.relpath(spec.folder, sweep.parents[1]) if spec.folder else ""
        recorded = "recorded" if spec.recorded else ""
        lines.append(f"{spec.line}\t{folder}\t{spec.steps or ''}\t{recorded}\n")
    write_atomically(sweep / "jobs.tsv", "".join(lines))


def read_specs(sweep: Path) -> list[RunSpec]:
    """List the runs of a submitted sweep, in the order of its array."""
    specs = []
    for line in (sweep / "jobs.tsv").read_text(encoding="utf-8").splitlines():
        overrides, folder, steps, recorded = line.split("\t")
        spec = RunSpec(shlex.split(overrides), recorded=bool(recorded))
        spec.folder = sweep.parents[1] / folder if folder else None
        spec.steps = int(steps) if steps else None
        specs.append(spec)
    return specs
