"""What a bench runs and writes: a search of learning rates, then further seeds."""

import time
from collections.abc import Sequence
from pathlib import Path

from tape_exp.bench.board import Board
from tape_exp.bench.tasks import SETS, chosen
from tape_exp.machine.files import write_atomically
from tape_exp.paper import runner, words
from tape_exp.paper.artifact import Artifact
from tape_exp.paper.records import Record, merged, read_records
from tape_exp.settings import folders
from tape_exp.settings.errors import ConfigError, one_of
from tape_exp.settings.plugins import names_in

OUT = folders.RESULTS / "bench"
UNMEASURED = ("logger", "runs=", "rerun=", "cache=")  # words that change nothing that is measured


def models_of(given: Sequence[str]) -> list[str]:
    """The models of a command's words, ``rope tape`` or ``model=rope,tape``."""
    models: list[str] = []
    for word in given:
        key, equals, value = word.partition("=")
        if not equals:
            models.append(word)
        elif key == "model":
            models += value.split(",")
    return models


class Bench:
    """What a command asks for: ``[model …] [tasks=] [scale=] [seeds=] [rates=] [key=value …]``."""

    def __init__(self, given: Sequence[str], out: Path) -> None:
        self.models = list(dict.fromkeys(models_of(given)))
        keys = [word for word in given if "=" in word and not word.startswith("model=")]
        self.scale, self.seeds, rest = words.settings_of(keys)
        for model in self.models:
            one_of("model", model, names_in("model"))
        options, self.overrides = words.split_words(rest, ("tasks", "rates"))
        fixed = ("task=", "model=", "peft=", "checkpoint=", "task.optim.lr=", "debug")
        if wrong := [word for word in self.overrides if word.lstrip("+~").startswith(fixed)]:
            raise ConfigError(
                f"{wrong[0]} is no word of a bench: models are given by name or as "
                "model=rope,tape, tasks as tasks=reverse,sort and learning rates as "
                "rates=0.001,0.003."
            )
        changes = [word for word in self.overrides if not word.startswith(UNMEASURED)]
        if changes and out.resolve() == OUT.resolve():
            raise ConfigError(
                f"{OUT} is for benches whose recipe is unchanged, and {' '.join(changes)} "
                "changes it; name another folder with --out=<folder>."
            )
        tasks, rates = options.get("tasks", "quick"), options.get("rates", "0.001,0.003,0.01")
        self.entries, self.out = chosen(tasks), out
        try:
            self.rates = sorted({float(rate) for rate in rates.split(",")})
        except ValueError as error:
            raise ConfigError(f"rates={rates} must be numbers, as in rates=0.001,0.003.") from error
        names = [entry.name for entry in self.entries]
        self.name = f"{tasks if tasks in SETS else '-'.join(names)}-{self.scale}"

    def records(self) -> list[Record]:
        """Those of the bench and those that are committed: a run is not done twice."""
        return merged(read_records(self.out / "records"), read_records())

    def board(self, shown: bool = False) -> Board:
        """The board of the models of the command, or of all that are recorded too."""
        records = self.records()
        models = [*self.models]
        if shown:
            of_bench = {r["config"]["model"]["name"] for r in read_records(self.out / "records")}
            models += sorted(of_bench & {*names_in("model")} - {*models})
        rates = {f"{rate:g}": [f"task.optim.lr={rate:g}"] for rate in self.rates}
        columns = {
            entry.name: {"where": list(entry.words), "metric": entry.metric, "digits": 1}
            for entry in self.entries
        }
        search = Artifact(
            name="bench",
            title="Encodings on the battery",
            rows={"model": models, "rate": rates},
            columns=columns,
            overrides=self.overrides,
            scales={self.scale: None},
        )
        return Board(search, self.entries, self.seeds[0], records)

    def run(self, cores: int | None, minutes: float | None) -> runner.Outcome:
        """Search the rates at the first seed, choose, then run the other seeds at those chosen."""
        began = time.monotonic()
        outcome = self.run_seeds(self.seeds[:1], False, cores, minutes)
        left = minutes and minutes - (time.monotonic() - began) / 60
        if outcome.left or len(self.seeds) == 1 or (left is not None and left <= 0):
            return outcome
        further = self.run_seeds(self.seeds[1:], True, cores, left)
        return runner.Outcome(outcome.failed | further.failed, further.left, further.anew)

    def run_seeds(
        self, seeds: Sequence[int], at_choice: bool, cores: int | None, minutes: float | None
    ) -> runner.Outcome:
        """Run every rate at some seeds, or only those that are chosen."""
        board = self.board()
        jobs = runner.jobs_of([board.artifact], self.scale, seeds, records=self.records())
        if at_choice:
            rates = [{*board.words(row, column)} for row, column in board.at_choice()]
            jobs = {k: job for k, job in jobs.items() if any(r <= {*job.words} for r in rates)}
        return runner.work(runner.runnable(jobs), cores, minutes, self.out / "records")

    def write(self, board: Board) -> list[Path]:
        """Write the tables and the pictures; returns the paths."""
        from tape_exp.bench import figures

        tables = {
            "": board.scores_table(),
            "-differences": board.leads_table(),
            "-rates": board.rates_table(),
        }
        paths = [self.out / f"{self.name}{suffix}.csv" for suffix in tables]
        for path, table in zip(paths, tables.values(), strict=True):
            write_atomically(path, table.csv())
        return [*paths, *figures.draw(board, self.out / self.name)]
