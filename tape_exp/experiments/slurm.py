"""Runs as one array of jobs of SLURM.

The script, the list of runs and their logs are in ``<runs>/.sweeps/<name>/``, where the name is a
function of the runs and of the place. Only the runs that are neither finished nor in the queue are
submitted, whatever words name them; they resume from their last checkpoints.
"""

import hashlib
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import rmtree, which
from typing import Any

from filelock import FileLock

from tape_exp.experiments import cluster
from tape_exp.experiments.queue import (
    NAME,
    Submissions,
    Task,
    known_queue,
    slurm_says,
    tasks_in_queue,
)
from tape_exp.experiments.run_spec import RunSpec, write_specs
from tape_exp.experiments.snapshot import check_committed, place_of, snapshot
from tape_exp.machine.files import write_atomically
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.folders import INSTALLED, ROOT

LOCK_SECONDS = 60.0
# SLURM sends USR1 two minutes before the end of the time: the run saves and ends with status 85.
DEFAULTS = {"time": "240", "cpus-per-task": "2", "signal": "USR1@120", "requeue": "true"}
BODY = ("job.sh", "array.sh")  # of launch/, behind the head of every script
STOP_AT_ERROR = (
    """trap 'echo "error: setup of launch/cluster.yaml: $BASH_COMMAND failed."; exit 1' ERR"""
)
UNITS = {"time": "minutes", "cpus-per-task": "CPUs for each process"}


@dataclass(frozen=True)
class Array:
    """An array of jobs that is to be submitted: the numbers of its runs, all of one level.

    Args:
        numbers: those of runs in the list of the sweep.
        needed: ids of jobs in the queue that must have ended before it begins.
        follows: whether the array before it must have ended too.
    """

    numbers: Sequence[int]
    needed: Sequence[str]
    follows: bool

    def options(self, cap: int, before: str) -> list[str]:
        """List the options of sbatch, where ``before`` is the id of the array before it."""
        options = [f"--array={','.join(map(str, self.numbers))}%{cap}"]
        needed = [*self.needed, before] if self.follows else self.needed
        if needed:
            options.append(f"--dependency=afterany:{':'.join(needed)}")
        return options


def submit_runs(
    specs: Sequence[RunSpec],
    command: Sequence[str],
    cap: int = 64,
    after: Sequence[str] = (),
    dirty: bool = False,
) -> list[str]:
    """Submit the runs that are neither finished nor in the queue, and print how to watch them.

    Args:
        specs: the runs, each with its folder as far as that is known; those that begin from others
            come later.
        command: ``["sweep", "model=rope"]``; ``slurm.<option>=<value>`` in it goes to sbatch.
        cap: how many run at once.
        after: ids of jobs that must have ended before the first of these begins.
        dirty: run the files that are there, and no copy of the last commit.

    Returns:
        The ids of the arrays.
    """
    sweep = sweep_folder(specs)
    sweeps = sweep.parent
    sweeps.mkdir(parents=True, exist_ok=True)
    ids: list[str] = []
    with FileLock(sweeps / ".lock", timeout=LOCK_SECONDS):  # a second command finds a full queue
        queue = Submissions(sweeps, known_queue()).in_queue(specs)
        arrays = arrays_of(specs, queue, after)
        print(counts(specs, queue, arrays))
        if arrays:
            code = ROOT if dirty else snapshot(sweeps / "code")
            begun = sweep.exists()
            (sweep / "logs").mkdir(parents=True, exist_ok=True)
            write_specs(specs, sweep)
            head = script_head(specs, command, sweep, code)
            write_atomically(sweep / "script.sh", job_script(head))
        for array in arrays:
            options = array.options(cap, ids[-1] if ids else "")
            try:
                ids.append(sbatch([*options, str(sweep / "script.sh")]))
            except ConfigError:
                if not begun and not ids:  # nothing of it was submitted
                    rmtree(sweep)
                raise
            print(f"Submitted job {ids[-1]} ({' '.join(options)}).")
    if ids:
        print_defaults(command)
        runs = sweep.parents[1]
        elsewhere = [] if runs == Path("runs").resolve() else ["--runs", str(runs)]
        named = command[1:] if command[0] == "sweep" else elsewhere
        status = shlex.join(["tape-exp", "status", *named])
        print(f"Watch:  watch -n 30 {shlex.quote(status)}\nLogs:   {sweep}/logs")
        print("Cancel: scancel", *ids)
    return ids


def show_runs(
    specs: Sequence[RunSpec],
    command: Sequence[str],
    cap: int = 64,
    after: Sequence[str] = (),
    dirty: bool = False,
) -> None:
    """Print what :func:`submit_runs` would submit, in order: the script, which is one for all
    arrays, and each array with its runs. Nothing is written.
    """
    sweep = sweep_folder(specs)
    queue: dict[int, Task] = {}
    notes = []
    try:
        queue = Submissions(sweep.parent, tasks_in_queue()).in_queue(specs)
    except ConfigError as error:
        notes.append(f"Without SLURM's queue: {error}")
    arrays = arrays_of(specs, queue, after)
    if arrays:
        code = ROOT if dirty else place_of(sweep.parent / "code")
        print(script_head(specs, command, sweep, code))
        print(f"# then {' and '.join(f'launch/{name}' for name in BODY)}\n")
    for array in arrays:
        print("# sbatch", *array.options(cap, "<the array above>"))
        for number in array.numbers:
            print(f"#   {number}: {specs[number].line}")
    try:
        if arrays and not dirty:
            check_committed()
    except ConfigError as error:
        notes.append(f"It will be refused: {error}")
    print("#", counts(specs, queue, arrays), *notes)


def print_defaults(words: Sequence[str]) -> None:
    """Say which limits of a run nobody has chosen."""
    unset = [key for key in UNITS if key not in chosen_options(words)]
    if unset:
        limits = " and ".join(f"{DEFAULTS[key]} {UNITS[key]}" for key in unset)
        names = " and ".join(f"slurm.{key}=" for key in unset)
        print(f"Each run has {limits}; {names} or {cluster.CLUSTER} changes that.")


def sweep_folder(specs: Sequence[RunSpec]) -> Path:
    """Find ``<runs>/.sweeps/<name>``: the name is a function of the runs and of this place."""
    sweeps = Path(specs[0].config.runs).expanduser().resolve() / ".sweeps"
    text = "\n".join([str(sweeps), *(spec.line for spec in specs)])
    return sweeps / hashlib.sha256(text.encode()).hexdigest()[:10]


def arrays_of(
    specs: Sequence[RunSpec], queue: Mapping[int, Task], after: Sequence[str]
) -> list[Array]:
    """Submit an array for each level of the runs that are neither done nor in the queue.

    An array begins when those of the lower levels have ended (``afterany``: one failed run must not
    cost the others, and a run whose base failed says so itself).
    """
    todo = [i for i, spec in enumerate(specs) if i not in queue and (spec.anew or not spec.done)]
    arrays: list[Array] = []
    for level in sorted({specs[i].level for i in todo}):
        before = {task.array for i, task in queue.items() if specs[i].level < level}
        numbers = [i for i in todo if specs[i].level == level]
        arrays.append(Array(numbers, [*after, *sorted(before)], follows=bool(arrays)))
    return arrays


def counts(specs: Sequence[RunSpec], queue: Mapping[int, Task], arrays: Sequence[Array]) -> str:
    """Say how many runs are done, in the queue and to be submitted."""
    todo = sum(len(array.numbers) for array in arrays)
    done = len(specs) - todo - len(queue)
    return f"{len(specs)} runs: {done} done, {len(queue)} in the queue, {todo} to submit."


def chosen_options(words: Sequence[str]) -> dict[str, Any]:
    """Collect the options of sbatch, and ``setup``, that the user has chosen: launch/cluster.yaml,
    then ``slurm.<option>=<value>`` among the words.
    """
    options = cluster.cluster_settings()
    for word in words:
        if word.startswith("slurm."):
            option, _, value = word.removeprefix("slurm.").partition("=")
            options[option.replace("_", "-")] = [value] if option == "setup" else value
    return options


def sbatch_options(specs: Sequence[RunSpec], words: Sequence[str]) -> dict[str, Any]:
    """Collect the options of sbatch, and ``setup``: what the devices take, and what is chosen."""
    devices = {(spec.config.trainer.nodes, spec.config.trainer.devices) for spec in specs}
    if len(devices) > 1:
        raise ConfigError("runs of one sweep need equal trainer.nodes and trainer.devices.")
    nodes, per_node = devices.pop()
    options = chosen_options(words)
    on_gpus = any(
        spec.config.trainer.accelerator == "gpu"
        or (spec.config.trainer.accelerator == "auto" and spec.config.trainer.strategy != "auto")
        for spec in specs
    )
    if on_gpus and not re.search("gpu|gres|tres", " ".join(options)):
        options["gpus-per-node"] = str(per_node)
    return {"nodes": str(nodes), "ntasks-per-node": str(per_node), **DEFAULTS, **options}


def submit_workers(
    count: int, spec: RunSpec, command: Sequence[str], folder: Path, dirty: bool = False
) -> str:
    """Submit an array of workers that all do ``tape-exp <command>``; the id of the array.

    Args:
        count: of the workers.
        spec: a run like theirs, whose devices they take.
        command: ``["tune", "model=rope"]``, without ``--slurm``.
        folder: of the script, the list of the workers and their logs.
        dirty: run the files that are there, and no copy of the last commit.
    """
    require_sbatch()
    module, *words = command
    code = ROOT if dirty else snapshot(sweep_folder([spec]).parent / "code")
    own = [word for word in words if not word.startswith("slurm.")]
    workers = [replace(spec, overrides=own) for _ in range(count)]
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    write_specs(workers, folder)
    head = script_head(workers, command, folder, code, f"tape_exp.{module}")
    write_atomically(folder / "script.sh", job_script(head))
    job = sbatch([f"--array=0-{count - 1}", str(folder / "script.sh")])
    print(f"Submitted job {job}: {count} workers.\nLogs:   {folder}/logs\nCancel: scancel {job}")
    return job


def script_head(
    specs: Sequence[RunSpec], command: Sequence[str], sweep: Path, code: Path, module: str = ""
) -> str:
    """Write the head of the script of every task: options of sbatch, the lines of ``setup``, and
    which code runs (or a module's, which is no run).
    """
    options = sbatch_options(specs, command)
    log = {"output": f"{sweep}/logs/%a.txt", "open-mode": "append"}
    fixed = {"job-name": f"{NAME}{sweep.name}", "chdir": str(Path.cwd()), **log}
    setup = options.pop("setup", [])
    lines = [f"#SBATCH {quoted(flag)}" for flag in cluster.flags({**options, **fixed})]
    train = ["-m", "tape_exp.training"] if INSTALLED else [str(code / "train.py")]
    if module:
        train = ["-m", module]
        if not INSTALLED:  # -P: the folder in which the job runs may be another copy of the code
            train = ["-P", *train]
            path = shlex.quote(str(code))
            setup = [*setup, f"export PYTHONPATH={path}${{PYTHONPATH:+:$PYTHONPATH}}"]
    if setup:  # a job without its modules would run in another environment
        setup = [STOP_AT_ERROR, *setup, "trap - ERR"]
    head = ["#!/bin/bash", f"# {shlex.join(['tape-exp', *command])}", *lines, "", *setup]
    head += [f"sweep={shlex.quote(str(sweep))}", f"train=({shlex.join([sys.executable, *train])})"]
    return "\n".join(head) + "\n"


def job_script(head: str) -> str:
    """Write the script of every task: its head, then the files of launch/ as they are now."""
    body = [(ROOT / "launch" / name).read_text(encoding="utf-8") for name in BODY]
    return "\n".join([head, *body])


def quoted(flag: str) -> str:
    """Write ``--qos='a b'`` for ``--qos=a b``, as sbatch reads it in a script."""
    option, equals, value = flag.partition("=")
    return f"{option}={shlex.quote(value)}" if equals else option


def require_sbatch() -> None:
    """Raise :class:`ConfigError` on a machine that cannot submit."""
    if which("sbatch") is None:
        raise ConfigError("this machine has no sbatch: give the same command on the cluster.")


def sbatch(arguments: Sequence[str]) -> str:
    """Submit a job and return its id."""
    require_sbatch()
    try:
        said = slurm_says("sbatch", "--parsable", *arguments)
    except ConfigError as error:
        raise ConfigError(
            f"{error} Its options are those of slurm.<option>= and of {cluster.CLUSTER}."
        ) from error
    return said.strip().splitlines()[-1].split(";")[0]
