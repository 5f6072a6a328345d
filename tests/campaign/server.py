"""Command lines of the product, each in a fork of one process that has imported everything.

A new Python needs seconds to import torch and Lightning; a fork of one that has them begins at
once, so that thousands of wrong command lines can be tried. ``python -m tests.campaign.server``
reads one JSON object a line from stdin and answers each with one line; :class:`Commands` is its
other end.
"""

import gc
import json
import os
import re
import resource
import runpy
import select
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

RUN = "run"  # for the name of a command: a run without Hydra's main
LIMIT = 60.0  # seconds that a command may take
# Root may read and write whatever the permissions say; its children here may not.
OBEDIENT = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search,-fowner"]


@dataclass(frozen=True)
class Outcome:
    """How a command ended.

    Args:
        status: its exit status; minus the signal's number where one ended it, None where it hung.
        out, err: what it printed.
        megabytes: at its peak.
    """

    words: tuple[str, ...]
    status: int | None
    out: str
    err: str
    seconds: float
    megabytes: float

    @property
    def verdict(self) -> str:
        """``accepted``, ``sentence`` (and status 1 or 2), ``unexplained`` (it begins with the name
        of an exception), ``requeue``, ``interrupted``, ``traceback``, ``hang``, ``killed``, or
        ``silent`` for a failure without a sentence.
        """
        told = [line for line in self.err.splitlines() if line.startswith("error: ")]
        usage = "usage: " in self.err and ": error: " in self.err  # argparse
        if self.status is None:
            return "hang"
        if "Traceback (most recent call last)" in self.err + self.out:
            return "traceback"
        if self.status < 0:
            return "killed"
        if self.status in (0, 85, 130):
            return {0: "accepted", 85: "requeue", 130: "interrupted"}[self.status]
        if any(re.match(r"error: \w+(Error|Exception): ", line) for line in told):
            return "unexplained"
        return "sentence" if self.status in (1, 2) and (told or usage) else "silent"

    @property
    def sentence(self) -> str:
        """What it told the user, or the end of what it printed."""
        told = [line for line in self.err.splitlines() if "error: " in line]
        return told[-1] if told else self.err[-400:]


@dataclass(frozen=True)
class Command:
    """A command line, and what befalls it.

    Args:
        words: ``train.py …``, or the name of a module and its words.
        kill: (seconds after the start, signal) of every signal that it receives.
        largest: file, in bytes, that it may write.
        environment: variables, besides those of the server; None takes one away.
        memory: address space that it may have.
    """

    words: tuple[str, ...]
    kill: tuple[tuple[float, int], ...] = ()
    largest: int | None = None
    environment: dict[str, str | None] = field(default_factory=dict)
    limit: float = LIMIT
    memory: int = 6 << 30


class Commands:
    """Runs commands in ``world``, a copy of the sources."""

    def __init__(self, world: Path) -> None:
        self.world = world

    def __enter__(self) -> Self:
        keep = {**os.environ, "PYTHONPATH": str(self.world), "OMP_NUM_THREADS": "1"}
        drop = OBEDIENT if os.geteuid() == 0 else []
        self.process = subprocess.Popen(
            [*drop, sys.executable, "-m", "tests.campaign.server"],
            cwd=self.world,
            env={**keep, "WANDB_MODE": "offline", "PYTHONWARNINGS": "ignore"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()

    def __call__(self, *words: str, **befalls: Any) -> Outcome:
        """One command alone."""
        return self.together([Command(words, **befalls)])[0]

    def together(self, commands: Sequence[Command]) -> list[Outcome]:
        """All commands at once; returns when the last has ended."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps([vars(command) for command in commands]) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        return [Outcome(c.words, *a) for c, a in zip(commands, answer, strict=True)]


def serve() -> Command | None:
    """Answer requests until stdin ends (then None); in a fork, the command that it has to run."""
    answers = os.fdopen(os.dup(1), "w")
    gc.freeze()  # a collection in a fork would copy every page
    for line in sys.stdin:
        children = []
        for asked in json.loads(line):
            command = Command(**asked)
            if command.words[0] == RUN:
                compose_choices(command.words[1:])  # kept, so that the fork has only to set values
            pipes = [os.pipe(), os.pipe()]  # no files, whose size a command may be bound to
            child = os.fork()
            if child == 0:
                become(command, [write for _, write in pipes])
                return command
            for _, write in pipes:
                os.close(write)
            children.append(Child(child, command, [read for read, _ in pipes]))
        left = children
        while left := [child for child in left if not child.ended()]:
            time.sleep(0.002)
        print(json.dumps([child.answer for child in children]), file=answers, flush=True)
    return None


class Child:
    """A fork that runs a command."""

    def __init__(self, pid: int, command: Command, streams: list[int]) -> None:
        self.pid, self.command = pid, command
        self.told: dict[int, bytes] = dict.fromkeys(streams, b"")  # by what it comes from
        self.began, self.signals = time.monotonic(), sorted(command.kill)
        self.answer: list[Any] | None = None

    def ended(self) -> bool:
        """Whether it has ended; sends what signals are due, and ends it at its limit."""
        if self.answer is not None:
            return True
        seconds = time.monotonic() - self.began
        self.listen()
        while self.signals and seconds >= self.signals[0][0]:
            os.kill(self.pid, self.signals.pop(0)[1])
        hung = seconds > self.command.limit
        if hung:
            os.kill(self.pid, signal.SIGKILL)  # it may not be the leader of its group yet
        pid, status, used = os.wait4(self.pid, 0 if hung else os.WNOHANG)
        if pid:
            with suppress(ProcessLookupError):  # what it has left behind
                os.killpg(self.pid, signal.SIGKILL)
            self.listen()
            out, err = (told.decode(errors="replace") for told in self.told.values())
            for stream in self.told:
                os.close(stream)
            code = None if hung else os.waitstatus_to_exitcode(status)
            self.answer = [code, out, err, round(seconds, 2), round(used.ru_maxrss / 1024)]
        return bool(pid)

    def listen(self) -> None:
        """Read what it has printed since."""
        while ready := select.select([*self.told], [], [], 0)[0]:
            read = {stream: os.read(stream, 1 << 16) for stream in ready}
            for stream, text in read.items():
                self.told[stream] += text
            if not any(read.values()):
                return


def become(command: Command, streams: list[int]) -> None:
    """In the fork: a process group, streams, environment and limits of its own."""
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, stream in enumerate(streams, start=1):
        os.dup2(stream, number)
    for name, value in command.environment.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    resource.setrlimit(resource.RLIMIT_AS, (command.memory, command.memory))
    if command.largest is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (command.largest, command.largest))


def run(command: Command) -> None:
    """As ``python train.py …`` or ``python -m <module> …`` would."""
    name, *words = command.words
    sys.argv = [name, *words]
    try:
        if name == RUN:
            run_composed(words)
        elif name.endswith(".py"):
            runpy.run_path(name, run_name="__main__")
        else:
            runpy.run_module(name, run_name="__main__", alter_sys=True)
    except Exception:
        traceback.print_exc()
        sys.exit(1)


def compose_choices(words: Sequence[str]) -> None:
    """Compose the YAMLs that the words choose."""
    from tape_exp.settings.compose import CONF, compose_config
    from tape_exp.settings.errors import ConfigError

    with suppress(ConfigError):
        compose_config([word for word in words if (CONF / word.partition("=")[0]).is_dir()])


def run_composed(words: list[str]) -> None:
    """``train.py`` without Hydra's own main, which takes a second to compose everything twice."""
    from tape_exp import cli
    from tape_exp.settings.compose import compose_config
    from tape_exp.training import run

    cli.with_clear_errors(lambda: run.run(compose_config(words)) and None)


def import_all() -> None:
    """Whatever the commands import sooner or later."""
    import tape_exp.models.hf
    import tape_exp.paper.compare
    import tape_exp.paper.costs
    import tape_exp.paper.push
    import tape_exp.paper.runner
    import tape_exp.report.content
    import tape_exp.tasks.scrolls
    import tape_exp.training.run  # noqa: F401
    from tape_exp.settings.compose import compose_config

    for task in ("arithmetic", "c4", "scrolls", "passkey", "word_problem"):
        compose_config([f"task={task}"])


if __name__ == "__main__":
    sys.path.insert(0, os.getcwd())
    import_all()
    given = serve()
    if given is not None:
        run(given)
