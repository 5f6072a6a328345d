"""Commands of the project in processes of their own, which a server forks that has imported the
product: an import of Lightning costs five seconds, and most tests are not about it. Nor are they
about pictures, which cost half of a small run: their files have one pixel.
"""

import atexit
import multiprocessing
import os
import resource
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from PIL import Image

from tape_exp.settings.folders import ROOT

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["tape_exp.training.run"])


def sketch(figure: Figure, file: Any, **_: Any) -> None:
    """Stands in for ``Figure.savefig``."""
    Image.new("RGBA", (1, 1)).save(file, "png")


def script(*words: str) -> None:
    """``python train.py words``."""
    sys.argv = ["train.py", *words]
    runpy.run_path(str(ROOT / "train.py"), run_name="__main__")


def python(*words: str, folder: Path, path: str) -> subprocess.CompletedProcess[str]:
    """``python words`` in a folder, with the packages of ``path``."""
    environment = {**os.environ, "PYTHONPATH": path}
    command = [sys.executable, *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


class Command:
    """A command with the methods of ``subprocess.Popen`` that tests use.

    Args:
        program: what is called with the words, a function of a module; ``python train.py words``.
        environment: variables besides those of this process; None takes one away.
        largest_file: bytes that it may write to one file.
        group: whether it leads a process group of its own.
    """

    def __init__(
        self,
        *words: str,
        program: Callable[..., None] = script,
        environment: dict[str, str | None] | None = None,
        largest_file: int | None = None,
        group: bool = False,
    ) -> None:
        self.words = words
        self.folder = tempfile.TemporaryDirectory()
        # W&B's process of an earlier test would serve this one too
        changed = {**os.environ, "WANDB_SERVICE": None, **(environment or {})}
        variables = {name: value for name, value in changed.items() if value is not None}
        arguments = (program, words, variables, self.folder.name, largest_file, group)
        self.process = SERVER.Process(target=_become, args=arguments)
        self.process.start()
        assert self.process.pid is not None
        self.pid: int = self.process.pid

    def poll(self) -> int | None:
        """The exit code, or None while it runs."""
        return self.process.exitcode

    @property
    def returncode(self) -> int | None:
        """The exit code, once it has ended."""
        return self.process.exitcode

    def wait(self, timeout: float = 900) -> int | None:
        """Wait for its end; the exit code."""
        self.process.join(timeout)
        if self.process.exitcode is None:
            self.process.kill()
            raise subprocess.TimeoutExpired(self.words, timeout)
        return self.process.exitcode

    def send_signal(self, number: int) -> None:
        """Send it, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.process.kill()

    def finish(self, timeout: float = 900) -> "subprocess.CompletedProcess[str]":
        """Wait for its end; what it printed, and its exit code."""
        status = self.wait(timeout)
        out, err = (
            Path(self.folder.name, name).read_text(encoding="utf-8") for name in ("out", "err")
        )
        return subprocess.CompletedProcess(self.words, status or 0, out, err)


def train(*words: str, **options: Any) -> "subprocess.CompletedProcess[str]":
    """``python train.py words`` to its end."""
    return Command(*words, **options).finish()


def both(*words: str, program: Callable[..., None] = script, **environment: str) -> list[Command]:
    """``torchrun --nproc-per-node=2 train.py words``, begun: neither process imports anything."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0", **environment}
    shared |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_RUN_ID": "test"}
    ranks = [shared | {"RANK": rank, "LOCAL_RANK": rank} for rank in ("0", "1")]
    words = (*words, "trainer.devices=2")
    return [Command(*words, program=program, environment={**rank}) for rank in ranks]


def _become(
    program: Callable[..., None],
    words: tuple[str, ...],
    variables: dict[str, str],
    folder: str,
    largest_file: int | None,
    group: bool,
) -> None:
    """In the forked process: what an interpreter does that begins with the program."""
    if group:
        os.setsid()
    for stream, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(Path(folder, name), os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
    os.chdir(ROOT)
    os.environ.clear()
    os.environ.update(variables)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if largest_file is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))
    sys.path.insert(0, str(ROOT))
    Figure.savefig = sketch  # type: ignore[method-assign]
    try:
        program(*words)
    finally:
        threading._shutdown()  # type: ignore[attr-defined]  # ends the workers of executors
        atexit._run_exitfuncs()
