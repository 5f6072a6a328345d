"""The soak: small runs are broken at random moments, and must end as undisturbed ones do.

They are killed in training, while a checkpoint is written and in the evaluation; told to leave by
SIGUSR1 and SIGTERM; and find their newest checkpoint damaged. The same command is given until they
are DONE. Metrics, curve and last checkpoint must equal those of an undisturbed run bit for bit.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_flatten

from tape_exp.machine.preemption import REQUEUE
from tape_exp.runs.directory import RunDirectory
from tape_exp.runs.metrics import read_metrics
from tape_exp.settings.compose import compose_config
from tape_exp.settings.folders import ROOT

TIMED = ("seconds", "train/tokens_per_second", "train/mfu", "train/data_wait")
MOMENTS = ("training", "checkpoint", "evaluation")  # of a SIGKILL
OTHERS = ("SIGUSR1", "SIGTERM", "truncated checkpoint", "flipped bit")
PER_RUN = 10  # kills of one run
PATIENCE = 900.0  # seconds for one process

SMALL = (
    "task.arch.layers=2 task.arch.width=64 task.arch.heads=2 task.arch.ffn=96 trainer=cpu "
    "logger=none trainer.log_every=1 trainer.checkpoint_every=5 trainer.validate_every=10"
)
ADDITION = (
    "task=arithmetic task.optim.batch=32 task.optim.max_steps=120 task.train_digits=3 "
    "task.test_digits=10"
)
SCROLLS = (
    "task=scrolls task.dataset=qasper task.tokenizer.kind=byte task.max_length=512 "
    "task.new_tokens=12 task.optim.batch=4 task.validation_rows=4 task.optim.max_steps=120 "
    "task.rows_per_batch=4"
)
CASES = [f"{ADDITION} model=tape", f"{SCROLLS} model=rope", f"{ADDITION} model=randpe"]
CASES += [f"{ADDITION} model=alibi"]
CASES += [f"{ADDITION} model=tape trainer.workers=1 trainer.micro_batch=16"]


@dataclass
class Subject:
    """A run: its words, its directory, and what has happened to it."""

    words: list[str]
    directory: RunDirectory
    faults: list[dict[str, Any]] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)  # from the undisturbed run

    def start(self) -> subprocess.Popen:
        """The command, as a process that leads a group."""
        command, quiet = [sys.executable, "train.py", *self.words], subprocess.DEVNULL
        return subprocess.Popen(command, cwd=ROOT, stdout=quiet, stderr=quiet, process_group=0)

    def step(self) -> int:
        """The last step that has been reported."""
        path = self.directory.metrics
        return max((row["step"] for row in read_metrics(path)), default=0) if path.exists() else 0

    def log(self) -> str:
        """log.txt so far."""
        path = self.directory.path / "log.txt"
        return path.read_text() if path.exists() else ""

    def newest(self) -> Path | None:
        """The newest checkpoint."""
        return max(self.directory.checkpoints.glob("step*.ckpt"), default=None)


def soak(folder: Path, kills: int, seed: int = 0) -> list[Subject]:
    """Disturb as many runs as the kills need, share the other faults among them, and compare."""
    moments, tried = random.Random(seed), 0
    subjects: list[Subject] = []
    while tried < kills:
        number = len(subjects)
        words = f"{CASES[number % len(CASES)]} {SMALL} seed={number} cache={folder}/cache".split()
        whole, broken = (
            Subject([*words, f"runs={folder / name}"], directory_of(words, folder / name))
            for name in ("whole", "broken")
        )
        wait(whole.start(), lambda: False)
        assert whole.directory.done, whole.log()
        count = min(PER_RUN, kills - tried)
        kinds = [MOMENTS[n % 3] for n in range(count)]
        kinds += [OTHERS[(2 * number + n) % len(OTHERS)] for n in range(2) if kills >= PER_RUN]
        moments.shuffle(kinds)
        for kind in sorted(kinds, key=lambda kind: kind == "evaluation"):
            if not broken.directory.done:
                disturb(broken, kind, moments, whole.directory.record())
        for _ in range(3):
            if not broken.directory.done:
                broken.start().wait(PATIENCE)
        broken.differences = compare(whole.directory, broken.directory)
        subjects.append(broken)
        tried += sum(fault["kind"] in MOMENTS for fault in broken.faults)
        print(f"{len(broken.faults)} faults, {broken.differences or 'identical'}: {words}")
    return subjects


def directory_of(words: list[str], runs: Path) -> RunDirectory:
    """The directory of a config below ``runs``."""
    return RunDirectory(compose_config([*words, f"runs={runs}"]))


def disturb(subject: Subject, kind: str, moments: random.Random, whole: dict[str, Any]) -> None:
    """Start the command, wait for the moment and break it; a run that ends before has no fault."""
    said, newest = len(subject.log()), subject.newest()
    resumed_from = int(newest.stem.removeprefix("step")) if newest else 0
    # The line of log.txt after which the curve is this process's own.
    opened = "Resuming from step" if newest else "parameters"
    last = subject.directory.checkpoints / f"step{whole['steps']:08d}.ckpt"
    process, trained = subject.start(), last.exists()
    if kind == "evaluation":
        wait(process, lambda: opened in subject.log()[said:] if trained else last.exists())
        time.sleep(moments.uniform(0, 0.7 * whole["seconds"]["evaluation"]))
    else:
        wait(process, lambda: opened in subject.log()[said:] and subject.step() > resumed_from)
        wanted = subject.step() + moments.randint(0, 8)
        wait(process, lambda: subject.step() >= wanted or last.exists())
        if kind == "checkpoint":
            folder = subject.directory.checkpoints
            wait(process, lambda: any(folder.glob(".step*")) or last.exists())
            time.sleep(moments.uniform(0, 0.01))
    if process.poll() is None:
        expected = inject(subject, process, kind)
        fault = {"kind": kind, "step": subject.step(), "as_expected": expected}
        subject.faults += [fault] if process.returncode != 0 else []


def wait(process: subprocess.Popen, moment: Callable[[], bool]) -> None:
    """Poll until the moment comes or the process ends."""
    deadline = time.monotonic() + PATIENCE
    while process.poll() is None and not moment():
        assert time.monotonic() < deadline, "the moment to disturb the run does not come"
        time.sleep(0.001)


def inject(subject: Subject, process: subprocess.Popen, kind: str) -> bool:
    """Inject the fault; whether the process ends with the status that it should have."""
    if kind in ("SIGUSR1", "SIGTERM"):
        process.send_signal(signal.Signals[kind])
        process.wait(PATIENCE)
        return process.returncode == REQUEUE
    with suppress(ProcessLookupError):  # it has ended just now
        os.killpg(process.pid, signal.SIGKILL)  # and those that prepare its data
    process.wait(PATIENCE)
    if kind not in MOMENTS and (damaged := subject.newest()):
        content = bytearray(damaged.read_bytes())
        half = len(content) // 2
        content[half] ^= 1
        damaged.write_bytes(content[:half] if kind == "truncated checkpoint" else content)
    return process.returncode == -signal.SIGKILL


def compare(whole: RunDirectory, broken: RunDirectory) -> list[str]:
    """What differs from the whole run: nothing, if the faults were survived."""
    if not broken.done:
        return ["not DONE"]
    last = f"step{whole.record()['steps']:08d}.ckpt"
    states = [torch.load(run.checkpoints / last, weights_only=True) for run in (whole, broken)]
    parts = ("state_dict", "optimizer_states", "lr_schedulers", "global_step")
    pairs = {
        "metrics": (whole.record()["metrics"], broken.record()["metrics"]),
        "curve": (curve(whole), curve(broken)),
        **{f"checkpoint's {part}": (states[0][part], states[1][part]) for part in parts},
    }
    return [name for name, (one, other) in pairs.items() if not same(one, other)]


def curve(directory: RunDirectory) -> list[dict[str, Any]]:
    """The rows of metrics.jsonl without what depends on time."""
    rows = read_metrics(directory.metrics)
    return [{key: value for key, value in row.items() if key not in TIMED} for row in rows]


def same(one: Any, other: Any) -> bool:
    """Equality bit for bit, tensors and all."""
    (leaves, shape), (others, other_shape) = tree_flatten(one), tree_flatten(other)
    return shape == other_shape and all(
        torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
        for a, b in zip(leaves, others, strict=True)
    )
