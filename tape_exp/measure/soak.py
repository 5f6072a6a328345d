"""``python -m tape_exp.measure.soak --kills 50``: break small runs in every way known, and look
whether they end as undisturbed ones.

Runs at tiny sizes are killed by SIGKILL at random moments of training, of writing a checkpoint and
of the evaluation, and meet the other faults of ``OTHERS``; the same command is given until they are
DONE. A run has survived when metrics, curve and last checkpoint equal those of an undisturbed run
bit for bit. Leaves ``results/reliability.json`` and ``.md``.
"""

import argparse
import json
import os
import random
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tape_exp.machine.files import write_atomically
from tape_exp.machine.preemption import REQUEUE
from tape_exp.measure.reliability import MOMENTS, OTHERS, compare, page
from tape_exp.runs.directory import RunDirectory
from tape_exp.runs.metrics import read_metrics
from tape_exp.runs.record import environment_info
from tape_exp.settings.commands import command
from tape_exp.settings.compose import compose_config
from tape_exp.settings.files import read_json
from tape_exp.settings.folders import ROOT, require_clone

PER_RUN = 10  # kills of one run
PATIENCE = 900.0  # seconds for one process

SMALL = [
    "task.arch.layers=2",
    "task.arch.width=64",
    "task.arch.heads=2",
    "task.arch.ffn=96",
    "trainer=cpu",
    "logger=none",
]
SMALL += [
    "trainer.log_every=1",
    "trainer.checkpoint_every=5",
    "trainer.validate_every=10",
    "trainer.progress=none",
]
ADDITION = [
    "task=arithmetic",
    "task.optim.batch=32",
    "task.optim.max_steps=120",
    "task.train_digits=3",
    "task.test_digits=10",
]
SCROLLS = [
    "task=scrolls",
    "task.dataset=qasper",
    "task.tokenizer.kind=byte",
    "task.max_length=512",
    "task.new_tokens=12",
]
SCROLLS += [
    "task.optim.batch=4",
    "task.validation_rows=4",
    "task.optim.max_steps=120",
    "task.rows_per_batch=4",
]
CASES = [
    [*ADDITION, "model=tape"],
    [*SCROLLS, "model=rope"],
    [*ADDITION, "model=randpe"],
    [*ADDITION, "model=alibi"],
    [*ADDITION, "model=tape", "trainer.workers=1", "trainer.micro_batch=16"],
]


@dataclass
class Subject:
    """A run that is disturbed: its words, its directory, and what has happened to it."""

    words: list[str]
    directory: RunDirectory
    last_step: int
    evaluation_seconds: float
    faults: list[dict[str, Any]] = field(default_factory=list)

    def start(self, limit: Callable[[], None] | None = None) -> subprocess.Popen:
        """The command, as a process."""
        command = [sys.executable, "train.py", *self.words]
        quiet = subprocess.DEVNULL
        return subprocess.Popen(
            command, cwd=ROOT, stdout=quiet, stderr=quiet, preexec_fn=limit, start_new_session=True
        )

    def step(self) -> int:
        """The last step that has been reported."""
        path = self.directory.path / "metrics.jsonl"
        rows = read_metrics(path) if path.exists() else []
        return max((row["step"] for row in rows), default=0)

    def log(self) -> str:
        """log.txt so far."""
        path = self.directory.path / "log.txt"
        return path.read_text() if path.exists() else ""

    def newest(self) -> Path | None:
        """The newest checkpoint."""
        return max(self.directory.checkpoints.glob("step*.ckpt"), default=None)


@command
def main(arguments: list[str] | None = None) -> int:
    """Run the soak, or draw the page from its record; status 1 where a fault was not survived."""
    parser = argparse.ArgumentParser(
        prog="python -m tape_exp.measure.soak",
        description="Kill small runs at random moments, disturb them by signals, a full disk, "
        "damaged checkpoints and second processes, and compare them bit for bit with undisturbed "
        "ones.",
    )
    parser.add_argument(
        "--kills", type=int, default=50, help="number of kills (default: %(default)s)"
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        help="seed of the moments of the kills (default: %(default)s)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=ROOT / "results",
        help="folder of reliability.json and reliability.md (default: results)",
    )
    parser.add_argument("--render", action="store_true", help="only draw the page from the record")
    given = parser.parse_args(arguments)
    require_clone("make soak")
    given.out.mkdir(parents=True, exist_ok=True)
    path = given.out / "reliability.json"
    if not given.render:
        with tempfile.TemporaryDirectory() as folder:
            record = soak(Path(folder), given.kills, given.seed)
        write_atomically(path, json.dumps(record, indent=1) + "\n")
    elif not path.exists():
        parser.error(f"{path} is missing; without --render the soak makes it.")
    record = read_json(path)
    text, survived = page(record), all(run["identical"] for run in record["runs"])
    write_atomically(given.out / "reliability.md", text)
    print(text)
    return int(not survived)


def soak(folder: Path, kills: int, seed: int) -> dict[str, Any]:
    """Disturb as many runs as the kills need, share the other faults among them, and compare."""
    record: dict[str, Any] = {
        **environment_info(),
        "seed": seed,
        "checkpoint_share": checkpoint_share(folder) if kills >= PER_RUN else None,
        "runs": [],
    }
    moments = random.Random(seed)
    fresh: list[float] = []
    tried = number = 0
    while tried < kills:
        words = [*CASES[number % len(CASES)], *SMALL, f"seed={number}", f"cache={folder}/cache"]
        whole = undisturbed(words, folder / "whole", fresh)
        count = min(PER_RUN, kills - tried)
        kinds = [moment for moment in MOMENTS for _ in range(count // 3)]
        kinds += ["training"] * (count % 3)
        others = [OTHERS[(2 * number + k) % len(OTHERS)] for k in range(2) if kills >= PER_RUN]
        subject = Subject(
            [*words, f"runs={folder}/broken"],
            directory_of(words, folder / "broken"),
            *extent(whole),
        )
        disturb(subject, [*kinds, *others], moments)
        differences = compare(whole, subject.directory)
        told = ("task=", "model=", "seed=", "trainer.workers")
        name = " ".join(word for word in words if word.startswith(told))
        record["runs"].append(
            {
                "run": name,
                "identical": not differences,
                "different": differences,
                "faults": subject.faults,
            }
        )
        tried += sum(fault["kind"] in MOMENTS for fault in subject.faults)
        number += 1
        print(
            f"{name}: {len(subject.faults)} faults, {', '.join(differences) or 'identical'}",
            flush=True,
        )
    record["first_step_seconds_of_a_fresh_run"] = extremes(fresh)
    resumed = [
        fault["first_step_seconds"]
        for run in record["runs"]
        for fault in run["faults"]
        if fault["resumed_from"]
    ]
    record["first_step_seconds_of_a_resumed_run"] = extremes(
        [seconds for seconds in resumed if seconds is not None]
    )
    return record


def directory_of(words: list[str], runs: Path) -> RunDirectory:
    """The directory of a config below ``runs``."""
    return RunDirectory(compose_config([*words, f"runs={runs}"]))


def undisturbed(words: list[str], runs: Path, fresh: list[float]) -> RunDirectory:
    """Run it once, to the end; adds the seconds to its first step to ``fresh``."""
    subject = Subject([*words, f"runs={runs}"], directory_of(words, runs), 0, 0.0)
    began, process = time.monotonic(), subject.start()
    await_(process, lambda: subject.step() > 0)
    fresh.append(time.monotonic() - began)
    await_(process, lambda: False)
    if process.returncode != 0:
        raise RuntimeError(
            f"the undisturbed run failed: {(subject.directory.path / 'FAILED').read_text()}"
        )
    return subject.directory


def extent(whole: RunDirectory) -> tuple[int, float]:
    """The last step of a finished run, and the seconds of its evaluation."""
    record = whole.record()
    return record["steps"], record["seconds"]["evaluation"]


def disturb(subject: Subject, kinds: list[str], moments: random.Random) -> None:
    """One fault a process in a random order, those of the evaluation last; then let the run end."""
    early = [kind for kind in kinds if kind != "evaluation"]
    moments.shuffle(early)
    for kind in (*early, *(kind for kind in kinds if kind == "evaluation")):
        if not subject.directory.done:
            fault = disturb_once(subject, kind, moments)
            if fault["status"] != 0:  # else the run has ended before it could be disturbed
                subject.faults.append(fault)
    for _ in range(3):
        if not subject.directory.done:
            subject.start().wait(PATIENCE)


def disturb_once(subject: Subject, kind: str, moments: random.Random) -> dict[str, Any]:
    """Start the command, wait for the moment and break it; returns what was seen."""
    said, newest = len(subject.log()), subject.newest()
    resumed_from = int(newest.stem.removeprefix("step")) if newest else 0
    fault: dict[str, Any] = {"kind": kind, "resumed_from": resumed_from, "first_step_seconds": None}
    # The line of log.txt after which the curve is this process's own.
    opened = "Resuming from step" if newest else "parameters"
    limit = (
        (lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000)))
        if kind == "full disk"
        else None
    )
    began, process = time.monotonic(), subject.start(limit)
    if kind == "evaluation":
        trained = finished_training(subject)
        await_(
            process,
            lambda: opened in subject.log()[said:] if trained else finished_training(subject),
        )
        time.sleep(moments.uniform(0, 0.7 * subject.evaluation_seconds))
    elif kind != "full disk":
        await_(process, lambda: opened in subject.log()[said:] and subject.step() > resumed_from)
        fault["first_step_seconds"] = round(time.monotonic() - began, 2)
        wanted = subject.step() + moments.randint(0, 8)
        await_(process, lambda: subject.step() >= wanted or finished_training(subject))
        if kind == "checkpoint":
            await_(
                process,
                lambda: (
                    any(subject.directory.checkpoints.glob(".step*")) or finished_training(subject)
                ),
            )
            time.sleep(moments.uniform(0, 0.01))
    expected = inject(subject, process, kind)
    return fault | {
        "step": subject.step(),
        "status": process.returncode,
        "as_expected": process.returncode == expected,
    }


def finished_training(subject: Subject) -> bool:
    """Whether the last step's checkpoint is there."""
    return (subject.directory.checkpoints / f"step{subject.last_step:08d}.ckpt").exists()


def await_(process: subprocess.Popen, moment: Callable[[], bool]) -> None:
    """Poll until the moment comes or the process ends."""
    deadline = time.monotonic() + PATIENCE
    while process.poll() is None and not moment():
        if time.monotonic() > deadline:
            kill(process)
            raise TimeoutError(
                "the run does not come to the moment at which it should be disturbed"
            )
        time.sleep(0.001)


def kill(process: subprocess.Popen) -> None:
    """SIGKILL to the process and those that prepare its data."""
    with suppress(ProcessLookupError):  # it has ended just now
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(PATIENCE)


def inject(subject: Subject, process: subprocess.Popen, kind: str) -> int:
    """Inject the fault; returns the status with which the process should end."""
    if process.poll() is not None and kind != "full disk":
        return 0  # it was through before the moment came
    if kind == "full disk":
        process.wait(PATIENCE)
        return 1
    if kind in ("SIGUSR1", "SIGTERM"):
        process.send_signal(signal.Signals[kind])
        process.wait(PATIENCE)
        return REQUEUE
    if kind == "second process":
        # Stopped, or it would end before the other gives up waiting for it.
        process.send_signal(signal.SIGSTOP)
        refused = subject.start().wait(PATIENCE) == 2
        kill(process)
        return -signal.SIGKILL if refused else 2
    kill(process)
    damaged = subject.newest() if kind in ("truncated checkpoint", "flipped bit") else None
    if damaged is not None:
        content = bytearray(damaged.read_bytes())
        content[len(content) // 2] ^= 1
        damaged.write_bytes(
            content[: len(content) // 2] if kind == "truncated checkpoint" else content
        )
    return -signal.SIGKILL


def checkpoint_share(folder: Path, steps: int = 500) -> float:
    """Percent of training at scale smoke, at its own interval, spent on checkpoint writes."""
    words = ["task=arithmetic", "model=tape", "trainer=cpu", "logger=none", "trainer.progress=none"]
    words += [f"task.optim.max_steps={steps}", "task.samples_per_cell=2"]
    seconds = undisturbed(words, folder / "share", []).record()["seconds"]
    return round(100 * seconds["checkpoints"] / seconds["training"], 3)


def extremes(values: list[float]) -> dict[str, float]:
    """Median, least and most."""
    return {
        "median": round(statistics.median(values), 2),
        "least": round(min(values), 2),
        "most": round(max(values), 2),
    }


if __name__ == "__main__":
    sys.exit(main())
