"""How the commands bear many runs, records and lines: seconds, and where they grow, the slope."""

import json
import random
from pathlib import Path
from typing import Any

from tests.campaign.files import corpus, text_words
from tests.campaign.server import Command, Commands, Outcome
from tests.campaign.world import ADDITION
from tests.campaign.writes import fake_slurm

RUNS = 500  # of a sweep
RECORDS = (1000, 5000)
LINES = 1_000_000  # of metrics.jsonl
PROCESSES = 20  # that prepare one cache


def measured(do: Commands, world: Path) -> dict[str, Any]:
    """Seconds of each, on a machine that does nothing else."""
    fake_slurm(world)
    found: dict[str, Any] = {}
    seeds = f"seed={','.join(map(str, range(RUNS // 2)))}"
    grid = ("model=rope,nope", seeds, "runs=many")
    path: dict[str, str | None] = {"PATH": f"{world}/bin:/usr/bin:/bin"}
    planned = do("launch.sweep", *grid, environment=path, limit=600)
    shown = do("launch.status", *grid, environment=path, limit=600)
    found["sweep of 500 runs planned"] = seconds(planned)
    found["sweep of 500 runs shown"] = seconds(shown)
    found["render, as committed"] = seconds(do("tape_exp.paper", "render", limit=600))
    for count in RECORDS:
        multiply(world / "results" / "records", count)
        outcome = do("tape_exp.paper", "render", limit=900)
        found[f"render, {count} records"] = seconds(outcome)
    few, many = (found[f"render, {count} records"] for count in RECORDS)
    slope = 1000 * (many - few) / (RECORDS[1] - RECORDS[0])
    found["milliseconds of each further record"] = round(slope, 2)
    found |= long_run(do, world) | one_cache(do, world)
    return found


def seconds(outcome: Outcome) -> float:
    """Of a command that must have ended well."""
    if outcome.status != 0:
        raise RuntimeError(f"{' '.join(outcome.words[:3])}: {outcome.err[-800:]}")
    return outcome.seconds


def multiply(folder: Path, count: int) -> None:
    """Records of further seeds, until there are ``count``."""
    known = sorted(folder.glob("*.json"))
    generator = random.Random(0)
    for number in range(len(known), count):
        record = json.loads(generator.choice(known).read_text())
        record["config"]["seed"] = 1000 + number
        record["config_hash"] = f"{number:010x}"
        (folder / f"copy-{number}.json").write_text(json.dumps(record))


def long_run(do: Commands, world: Path) -> dict[str, Any]:
    """A run whose metrics.jsonl has a million lines: it goes on, and status shows it."""
    words = [*ADDITION, "task.optim.max_steps=6", "runs=long"]
    seconds(do("run", *words))
    (path,) = (world / "long").rglob("metrics.jsonl")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    with path.open("w") as file:
        for number in range(LINES):
            file.write(
                json.dumps({**rows[number % len(rows)], "step": 1 + number * 5 // LINES}) + "\n"
            )
    for name in ("DONE", "record.json"):
        (path.parent / name).unlink()
    shown = do("launch.status", *words, limit=600)
    again = do("run", *words, limit=600)
    return {
        "status of a run with a million lines": seconds(shown),
        "megabytes of that": shown.megabytes,
        "going on with a million lines": seconds(again),
        "megabytes of going on": again.megabytes,
    }


def one_cache(do: Commands, world: Path) -> dict[str, Any]:
    """Processes that want the same tokens at once: one makes them, all end well."""
    text = corpus(world / "corpus")
    commands = [
        Command(
            ("run", *text_words(text, f"seed={seed}", "runs=crowd", "cache=crowd/cache")), limit=900
        )
        for seed in range(PROCESSES)
    ]
    outcomes = do.together(commands)
    for outcome in outcomes:
        seconds(outcome)
    made = len(list((world / "crowd" / "cache").rglob("*.bin")))
    return {
        "20 processes with one cache": max(o.seconds for o in outcomes),
        "files of tokens": made,
    }
