"""``make gpu``: what a GPU is asked for, in stages that survive each other.

``python -m tape_exp.measure.gpu [--stages check speed train data] [--minutes 9] [--out FOLDER]``.
Stages are in the order of their worth. Each is a command of its own with a limit, leaves what it
has when that is over, and the next one begins whatever happened: out of memory, a backend that
fails or a driver that hangs is a line in ``gpu-<machine>.json``, and not the end. Without a GPU all
of it runs on the CPU as a trial, whose files are in ``runs/.gpu`` and not among the results.
SIGTERM, SIGHUP and Ctrl-C also stop the command under way.
"""

import argparse
import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

import torch

from tape_exp.machine.files import parse_json
from tape_exp.machine.hardware import file_name, machine_name
from tape_exp.measure.check import disagreements, line_of
from tape_exp.measure.results import FOLDER, write_record
from tape_exp.settings.commands import command
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.folders import ROOT, require_clone

PYTHON = sys.executable
GRACE = 20.0  # seconds from SIGTERM, at which a run saves a checkpoint, to SIGKILL
TRIAL = ROOT / "runs" / ".gpu"
NEEDED = ("hydra", "lightning", "scipy")  # by whatever trains
MODELS = ("tape", "fire", "rope", "randpe", "nope")  # in the order in which they are trained
KERNELS = ("tests/models/test_kernels.py", "tests/models/test_position_kernels.py")


@dataclass(frozen=True)
class Stage:
    """A part of ``make gpu``.

    Args:
        help: what it finds out.
        weight: its share of the minutes.
        commands: what it runs, one after the other, given the folder of results.
        needs: packages without which it is left out.
    """

    help: str
    weight: float
    commands: Callable[[Path], list[list[str]]]
    needs: Sequence[str] = ()


def module(name: str, *words: str) -> list[str]:
    """The command of a module of ours."""
    return [PYTHON, "-m", f"tape_exp.{name}", *words]


def trains(out: Path) -> list[list[str]]:
    """Addition at scale small, model by model; a run that was cut off goes on at the next call."""
    trainer = "trainer=gpu" if torch.cuda.is_available() else "trainer=cpu"
    words = ["task=arithmetic", "scale=small", "seed=0", trainer, "logger=none"]
    place = f"runs={out / 'runs'}"
    return [[PYTHON, "train.py", f"model={name}", *words, place] for name in MODELS]


STAGES = {
    "check": Stage(
        "every backend x every encoding in bf16, forward and every gradient, against the reference",
        4,
        lambda out: [module("measure.check", "--out", str(out))],
    ),
    "speed": Stage(
        "the training step, relative to RoPE, decoding, then attention at every length",
        4,
        lambda out: [module("measure.speed", "--out", str(out))],
    ),
    "train": Stage("addition at scale small, seed 0, as far as the minutes go", 2, trains, NEEDED),
    "data": Stage(
        "whether data keeps up",
        1,
        lambda out: [module("measure.data_speed", "--out", str(out))],
        NEEDED,
    ),
    "kernels": Stage(
        "the tests of our kernels; about 200 compilations",
        4,
        lambda out: [[PYTHON, "-m", "pytest", "-c", os.devnull, "--rootdir=.", *KERNELS]],
        ("pytest", *NEEDED),
    ),
}
USUAL = ("check", "speed", "train", "data")


@command
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the stages; status 1 where a command failed other than by its limit."""
    parser = argparse.ArgumentParser(
        prog="python -m tape_exp.measure.gpu",
        description="Check, measure and train on a GPU in stages, each with a limit: "
        + "; ".join(f"{name}: {stage.help}" for name, stage in STAGES.items())
        + ".",
    )
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=USUAL, metavar="stage")
    parser.add_argument("--minutes", type=float, default=11, help="default: %(default)s")
    parser.add_argument(
        "--out",
        type=Path,
        help="folder of gpu-<machine>.json and of what the stages leave (default: results/speed; "
        "without a GPU, runs/.gpu)",
    )
    given = parser.parse_args(arguments)
    require_clone("make gpu")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    out = (given.out or (FOLDER if device.type == "cuda" else TRIAL)).resolve()
    out.mkdir(parents=True, exist_ok=True)
    if device.type == "cpu":
        print(
            "No GPU is here: every stage runs on the CPU, where it shows only that it runs. Its "
            f"files go to {out}."
        )
    record: dict[str, Any] = {
        "machine": machine_name(device),
        "torch": torch.__version__,
        "stages": [],
    }
    whole = sum(STAGES[name].weight for name in given.stages)
    spare = 0.0  # seconds that earlier stages did not need
    with ended_by_signals(), alone(out) as lock:
        for name in given.stages:
            limit = 60 * given.minutes * STAGES[name].weight / whole + spare
            began = time.monotonic()
            record["stages"].append(run_stage(name, out, limit, lock))
            spare = max(limit - (time.monotonic() - began), 0.0)
            write_record("gpu", record, out, finished=False)
    failed = [
        line
        for stage in record["stages"]
        for line in stage["commands"]
        if line["ended"] == "failed"
    ]
    print(write_record("gpu", record, out))
    found = disagreements(checked(out, device)) if "check" in given.stages else []
    for row in found:
        print(line_of(row))
    return int(bool(failed or found))


def checked(out: Path, device: torch.device) -> list[dict[str, Any]]:
    """The rows that the stage ``check`` has left, also where it was stopped at its limit."""
    path = out / f"check-{file_name(machine_name(device))}.json"
    aside = path.with_name(f"unfinished-{path.name}")
    found = next((place for place in (aside, path) if place.exists()), None)
    rows: list[dict[str, Any]] = parse_json(found.read_text())["rows"] if found else []
    return rows


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP, unless it is ignored as under ``nohup``, end this command as Ctrl-C does:
    a command that it left behind would disturb what is timed next.
    """

    def end(number: int, _: Any) -> None:
        sys.exit(128 + number)

    numbers = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) == signal.SIG_DFL]
    for number in numbers:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


@contextlib.contextmanager
def alone(out: Path) -> Iterator[IO[str]]:
    """The lock of the folder, which every command inherits, so that it lasts as long as one of them
    does.

    Raises:
        ConfigError: another process holds it.
    """
    path = out / ".lock"
    with path.open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"another make gpu, or a command that a killed one has left behind, works in "
                f"{out}; wait for its end, or stop what `fuser {path}` names."
            ) from None
        yield lock


def run_stage(name: str, out: Path, limit: float, lock: IO[str]) -> dict[str, Any]:
    """The commands of a stage, as long as its seconds last, each with how it ended."""
    stage, lines = STAGES[name], []
    missing = [package for package in stage.needs if find_spec(package) is None]
    if missing:
        print(f"== {name}: left out, {' and '.join(missing)} not installed", flush=True)
        return {"stage": name, "left_out": f"{', '.join(missing)} not installed", "commands": []}
    (out / f"{name}.log").unlink(missing_ok=True)
    until = time.monotonic() + limit
    for words in stage.commands(out):
        if (left := until - time.monotonic()) <= 0:
            break
        log = out / f"{name}.log"
        print(f"== {name}, up to {left:.0f} s: {' '.join(words[1:])}\n   in {log}", flush=True)
        lines.append(run_command(words, log, left, lock))
        print(f"== {name}: {lines[-1]['ended']} after {lines[-1]['seconds']} s", flush=True)
    return {"stage": name, "commands": lines}


def run_command(words: list[str], log: Path, limit: float, lock: IO[str]) -> dict[str, Any]:
    """Run a command with its output in ``log``, and end it at its limit; the last lines are shown
    on the terminal.
    """
    began = time.monotonic()
    with log.open("ab") as file:
        process = subprocess.Popen(
            words,
            cwd=ROOT,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=[lock.fileno()],
        )
        try:
            status = process.wait(limit)
            ended = "done" if status == 0 else "failed"
        except subprocess.TimeoutExpired:
            ended, status = "stopped at its limit", stop(process)
        except BaseException:
            stop(process)
            raise
    tail = log.read_text(errors="replace").splitlines()[-12:]
    print("\n".join(tail), flush=True)
    return {
        "command": " ".join(words[1:]),
        "ended": ended,
        "status": status,
        "seconds": round(time.monotonic() - began, 1),
        "last": tail[-1][:300] if tail else "",
    }


def stop(process: subprocess.Popen) -> int:
    """End a command and what it has started, and return its status: it may save first, unless this
    is interrupted too.
    """
    try:
        with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
            os.killpg(process.pid, signal.SIGTERM)
            return process.wait(GRACE)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return process.wait()


if __name__ == "__main__":
    sys.exit(main())
