"""A run that is to be made: its overrides and config, its folder, and what it needs first.

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
    """A run: ``tape-exp train <overrides>``.

    Args:
        overrides: words of the command line, the seed among them.
        config: what they compose to; None of a spec that a sweep's list holds.
        title: what the run is for.
        needs: the run that it begins from, if that is of the same set.
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
    needs: "RunSpec | None" = None
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
        """How many runs must end before this one begins, one after the other."""
        return 0 if self.needs is None else self.needs.level + 1

    @property
    def anew(self) -> bool:
        """Whether it is to be made, though it may be done: ``rerun=true``."""
        return bool(self.config is not None and self.config.rerun)

    @property
    def done(self) -> bool:
        """Whether it need not run."""
        if self.recorded or self.folder is None:
            return self.recorded
        return all((self.folder / name).exists() for name in ("DONE", "record.json"))


def write_specs(specs: Sequence[RunSpec], sweep: Path) -> None:
    """Write ``<runs>/.sweeps/<name>/jobs.tsv``: words, folder below ``<runs>``, steps, recorded."""
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
        words, folder, steps, recorded = line.split("\t")
        spec = RunSpec(shlex.split(words), recorded=bool(recorded))
        spec.folder = sweep.parents[1] / folder if folder else None
        spec.steps = int(steps) if steps else None
        specs.append(spec)
    return specs
