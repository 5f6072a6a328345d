"""What a bench runs and writes: a search of learning rates, then further seeds."""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

from tape_exp.artifacts import runs
from tape_exp.artifacts.artifact import Artifact
from tape_exp.artifacts.specs import ColumnSpec, block_of
from tape_exp.bench.board import Board
from tape_exp.bench.tasks import SETS, chosen
from tape_exp.experiments.execute import execute
from tape_exp.experiments.grid import scale_and_seeds, take, without_places
from tape_exp.experiments.local import Outcome
from tape_exp.experiments.run_spec import RunSpec
from tape_exp.experiments.runnable import runnable
from tape_exp.machine.files import write_atomically
from tape_exp.results.record import Record
from tape_exp.results.store import merged, read_records
from tape_exp.settings import folders
from tape_exp.settings.errors import CHOICES, ConfigError, one_of
from tape_exp.settings.plugins import names_in

OUT = folders.RESULTS / "bench"
TASKS = "quick"
RATES = "0.001,0.003,0.01"  # learning rates


class Bench:
    """What a command asks for: ``[model=a,b] [scale=] [seed=0,1] [key=value …]``, of which models
    may be given by their names alone, on some tasks with some learning rates.
    """

    def __init__(
        self,
        words: Sequence[str],
        out: Path,
        tasks: str = TASKS,
        rates: str = RATES,
    ) -> None:
        self.out = out
        self.entries = chosen(tasks)
        overrides = [word for word in words if "=" in word]
        self.scale, self.seeds, others = scale_and_seeds(overrides)
        values, self.overrides = take(others, ("model",))
        by_name = [word for word in words if "=" not in word]
        self.models = list(dict.fromkeys([*by_name, *values.get("model", [])]))
        for model in self.models:
            one_of("model", model, names_in("model"), CHOICES)
        self.check_overrides()
        try:
            self.rates = sorted({float(rate) for rate in rates.split(",")})
        except ValueError as error:
            raise ConfigError(f"--rates={rates} must be numbers, as in 0.001,0.003.") from error
        if tasks not in SETS:
            tasks = "-".join(entry.name for entry in self.entries)
        self.name = f"{tasks}-{self.scale}"

    def check_overrides(self) -> None:
        """Raise :class:`ConfigError` where the bench itself decides a key, or where one that
        changes the recipe would mix with the records of the unchanged one.
        """
        fixed = ("model=", "task=", "peft=", "checkpoint=", "task.optim.lr=", "debug")
        for word in self.overrides:
            if word.lstrip("+~").startswith(fixed):
                raise ConfigError(
                    f"{word} is no word of a bench: models are given by name or as "
                    "model=rope,tape, tasks as --tasks=reverse,sort and learning rates as "
                    "--rates=0.001,0.003."
                )
        changes = without_places(self.overrides)
        if changes and self.out.resolve() == OUT.resolve():
            raise ConfigError(
                f"{OUT} is for benches whose recipe is unchanged, and {' '.join(changes)} "
                "changes it; name another folder with --out=<folder>."
            )

    def records(self) -> list[Record]:
        """Read those of the bench and those that are committed: a run is not done twice."""
        return merged(read_records(self.out / "records"), read_records())

    def board(self, shown: bool = False) -> Board:
        """Make the board of the models of the command, or of all that are recorded too."""
        models = [*self.models]
        if shown:
            recorded = {run.config["model"]["name"] for run in read_records(self.out / "records")}
            models += sorted(recorded & {*names_in("model")} - {*models})
        rates = {f"{rate:g}": [f"task.optim.lr={rate:g}"] for rate in self.rates}
        columns = {}
        for entry in self.entries:
            columns[entry.name] = ColumnSpec(where=entry.words, metric=entry.metric, digits=1)
        search = Artifact(
            name="bench",
            title="Encodings on the battery",
            rows=[block_of({"model": models, "rate": rates})],
            columns=columns,
            overrides=self.overrides,
            scales={self.scale: None},
        )
        return Board(search, self.entries, self.seeds[0], self.records())

    def run(self, options: argparse.Namespace, command: Sequence[str]) -> Outcome | None:
        """Search the rates at the first seed, choose, then run the other seeds at those chosen;
        None where runs were submitted to SLURM, after whose end the same command goes on, or were
        only shown.
        """
        began = time.monotonic()
        outcome = self.run_seeds(self.seeds[:1], False, options, command)
        if outcome is None and options.dry_run and len(self.seeds) > 1:
            print("Further seeds: at the learning rates that these runs choose.")
        if outcome is None or outcome.left or len(self.seeds) == 1:
            return outcome
        if options.minutes is not None:
            left = options.minutes - (time.monotonic() - began) / 60
            if left <= 0:
                return outcome
            options = argparse.Namespace(**vars(options) | {"minutes": left})
        further = self.run_seeds(self.seeds[1:], True, options, command)
        if further is None:
            return None
        return Outcome(outcome.failed | further.failed, further.left, further.rerun)

    def run_seeds(
        self,
        seeds: Sequence[int],
        at_choice: bool,
        options: argparse.Namespace,
        command: Sequence[str],
    ) -> Outcome | None:
        """Run every rate at some seeds, or only those that are chosen."""
        board = self.board()
        records = self.records()
        specs = runs.specs_of_artifacts(
            [board.cells.artifact], self.scale, seeds, records=records, recorded=options.slurm
        )
        if at_choice:
            cells = [{*board.cells.overrides(row, column)} for row, column in board.at_choice()]
            specs = [spec for spec in specs if is_in_one_of(cells, spec)]
        if all(spec.recorded for spec in specs):
            return Outcome()
        return execute(runnable(specs), options, command, self.out / "records")

    def write(self, board: Board) -> list[Path]:
        """Write the tables and the pictures, and return their paths."""
        from tape_exp.bench import figures, tables

        paths = []
        for suffix, table in tables.tables_of(board).items():
            path = self.out / f"{self.name}{suffix}.csv"
            write_atomically(path, table.csv())
            paths.append(path)
        return [*paths, *figures.draw(board, self.out / self.name)]


def is_in_one_of(cells: Sequence[set[str]], spec: RunSpec) -> bool:
    """Say whether a run has all overrides of one of the cells."""
    return any(overrides.issubset(spec.overrides) for overrides in cells)
