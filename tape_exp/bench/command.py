"""``python -m tape_exp.bench``: run what a bench lacks, then write its tables and pictures."""

import argparse
import json
import logging
import shlex
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tape_exp.bench import figures
from tape_exp.bench.board import Board
from tape_exp.bench.plan import Bench, requested, shown
from tape_exp.bench.tasks import ENTRIES, SETS
from tape_exp.machine.files import write_atomically
from tape_exp.machine.processes import first_process
from tape_exp.paper import tables
from tape_exp.paper.compare import deciding
from tape_exp.paper.records import Record, each_once, read_records, warn
from tape_exp.paper.runner import Outcome, missing, status, work
from tape_exp.settings import folders, plugins
from tape_exp.settings.commands import command, log_plainly
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.schema import validate

log = logging.getLogger("tape_exp")
OUT = folders.ROOT / "results" / "bench"


@command
def main(arguments: Sequence[str] | None = None) -> int:
    """Mistakes are one sentence and status 2, failed runs status 1, time that ran out is 85."""
    given = _arguments(arguments)
    log_plainly()
    if given.list:
        for name, entry in ENTRIES.items():
            print(f"{name:22} {entry.summary}")
        for name, members in SETS.items():
            print(f"{name:22} {', '.join(members)}")
        return 0
    bench, scale = requested(given.words)
    if (words := deciding(bench.overrides)) and given.out.resolve() == OUT.resolve():
        raise ConfigError(
            f"{OUT} is for benches whose recipe is unchanged, and {' '.join(words)} changes it; "
            "name another folder with --out=<folder>."
        )
    place = Place(given.out, f"{bench.group}-{scale}")
    place.refuse_another(bench.settings(scale))
    outcome = Outcome()
    if bench.models and given.minutes != 0:
        given.out.mkdir(parents=True, exist_ok=True)
        outcome = run(bench, scale, place, given.cores, given.minutes)
    if not first_process():
        return status(outcome)
    board = recorded(bench, scale, place)
    lacking = [model for model in bench.models if model not in board.scores]
    if lacking and given.minutes == 0:
        raise ConfigError(nothing(bench, lacking))
    if board.scores:
        for sentence in outdated(board, place):
            warn(sentence)
        for path in write(board, place):
            print(path)
        print(f"\n{tables.markdown(board.table())}")
    elif not outcome.failed and not outcome.left:
        raise ConfigError(nothing(bench, there=place.others()))
    return status(outcome)


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="tape-exp bench",
        description="Rank encodings on the battery: runs what has no record yet, then writes the "
        "tables and pictures (default: tasks=quick scale=smoke seeds=0 rates=0.001,0.003,0.01). "
        "Without models it shows what is recorded.",
        epilog="Example: python -m tape_exp.bench rope tape tasks=quick seeds=0,1,2 --cores 2",
    )
    parser.add_argument(
        "words", nargs="*", metavar="model | tasks= | scale= | seeds= | rates= | key=value"
    )
    parser.add_argument("--list", action="store_true", help="the tasks and what they ask")
    parser.add_argument(
        "--cores",
        type=int,
        help="number of runs at a time, one thread each (default: one run with all threads)",
    )
    parser.add_argument(
        "--minutes",
        type=_minutes,
        help="after this many minutes save and exit with status 85; the same command goes on; 0: "
        "run nothing",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=OUT,
        help="folder of records, tables and pictures (default: results/bench)",
    )
    given, further = parser.parse_known_args(arguments)
    if wrong := [word for word in further if word.startswith("-")]:
        parser.error(f"unrecognized arguments: {' '.join(wrong)}")
    given.words += further
    return given


def _minutes(text: str) -> float:
    """Minutes, of which 0 are allowed."""
    try:
        if (minutes := float(text)) >= 0:
            return minutes
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"{text} must be a number of minutes, 0 or more.")


@dataclass
class Place:
    """Where a bench is written.

    Args:
        out: the folder.
        name: what its files are called by.
    """

    out: Path
    name: str

    @property
    def records(self) -> Path:
        """The folder of the runs' records."""
        return self.out / "records"

    @property
    def table(self) -> Path:
        """The first table."""
        return self.out / f"{self.name}.md"

    def known(self) -> list[Record]:
        """Its records and those that are committed: a run is not done twice."""
        return each_once([*read_records(self.records), *read_records()])

    def others(self) -> str:
        """The benches of the folder with the words that show them, in a sentence."""
        found = []
        for path in sorted(self.out.glob("*-search.json")):
            with suppress(OSError, ValueError, KeyError, TypeError):
                told_of = json.loads(path.read_text())
                rates = ",".join(f"{rate:g}" for rate in told_of["rates"])
                seed, tasks = told_of["search_seed"], ",".join(told_of["tasks"])
                scale = path.name.removesuffix("-search.json").rpartition("-")[2]
                words = [f"tasks={tasks}", f"scale={scale}", f"rates={rates}", f"seeds={seed}"]
                found.append(shlex.join([*words, *told_of.get("overrides", [])]))
        return f" {self.out} has {'; '.join(found)}." if found else ""

    def refuse_another(self, settings: str) -> None:
        """Raise where its table is of other settings, and would be lost."""
        if self.table.exists() and settings not in self.table.read_text(errors="replace"):
            raise ConfigError(
                f"{self.table} holds a bench of other settings than this one: {settings} "
                "--out=<another folder> keeps both, or remove the file."
            )


def run(
    bench: Bench, scale: str, place: Place, cores: int | None, minutes: float | None
) -> Outcome:
    """Search the rates at the first seed, choose, then run the other seeds at the chosen ones."""
    began, (first, *others) = time.monotonic(), bench.seeds
    known = place.known()
    leave_out(bench, scale)
    jobs = missing([bench], scale, [first], records=known)
    if jobs:
        log.info("Missing runs of the search of learning rates: %d.", len(jobs))
    outcome = work(jobs, cores, minutes, place.records)
    pairs = len(bench.entries) * len(bench.models) - len(bench.unfit)
    if outcome.left:
        outcome.left += pairs * len(others)
        return outcome
    bench.choose(bench.collect(scale, place.known()))
    jobs = missing([bench], scale, others, records=place.known())
    spent = (time.monotonic() - began) / 60
    if minutes is not None and jobs and spent >= minutes:
        outcome.left = len(jobs)
        return outcome
    further = work(jobs, cores, minutes and minutes - spent, place.records)
    return Outcome(outcome.failed + further.failed, further.left)


def leave_out(bench: Bench, scale: str) -> None:
    """Note which model cannot have which task, and say why, each reason once.

    Raises:
        ConfigError: none can have any.
    """
    from tape_exp.training.from_config import (
        check_parts,  # it imports torch, which a table needs not
    )

    pairs = list(bench.each(scale))
    reasons: dict[str, list[str]] = {}
    for (model, task), cfg in pairs:
        try:
            validate(cfg)
            check_parts(cfg)
        except ConfigError as error:
            bench.unfit[model, task] = str(error)
            reasons.setdefault(str(error), []).append(f"{model} on {task}")
    if len(bench.unfit) == len(pairs):
        raise ConfigError(next(iter(reasons)))
    for reason, which in reasons.items():
        print(f"left out: {', '.join(which)}: {reason}", file=sys.stderr)


def recorded(bench: Bench, scale: str, place: Place) -> Board:
    """The board of all that is recorded, also of models of earlier commands."""
    every = shown(bench, read_records(place.records))
    records = every.sound(scale, every.collect(scale, place.known()))
    every.choose(records)
    return Board(every, scale, records)


def outdated(board: Board, place: Place) -> list[str]:
    """What packages' code has changed since runs that the table shows, in a sentence each."""
    said = {
        f"{reason} Its score is the old code's: remove the records of "
        f"{run['config']['model']['name']} in {place.records}, and its runs, to run it anew."
        for entry in board.bench.entries
        for run in board.runs_of(entry)
        if (reason := plugins.changed(run.get("plugins"), run["config"]))
    }
    return sorted(said)


def write(board: Board, place: Place) -> list[Path]:
    """Write the tables, the pictures and what the search took; returns the paths."""
    stem, written = place.out / place.name, []
    written += tables.write(stem, board.table())
    written += tables.write(stem.with_name(f"{place.name}-differences"), board.leads())
    written += tables.write(stem.with_name(f"{place.name}-rates"), board.search())
    effort = stem.with_name(f"{place.name}-search.json")
    write_atomically(effort, json.dumps(board.bench.effort(board.records), indent=1) + "\n")
    written += [effort, *figures.heatmap(board, stem)]
    axis = stem.with_name(f"{place.name}-ranks")
    drawn = figures.ranking(board, axis)
    if not drawn:
        axis.with_suffix(".svg").unlink(missing_ok=True)  # of an earlier call, with enough to test
    return [*written, *drawn]


def nothing(bench: Bench, lacking: Sequence[str] = (), there: str = "") -> str:
    """Why there is no table, or not of the ``lacking`` models, and what would make one.

    Args:
        there: what is there instead.
    """
    tasks = ",".join(entry.name for entry in bench.entries)
    if lacking:
        return (
            f"Of {', '.join(lacking)} no search of learning rates is recorded for tasks={tasks}, "
            "and --minutes 0 runs none; leave --minutes out, or give more."
        )
    return (
        f"No search of learning rates is recorded for tasks={tasks}; name models to run, as in "
        f"tape-exp bench rope tape, or the scale, rates and keys of an earlier bench.{there}"
    )
