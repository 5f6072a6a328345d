"""``tape-exp sweep <overrides with commas | artifact … scale= seeds=>``: a grid as one
SLURM array, submitted.

The script, the overrides of every run and the log of every run are in ``<runs>/.sweeps/<name>/``,
where the name is a function of the runs and of that place. Given again, the same command submits
the runs that are neither finished nor waiting, which go on from their last checkpoints.
"""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from tape_exp.launch.grid import Job, folder_of, jobs_of, refuse_breaks
from tape_exp.launch.queue import states
from tape_exp.machine.files import write_atomically
from tape_exp.settings.arguments import Parser, command
from tape_exp.settings.compose import explain, register
from tape_exp.settings.errors import ConfigError, did_you_mean, printable
from tape_exp.settings.folders import CONF, INSTALLED, ROOT, told
from tape_exp.training.assembly import check_parts

# Keys of the launcher that are not options of sbatch.
OWN = {"_target_", "submitit_folder", "max_num_timeout", "setup", "teardown", "name"}
OWN |= {"array_parallelism", "signal_delay_s", "stderr_to_stdout", "additional_parameters"}
PATIENCE = 60.0  # seconds
OPTIONAL = {"mem_gb", "cpus_per_task"}
COUNTS = OPTIONAL | {"nodes", "tasks_per_node", "timeout_min"}
COUNTS |= {"signal_delay_s", "array_parallelism"}
# Submitit's names of options that sbatch calls otherwise.
SBATCH = {"timeout_min": "time", "mem_gb": "mem", "tasks_per_node": "ntasks_per_node"}


@command
def main(arguments: Sequence[str] | None = None) -> int:
    """Write, submit, say how to watch."""
    parser = Parser(prog="tape-exp sweep", description="Submit a grid of runs as one SLURM array.")
    parser.add_argument(
        "--dry-run", action="store_true", help="print the script and what would be submitted"
    )
    parser.add_argument("--cap", type=int, help="runs at once (hydra.launcher.array_parallelism)")
    parser.add_argument(
        "words", nargs="+", metavar="key=value,value … | artifact … [scale=] [seeds=]"
    )
    given = parser.parse_intermixed_args(arguments)
    sweep(given.words, given.cap, given.dry_run)
    return 0


def sweep(words: Sequence[str], cap: int | None, dry_run: bool) -> None:
    """Submit the runs that are neither finished nor in the queue."""
    if cap is not None and cap < 1:
        raise ConfigError(f"--cap {cap} must be at least 1.")
    jobs = jobs_of(words)
    if all(job.recorded for job in jobs):
        print(f"Every run has a record: `{told('paper render')}` draws the artifact.")
        return
    settings = cluster([word for word in words if word.startswith("hydra.launcher")], jobs)
    if needs_gpu(jobs) and not asks_for_gpu(settings):
        print(
            "warning: the runs use GPUs and the script asks for none; add "
            "hydra.launcher.gpus_per_node=<number>, or in a clone copy conf/local/example.yaml to "
            "conf/local/cluster.yaml.",
            file=sys.stderr,
        )
    for job in jobs:
        if not job.recorded:
            check_parts(job.cfg)
    folder = folder_of(jobs)
    script = script_of(settings, folder, shlex.join(["tape-exp", "sweep", *words]))
    with nullcontext() if dry_run else only_one(folder):
        submit_missing(jobs, words, folder, script, cap or settings["array_parallelism"], dry_run)


@contextmanager
def only_one(folder: Path) -> Iterator[None]:
    """Keep a second command for the same runs waiting until those of this one are in the queue.

    Raises:
        ConfigError: the other one takes longer than :data:`PATIENCE`, or the folder cannot be
            written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / ".lock", timeout=PATIENCE)
        lock.acquire()
    except Timeout as error:
        raise ConfigError(
            f"another tape-exp sweep submits the same runs ({folder}); wait for its end."
        ) from error
    except OSError as error:
        raise ConfigError(
            f"{folder} cannot be written ({error.strerror}); set runs=<a folder that can>."
        ) from error
    try:
        yield
    finally:
        lock.release()


def submit_missing(
    jobs: Sequence[Job], words: Sequence[str], folder: Path, script: str, cap: int, dry_run: bool
) -> None:
    """Submit the runs that are neither finished nor in the queue, or say what would be."""
    waiting = {} if dry_run else states(folder.name)
    waiting = {i: task for i, task in waiting.items() if i < len(jobs)}
    todo = [i for i, job in enumerate(jobs) if i not in waiting and not job.done]
    depths = sorted({jobs[i].level for i in todo})
    levels = [[i for i in todo if jobs[i].level == depth] for depth in depths]
    arrays = [f"--array={ranges(level)}%{cap}" for level in levels]
    queued = [
        sorted({task.array for i, task in waiting.items() if jobs[i].level < depth})
        for depth in depths
    ]
    counts = (
        f"{len(jobs)} runs: {len(jobs) - len(todo) - len(waiting)} done, {len(waiting)} in the "
        f"queue, {len(todo)} to submit."
    )
    if dry_run:
        print(script + f"# jobs.txt, the runs of tasks 0 to {len(jobs) - 1}:")
        for i, job in enumerate(jobs):
            print(f"#   {i:3} {'' if i in todo else '(done) '}{job.line}")
        print(f"# {counts}")
        for number, (array, others) in enumerate(zip(arrays, queued, strict=True)):
            before = [*others, *(["<the job above>"] if number else [])]
            print("# sbatch", *options_of(array, before), folder / "script.sh")
        return
    print(counts)
    if not todo:
        return
    write_atomically(folder / "jobs.txt", "".join(f"{job.line}\n" for job in jobs))
    write_atomically(
        folder / "recorded.txt", "".join(f"{i}\n" for i, job in enumerate(jobs) if job.recorded)
    )
    write_atomically(folder / "script.sh", script)
    (folder / "logs").mkdir(exist_ok=True)
    ids: list[str] = []
    for array, others in zip(arrays, queued, strict=True):
        before = [*others, *ids[-1:]]
        ids.append(submit([*options_of(array, before), str(folder / "script.sh")]))
        with (folder / "submitted.txt").open("a") as file:
            file.write(f"{ids[-1]} {array}\n")
        print(
            f"Submitted job {ids[-1]} "
            f"({array}{', after ' + ' and '.join(before) if before else ''})."
        )
    status = f"tape-exp status {shlex.join(words)}"
    print(f"Watch:  watch -n 30 {shlex.quote(status)}")
    print(f"Logs:   {folder}/logs\nCancel: scancel {' '.join(ids)}")


def options_of(array: str, before: Sequence[str]) -> list[str]:
    """The options of sbatch for an array that begins after the jobs ``before``.

    ``afterany``, not ``afterok``: a run whose base failed says so and ends, and the others are not
    lost with it.
    """
    return [array, f"--dependency=afterany:{':'.join(before)}"] if before else [array]


def cluster(words: Sequence[str], jobs: Sequence[Job]) -> dict[str, Any]:
    """The settings of ``hydra/launcher=slurm``, conf/local/cluster.yaml among them, for the devices
    of the runs.

    Raises:
        ConfigError: a setting is wrong, or the runs do not need the same number of devices.
    """
    needs = {(job.cfg.trainer.nodes, job.cfg.trainer.devices) for job in jobs}
    if len(needs) > 1:
        raise ConfigError(
            f"runs on {sorted(needs)} (nodes, devices of each) cannot share an array; sweep over "
            "trainer= apart."
        )
    (nodes, devices) = needs.pop()
    choice = [
        "hydra/launcher=slurm",
        f"trainer.nodes={nodes}",
        f"trainer.devices={devices}",
        f"runs={jobs[0].cfg.runs}",
    ]
    settings = _settings(choice)
    for word in words:
        key = word.split("=")[0].removeprefix("hydra.launcher.")
        if key.split(".")[0] not in settings:
            raise ConfigError(
                f"hydra.launcher.{key}{did_you_mean(key, settings)} Further keys are in "
                "conf/local/cluster.yaml."
            )
    return _settings([*choice, *words]) if words else settings


def _settings(overrides: Sequence[str]) -> dict[str, Any]:
    try:
        register()
        with initialize_config_dir(str(CONF), version_base="1.3"):
            cfg = compose("config", list(overrides), return_hydra_config=True)
        settings: Any = OmegaConf.to_container(cfg.hydra.launcher, resolve=True)
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(
            f"the cluster's settings (conf/local/cluster.yaml): {explain(error, overrides)}"
        ) from error
    _check_settings(settings)
    return settings


def _check_settings(settings: dict[str, Any]) -> None:
    """Raise :class:`ConfigError` where a setting of the launcher is of a wrong kind."""
    for key, value in settings.items():
        if key in ("setup", "teardown"):
            fits = value is None or (
                isinstance(value, list) and all(isinstance(line, str) for line in value)
            )
            wanted = "a list of lines"
        elif key == "additional_parameters":
            fits, wanted = isinstance(value, dict), "a section of options"
        elif key in COUNTS:
            fits = type(value) is int and 1 <= value < 10**9
            fits, wanted = fits or (value is None and key in OPTIONAL), "a number from 1 on"
        else:
            fits = isinstance(value, str | bool | int | None)
            wanted = "a word or a whole number"
        if not fits:
            raise ConfigError(
                f"hydra.launcher.{key}={value} must be {wanted}; it is set on the command line or "
                "in conf/local/cluster.yaml."
            )


def needs_gpu(jobs: Sequence[Job]) -> bool:
    """Whether a run is on a GPU, or would find one for each of its devices."""
    trainers = [job.cfg.trainer for job in jobs]
    return any(
        trainer.accelerator == "gpu"
        or (trainer.accelerator == "auto" and trainer.strategy in ("ddp", "fsdp"))
        for trainer in trainers
    )


def asks_for_gpu(settings: dict[str, Any]) -> bool:
    """Whether an option of sbatch names GPUs, as ``gpus_per_node`` and ``gres`` do."""
    options = {**settings, **settings.get("additional_parameters", {})}
    return any(value and re.search("gpu|gres|tres", key) for key, value in options.items())


def script_of(
    settings: dict[str, Any], folder: Path, command: str, program: Sequence[str] = ()
) -> str:
    """The sbatch script: settings, setup, the run of a task, and what happens after it.

    Args:
        folder: of jobs.txt, which has the words of every task.
        command: that the script was made by.
        program: takes these words; none: ``train.py``.
    """
    options = {
        SBATCH.get(key, key): value
        for key, value in settings.items()
        if key not in OWN and value is not None
    }
    if "mem" in options:
        options["mem"] = f"{options['mem']}G"
    options |= {
        "job_name": f"tape_exp-{folder.name}",
        "chdir": str(Path.cwd()),
        "open_mode": "append",
    }
    options |= {"output": f"{folder}/logs/%a.txt", **settings.get("additional_parameters", {})}
    flags = (
        f"--{key.replace('_', '-')}" + ("" if value is True else f"={shlex.quote(str(value))}")
        for key, value in options.items()
    )
    head = [f"# {command}", *(f"#SBATCH {flag}" for flag in flags if not flag.endswith("=False"))]
    for line in head:
        refuse_breaks(line)
    run = ["-m", "tape_exp.training"] if INSTALLED else [str(ROOT / "train.py")]
    lines = ["#!/bin/bash", *head, ""]
    lines += [
        f"folder={shlex.quote(str(folder))}",
        f"train=({shlex.join(program or [sys.executable, *run])})",
    ]
    lines += settings.get("setup") or []
    body = (Path(__file__).parent / "task.sh").read_text()
    return "\n".join(lines) + "\n" + body + "\n".join(settings.get("teardown") or []) + "\n"


def ranges(numbers: Sequence[int]) -> str:
    """Task numbers as sbatch takes them: ``0-3,7``."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


def submit(arguments: Sequence[str]) -> str:
    """Call sbatch; the job's id. Raises :class:`ConfigError` with what sbatch said."""
    try:
        done = subprocess.run(["sbatch", "--parsable", *arguments], capture_output=True, text=True)
    except FileNotFoundError as error:
        raise ConfigError(
            "sbatch is not on this machine; submit from a login node, or see the script with "
            "--dry-run."
        ) from error
    if done.returncode:
        raise ConfigError(
            f"sbatch refused the sweep ({' '.join(done.stderr.split())}); partition, account and "
            "limits are keys of hydra.launcher, in a clone also of conf/local/cluster.yaml, of "
            "which conf/local/example.yaml is an example."
        )
    said = (done.stdout.strip().splitlines() or [""])[-1].split(";")[0]
    if not said.isdigit():
        raise ConfigError(
            f"sbatch --parsable printed {printable(said) or 'nothing'} instead of the number of a "
            "job; see with squeue what it has submitted."
        )
    return said


if __name__ == "__main__":
    sys.exit(main())
