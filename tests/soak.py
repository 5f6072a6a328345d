"""The soak: small runs are broken in every way known, and must end as undisturbed ones do.

They are killed by SIGKILL at random moments of training, of writing a checkpoint and of the
evaluation, and meet the other faults of ``OTHERS``; the same command is given until they are DONE.
A run has survived when metrics, curve and last checkpoint equal those of an undisturbed run bit for
bit.
"""

import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
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
OTHERS = ("SIGUSR1", "SIGTERM", "full disk", "truncated checkpoint", "flipped bit")
OTHERS += ("second process",)
PER_RUN = 10  # kills of one run
PATIENCE = 900.0  # seconds for one process

SMALL = (
    "task.arch.layers=2 task.arch.width=64 task.arch.heads=2 task.arch.ffn=96 trainer=cpu "
    "logger=none trainer.log_every=1 trainer.checkpoint_every=5 trainer.validate_every=10 "
    "trainer.progress=none"
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
CASES = [
    f"{ADDITION} model=tape",
    f"{SCROLLS} model=rope",
    f"{ADDITION} model=randpe",
    f"{ADDITION} model=alibi",
    f"{ADDITION} model=tape trainer.workers=1 trainer.micro_batch=16",
]


@dataclass
class Subject:
    """A run that is disturbed: its words, its directory, and what has happened to it."""

    words: list[str]
    directory: RunDirectory
    last_step: int
    evaluation_seconds: float
    faults: list[dict[str, Any]] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)  # from the undisturbed run

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


def soak(folder: Path, kills: int, seed: int = 0) -> list[Subject]:
    """Disturb as many runs as the kills need, share the other faults among them, and compare."""
    moments, subjects, tried = random.Random(seed), [], 0
    while tried < kills:
        number = len(subjects)
        words = f"{CASES[number % len(CASES)]} {SMALL}".split()
        words += [f"seed={number}", f"cache={folder}/cache"]
        whole = undisturbed(words, folder / "whole")
        count = min(PER_RUN, kills - tried)
        kinds = [moment for moment in MOMENTS for _ in range(count // 3)]
        kinds += ["training"] * (count % 3)
        others = [OTHERS[(2 * number + k) % len(OTHERS)] for k in range(2) if kills >= PER_RUN]
        broken = [*words, f"runs={folder}/broken"]
        steps, spent = whole.record()["steps"], whole.record()["seconds"]["evaluation"]
        subject = Subject(broken, directory_of(words, folder / "broken"), steps, spent)
        disturb(subject, [*kinds, *others], moments)
        subject.differences = compare(whole, subject.directory)
        subjects.append(subject)
        tried += sum(fault["kind"] in MOMENTS for fault in subject.faults)
        print(f"{len(subject.faults)} faults, {subject.differences or 'identical'}: {words}")
    return subjects


def directory_of(words: list[str], runs: Path) -> RunDirectory:
    """The directory of a config below ``runs``."""
    return RunDirectory(compose_config([*words, f"runs={runs}"]))


def undisturbed(words: list[str], runs: Path) -> RunDirectory:
    """Run it once, to the end."""
    subject = Subject([*words, f"runs={runs}"], directory_of(words, runs), 0, 0.0)
    process = subject.start()
    await_(process, lambda: False)
    assert process.returncode == 0, (subject.directory.path / "FAILED").read_text()
    return subject.directory


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
    fault: dict[str, Any] = {"kind": kind, "resumed_from": resumed_from}
    # The line of log.txt after which the curve is this process's own.
    opened = "Resuming from step" if newest else "parameters"
    full = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (30_000, 30_000))
    process = subject.start(full if kind == "full disk" else None)
    trained = partial(finished_training, subject)
    if kind == "evaluation":
        await_(process, (lambda: opened in subject.log()[said:]) if trained() else trained)
        time.sleep(moments.uniform(0, 0.7 * subject.evaluation_seconds))
    elif kind != "full disk":
        await_(process, lambda: opened in subject.log()[said:] and subject.step() > resumed_from)
        wanted = subject.step() + moments.randint(0, 8)
        await_(process, lambda: subject.step() >= wanted or trained())
        if kind == "checkpoint":
            folder = subject.directory.checkpoints
            await_(process, lambda: any(folder.glob(".step*")) or trained())
            time.sleep(moments.uniform(0, 0.01))
    expected, status = inject(subject, process, kind), process.returncode
    return fault | {"step": subject.step(), "status": status, "as_expected": status == expected}


def finished_training(subject: Subject) -> bool:
    """Whether the last step's checkpoint is there."""
    return (subject.directory.checkpoints / f"step{subject.last_step:08d}.ckpt").exists()


def await_(process: subprocess.Popen, moment: Callable[[], bool]) -> None:
    """Poll until the moment comes or the process ends."""
    deadline = time.monotonic() + PATIENCE
    while process.poll() is None and not moment():
        if time.monotonic() > deadline:
            kill(process)
            raise TimeoutError("the moment at which the run should be disturbed does not come")
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
    rows = read_metrics(directory.path / "metrics.jsonl")
    return [{key: value for key, value in row.items() if key not in TIMED} for row in rows]


def same(one: Any, other: Any) -> bool:
    """Equality bit for bit, tensors and all."""
    leaves, shapes = zip(*map(tree_flatten, (one, other)), strict=True)
    return shapes[0] == shapes[1] and all(map(alike, *leaves))


def alike(one: Any, other: Any) -> bool:
    """Equality of two leaves."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    return type(one) is type(other) and bool(one == other)
