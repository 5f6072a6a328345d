"""Runs as one array of jobs of SLURM: submission, and the queue.

The script, the list of runs and their logs are in ``<runs>/.sweeps/<name>/``, where the name is a
function of the runs and of the place. The same command submits only the runs that are neither
finished nor in the queue; they resume from their last checkpoints.
"""

import hashlib
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from filelock import FileLock

from tape_exp.experiments import cluster
from tape_exp.experiments.run_spec import RunSpec, write_specs
from tape_exp.experiments.snapshot import snapshot
from tape_exp.machine.files import write_atomically
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.folders import INSTALLED, ROOT

LOCK_SECONDS = 60.0
# SLURM sends USR1 two minutes before the end of the time: the run saves and ends with status 85.
DEFAULTS = {"time": "240", "cpus-per-task": "2", "signal": "USR1@120", "requeue": "true"}
UNITS = {"time": "minutes", "cpus-per-task": "CPUs for each process"}


def submit(
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
    code = ROOT if dirty else snapshot(sweep.parent / "code")
    script = batch_script(specs, command, sweep, code)
    sweep.mkdir(parents=True, exist_ok=True)
    with FileLock(sweep / ".lock", timeout=LOCK_SECONDS):  # a second command finds a full queue
        (sweep / "logs").mkdir(exist_ok=True)
        write_specs(specs, sweep)
        write_atomically(sweep / "script.sh", script)
        ids = submit_levels(specs, sweep, cap, after)
    if ids:
        print_defaults(sbatch_options(specs, command))
        runs = sweep.parents[1]
        elsewhere = [] if runs == Path("runs").resolve() else ["--runs", str(runs)]
        named = command[1:] if command[0] == "sweep" else elsewhere
        status = shlex.join(["tape-exp", "status", *named])
        print(f"Watch:  watch -n 30 {shlex.quote(status)}\nLogs:   {sweep}/logs")
        print("Cancel: scancel", *ids)
    return ids


def print_defaults(options: dict[str, Any]) -> None:
    """Say which limits of a run nobody has chosen."""
    unset = [key for key in UNITS if options[key] == DEFAULTS[key]]
    if unset:
        limits = " and ".join(f"{options[key]} {UNITS[key]}" for key in unset)
        names = " and ".join(f"slurm.{key}=" for key in unset)
        print(f"Each run has {limits}; {names} or {cluster.CLUSTER} changes that.")


def sweep_folder(specs: Sequence[RunSpec]) -> Path:
    """``<runs>/.sweeps/<name>``, where the name is a function of the runs and of this place."""
    sweeps = Path(specs[0].config.runs).expanduser().resolve() / ".sweeps"
    text = "\n".join([str(sweeps), *(spec.line for spec in specs)])
    return sweeps / hashlib.sha256(text.encode()).hexdigest()[:10]


def submit_levels(
    specs: Sequence[RunSpec], sweep: Path, cap: int, after: Sequence[str] = ()
) -> list[str]:
    """Submit an array for each level of runs, and return the ids of the arrays.

    An array begins when those of the lower levels have ended (``afterany``: one failed run must not
    cost the others, and a run whose base failed says so itself).
    """
    try:
        queue = queued(sweep.name)
    except ConfigError as error:
        raise ConfigError(
            f"{error} Nothing is submitted, since these runs may be in the queue: give the same "
            "command where and when squeue answers."
        ) from error
    todo = [i for i, spec in enumerate(specs) if i not in queue and (spec.anew or not spec.done)]
    done = len(specs) - len(todo) - len(queue)
    print(f"{len(specs)} runs: {done} done, {len(queue)} in the queue, {len(todo)} to submit.")
    ids: list[str] = []
    for level in sorted({specs[i].level for i in todo}):
        before = {array for i, (_, array) in queue.items() if specs[i].level < level}
        tasks = ",".join(str(i) for i in todo if specs[i].level == level)
        options = [f"--array={tasks}%{cap}"]
        needed = [*after, *sorted(before), *ids[-1:]]
        if needed:
            options.append(f"--dependency=afterany:{':'.join(needed)}")
        ids.append(sbatch([*options, str(sweep / "script.sh")]))
        print(f"Submitted job {ids[-1]} ({' '.join(options)}).")
    return ids


def sbatch_options(specs: Sequence[RunSpec], words: Sequence[str]) -> dict[str, Any]:
    """The options of sbatch, and ``setup``: what the devices take, then launch/cluster.yaml,
    then ``slurm.<option>=<value>`` among the words.
    """
    devices = {(spec.config.trainer.nodes, spec.config.trainer.devices) for spec in specs}
    if len(devices) > 1:
        raise ConfigError("runs of one sweep need equal trainer.nodes and trainer.devices.")
    nodes, per_node = devices.pop()
    options = cluster.cluster_settings()
    for word in words:
        if word.startswith("slurm."):
            option, _, value = word.removeprefix("slurm.").partition("=")
            options[option.replace("_", "-")] = [value] if option == "setup" else value
    on_gpus = any(
        spec.config.trainer.accelerator == "gpu"
        or (spec.config.trainer.accelerator == "auto" and spec.config.trainer.strategy != "auto")
        for spec in specs
    )
    if on_gpus and not re.search("gpu|gres|tres", " ".join(options)):
        options["gpus-per-node"] = str(per_node)
    return {"nodes": str(nodes), "ntasks-per-node": str(per_node), **DEFAULTS, **options}


def submit_workers(count: int, spec: RunSpec, command: Sequence[str], folder: Path) -> str:
    """Submit an array of workers that all do ``tape-exp <command>``; the id of the array.

    Args:
        count: of the workers.
        spec: a run like theirs, whose devices they take.
        command: ``["tune", "model=rope"]``, without ``--slurm``.
        folder: of the script, the list of the workers and their logs.
    """
    module, *words = command
    workers = [replace(spec, overrides=words) for _ in range(count)]
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    write_specs(workers, folder)
    script = batch_script(workers, command, folder, ROOT, f"tape_exp.{module}")
    write_atomically(folder / "script.sh", script)
    job = sbatch([f"--array=0-{count - 1}", str(folder / "script.sh")])
    print(f"Submitted job {job}: {count} workers.\nLogs:   {folder}/logs\nCancel: scancel {job}")
    return job


def batch_script(
    specs: Sequence[RunSpec], command: Sequence[str], sweep: Path, code: Path, module: str = ""
) -> str:
    """The script of every task: options of sbatch, the lines of ``setup``, which code runs (or a
    module's, which is no run), and ``launch/job.sh`` and ``launch/array.sh`` as they are now.
    """
    options = sbatch_options(specs, command)
    log = {"output": f"{sweep}/logs/%a.txt", "open-mode": "append"}
    fixed = {"job-name": f"tape_exp-{sweep.name}", "chdir": str(Path.cwd()), **log}
    setup = options.pop("setup", [])
    lines = [f"#SBATCH {quoted(flag)}" for flag in cluster.flags({**options, **fixed})]
    train = ["-m", "tape_exp.training"] if INSTALLED else [str(code / "train.py")]
    if module:
        train = ["-m", module]
    head = ["#!/bin/bash", f"# {shlex.join(['tape-exp', *command])}", *lines, "", *setup]
    head += [f"sweep={shlex.quote(str(sweep))}", f"train=({shlex.join([sys.executable, *train])})"]
    body = [(ROOT / "launch" / name).read_text(encoding="utf-8") for name in ("job.sh", "array.sh")]
    return "\n".join([*head, "", *body])


def quoted(flag: str) -> str:
    """``--qos='a b'`` of ``--qos=a b``, as sbatch reads it in a script."""
    option, equals, value = flag.partition("=")
    return f"{option}={shlex.quote(value)}" if equals else option


def queued(sweep: str) -> dict[int, tuple[str, str]]:
    """The user's tasks of a sweep that are in the queue: SLURM's word for the state of each, and
    the id of its array, ``{3: ("PENDING", "41")}``.

    Raises:
        ConfigError: there is no squeue, or it does not answer: the queue may hold anything.
    """
    command = ["squeue", "--me", "--noheader", "--array", f"--name=tape_exp-{sweep}"]
    try:
        rows = map(str.split, _run(*command, "--format=%K %T %F").splitlines())
    except FileNotFoundError:
        raise ConfigError("this machine has no squeue.") from None
    return {int(row[0]): (row[1], row[2]) for row in rows if len(row) == 3}


def sbatch(arguments: Sequence[str]) -> str:
    """Submit a job and return its id."""
    return _run("sbatch", "--parsable", *arguments).strip().splitlines()[-1].split(";")[0]


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace")
    if done.returncode:
        reason = " ".join(done.stderr.split()).rstrip(".") or "it gives no reason"
        raise ConfigError(f"{command[0]} failed: {reason}.")
    return done.stdout
