"""Every command that writes, broken off at any moment, without room, and two at once."""

import os
import random
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

from tests.campaign.files import Attempt, corpus, text_words
from tests.campaign.server import Command, Commands, Outcome
from tests.campaign.world import ADDITION, kept, lighten, take_away

STEPS = "task.optim.max_steps=40"
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
TIMED = {"records", "checkpoints"}  # what is below them holds seconds
KEPT = (".md", ".tex", ".json", ".safetensors", ".npz")  # files that a command leaves alike


def writers(world: Path) -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
    """Name -> the command, and the places that it writes."""
    text = corpus(world / "corpus")
    run = next((world / "kept").rglob("config.yaml")).parent
    art = ("tape_exp.paper", "run", "fig_addition", "seeds=7", "logger=none", "runs=art")
    return {
        "train": (("run", *ADDITION, STEPS, "runs=a"), ("a",)),
        "train on text": (("run", *text_words(text, "runs=t", "cache=t/cache")), ("t",)),
        "sweep in one process": (
            ("train.py", "-m", *ADDITION, STEPS, "seed=0,1", "runs=m"),
            ("m",),
        ),
        "export": (("tape_exp.export", str(run), "model"), ("model",)),
        "render": (("tape_exp.paper", "render"), ("results/tables", "results/figures")),
        "report": (("tape_exp.report", "--out", "page/index.html"), ("page",)),
        "submit": (("launch.sweep", *ADDITION, "seed=0,1,2", "runs=s"), ("s",)),
        "run an artifact": ((*art, "--cores", "2"), ("art", "results/records")),
    }


def snapshot(world: Path, places: tuple[str, ...]) -> dict[str, bytes]:
    """What a command has left and what does not depend on the hour."""
    found = {}
    for place in places:
        for path in sorted((world / place).rglob("*")):
            timed = path.name in ("manifest.json", "record.json") or TIMED & {*path.parts}
            if path.is_file() and path.suffix in KEPT and not timed:
                found[str(path.relative_to(world))] = path.read_bytes()
    return found


def fake_slurm(world: Path) -> None:
    """Commands of SLURM's that accept everything."""
    folder = world / "bin"
    folder.mkdir(exist_ok=True)
    for name, said in (("sbatch", "41"), ("squeue", ""), ("srun", ""), ("scontrol", "")):
        (folder / name).write_text(f"#!/bin/sh\necho {name} >> {world}/calls\necho {said}\n")
        (folder / name).chmod(0o755)


def attempts(do: Commands, world: Path, seed: int) -> Iterator[Attempt]:
    """Break each command off, give it again, and compare with what it leaves undisturbed."""
    generator = random.Random(seed)
    lighten(world)
    fake_slurm(world)
    path = {"PATH": f"{world}/bin:{os.environ['PATH']}"}
    outcome = do("run", *ADDITION, "runs=kept")
    assert outcome.status == 0, outcome.err
    whole = {}
    for name, (words, places) in writers(world).items():
        clear(world, places)
        with kept(world / "results"):
            outcome = do(*words, environment=path, limit=300)
            assert outcome.status == 0, (name, outcome.err)
            whole[name] = outcome.seconds, snapshot(world, places)
    while True:
        name = generator.choice(list(whole))
        words, places = writers(world)[name]
        seconds, right = whole[name]
        clear(world, places)
        with kept(world / "results"):
            for tried, outcome in befall(do, words, places, seconds, world, generator, path):
                yield f"{tried}: {name}", outcome, ""
            again = do(*words, environment=path, limit=300)
            left = snapshot(world, places)
        changed = sorted(file for file in {*left, *right} if left.get(file) != right.get(file))
        differs = f"other files than undisturbed: {', '.join(changed[:3])}" if changed else ""
        yield f"again, after that: {name}", again, differs


def clear(world: Path, places: tuple[str, ...]) -> None:
    """Take away what an earlier command left; committed results stay."""
    for place in places:
        if not place.startswith("results"):
            take_away(world / place)


def befall(
    do: Commands,
    words: tuple[str, ...],
    places: tuple[str, ...],
    seconds: float,
    world: Path,
    generator: random.Random,
    environment: dict[str, str | None],
) -> Iterator[tuple[str, Outcome]]:
    """One or several misfortunes of a command."""
    kind = generator.choice(["signal", "signals", "full", "read-only", "two", "stopped", "removed"])
    moment = generator.uniform(0, seconds)
    common = {"environment": environment, "limit": 300}
    if kind == "signal":
        which = generator.choice(SIGNALS)
        yield which.name, do(*words, kill=((moment, which),), **common)
    elif kind == "signals":
        twice = ((moment, signal.SIGINT), (moment + 0.2, signal.SIGINT))
        yield "SIGINT twice", do(*words, kill=twice, **common)
    elif kind == "full":
        yield "disk full", do(*words, largest=generator.choice([0, 500, 20_000]), **common)
    elif kind == "stopped":
        on = ((moment, signal.SIGSTOP), (moment + 2, signal.SIGCONT))
        yield "SIGSTOP and SIGCONT", do(*words, kill=on, **common)
    elif kind == "two":
        both = [Command(words, **common), Command(words, **common)]
        for outcome in do.together(both):
            yield "two at once", outcome
    elif kind == "read-only":
        place = world / places[0]
        place.mkdir(parents=True, exist_ok=True)
        place.chmod(0o555)
        outcome = do(*words, **common)
        place.chmod(0o755)
        yield "read-only folder", outcome
    else:
        do(*words, kill=((moment, signal.SIGKILL),), **common)
        for folder in (world / places[0]).rglob("checkpoints"):
            shutil.rmtree(folder)
        yield "checkpoints removed", do(*words, **common)
