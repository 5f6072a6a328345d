"""``tape-exp sweep <words>``: submit a grid of runs to SLURM as one array of jobs.

The script, the list of runs and their logs are in ``<runs>/.sweeps/<name>/``, where the name is a
function of the runs and of the place. The same command submits only the runs that are neither
finished nor in the queue; they resume from their last checkpoints.
"""

import argparse
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock

from tape_exp.launch import settings, slurm
from tape_exp.launch.grid import runs_of, sweep_folder
from tape_exp.launch.slurm import SweepRun, write_runs
from tape_exp.launch.snapshot import snapshot
from tape_exp.machine.files import write_atomically
from tape_exp.settings.commands import command
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.folders import INSTALLED, ROOT
from tape_exp.training.from_config import blank_parts

LOCK_SECONDS = 60.0
# SLURM sends USR1 two minutes before the end of the time: the run saves and ends with status 85.
DEFAULTS = {"time": "240", "cpus-per-task": "2", "signal": "USR1@120", "requeue": "true"}
UNITS = {"time": "minutes", "cpus-per-task": "CPUs for each process"}


@command
def main(arguments: Sequence[str] | None = None) -> int:
    """Submit what is missing, and print how to watch it."""
    parser = argparse.ArgumentParser("tape-exp sweep", description="Submit a grid to SLURM.")
    parser.add_argument("--dry-run", action="store_true", help="print what would be submitted")
    parser.add_argument("--cap", type=int, default=64, help="runs at once (default: %(default)s)")
    parser.add_argument("--after", help="wait for the ends of these jobs, whose ids are 41:42")
    parser.add_argument("--dirty", action="store_true", help="run no copy of the last commit")
    words_help = "key=value,value; or artifacts, scale=, seeds=; and slurm.<option of sbatch>=value"
    parser.add_argument("words", nargs="+", metavar="word", help=words_help)
    args = parser.parse_intermixed_args(arguments)
    jobs = runs_of(args.words)
    for job in jobs:
        if not job.recorded:
            blank_parts(job.cfg)
    sweep = sweep_folder(jobs)
    options = sbatch_options(jobs, args.words)
    code = ROOT if args.dirty or args.dry_run else snapshot(sweep.parent / "code")
    script = batch_script(options, sweep, args.words, code)
    if args.dry_run:
        print(script, *(f"# {i}: {job.line}" for i, job in enumerate(jobs)), sep="\n")
        return 0
    sweep.mkdir(parents=True, exist_ok=True)
    with FileLock(sweep / ".lock", timeout=LOCK_SECONDS):  # a second command finds a full queue
        (sweep / "logs").mkdir(exist_ok=True)
        write_runs(jobs, sweep)
        write_atomically(sweep / "script.sh", script)
        ids = submit(jobs, sweep, args.cap, args.after.split(":") if args.after else [])
    if ids:
        print_defaults(options)
        status = shlex.join(["tape-exp", "status", *args.words])
        print(f"Watch:  watch -n 30 {shlex.quote(status)}\nLogs:   {sweep}/logs")
        print("Cancel: scancel", *ids)
    return 0


def print_defaults(options: dict[str, Any]) -> None:
    """Say which limits of a run nobody has chosen."""
    unset = [key for key in UNITS if options[key] == DEFAULTS[key]]
    if unset:
        limits = " and ".join(f"{options[key]} {UNITS[key]}" for key in unset)
        names = " and ".join(f"slurm.{key}=" for key in unset)
        print(f"Each run has {limits}; {names} or {settings.CLUSTER} changes that.")


def submit(jobs: Sequence[SweepRun], sweep: Path, cap: int, after: Sequence[str] = ()) -> list[str]:
    """Submit the runs that are neither finished nor in the queue, an array for each level, when
    the jobs ``after`` have ended.

    Returns:
        The ids of the arrays. One begins when those of the lower levels have ended (``afterany``:
        one failed run must not cost the others, and a run whose base failed says so itself).
    """
    try:
        queue = slurm.queued(sweep.name)
    except ConfigError as error:
        raise ConfigError(
            f"{error} Nothing is submitted, since these runs may be in the queue: give the same "
            "command where and when squeue answers."
        ) from error
    todo = [i for i, job in enumerate(jobs) if i not in queue and (job.cfg.rerun or not job.done)]
    done = len(jobs) - len(todo) - len(queue)
    print(f"{len(jobs)} runs: {done} done, {len(queue)} in the queue, {len(todo)} to submit.")
    ids: list[str] = []
    for level in sorted({jobs[i].level for i in todo}):
        before = {array for i, (_, array) in queue.items() if jobs[i].level < level}
        tasks = ",".join(str(i) for i in todo if jobs[i].level == level)
        options = [f"--array={tasks}%{cap}"]
        if needed := [*after, *sorted(before), *ids[-1:]]:
            options.append(f"--dependency=afterany:{':'.join(needed)}")
        ids.append(slurm.sbatch([*options, str(sweep / "script.sh")]))
        print(f"Submitted job {ids[-1]} ({' '.join(options)}).")
    return ids


def sbatch_options(jobs: Sequence[SweepRun], words: Sequence[str]) -> dict[str, Any]:
    """The options of sbatch, and ``setup``: what the devices take, then launch/cluster.yaml,
    then ``slurm.<option>=<value>`` among the words.
    """
    devices = {(job.cfg.trainer.nodes, job.cfg.trainer.devices) for job in jobs}
    if len(devices) > 1:
        raise ConfigError("runs of one sweep need equal trainer.nodes and trainer.devices.")
    nodes, per_node = devices.pop()
    options = settings.cluster_settings()
    for word in words:
        if word.startswith("slurm."):
            option, _, value = word.removeprefix("slurm.").partition("=")
            options[option.replace("_", "-")] = [value] if option == "setup" else value
    on_gpus = any(
        job.cfg.trainer.accelerator == "gpu"
        or (job.cfg.trainer.accelerator == "auto" and job.cfg.trainer.strategy != "auto")
        for job in jobs
    )
    if on_gpus and not re.search("gpu|gres|tres", " ".join(options)):
        options["gpus-per-node"] = str(per_node)
    return {"nodes": str(nodes), "ntasks-per-node": str(per_node), **DEFAULTS, **options}


def batch_script(options: dict[str, Any], sweep: Path, words: Sequence[str], code: Path) -> str:
    """The script of every task: options of sbatch, the lines of ``setup``, which code runs, and
    ``launch/job.sh`` and ``launch/array.sh`` as they are now.
    """
    log = {"output": f"{sweep}/logs/%a.txt", "open-mode": "append"}
    fixed = {"job-name": f"tape_exp-{sweep.name}", "chdir": str(Path.cwd()), **log}
    setup = options.pop("setup", [])
    lines = [f"#SBATCH {quoted(flag)}" for flag in settings.flags({**options, **fixed})]
    train = ["-m", "tape_exp.training"] if INSTALLED else [str(code / "train.py")]
    command = shlex.join(["tape-exp", "sweep", *words])
    head = ["#!/bin/bash", f"# {command}", *lines, "", *setup]
    head += [f"sweep={shlex.quote(str(sweep))}", f"train=({shlex.join([sys.executable, *train])})"]
    body = [(ROOT / "launch" / name).read_text(encoding="utf-8") for name in ("job.sh", "array.sh")]
    return "\n".join([*head, "", *body])


def quoted(flag: str) -> str:
    """``--qos='a b'`` of ``--qos=a b``, as sbatch reads it in a script."""
    option, equals, value = flag.partition("=")
    return f"{option}={shlex.quote(value)}" if equals else option


if __name__ == "__main__":
    sys.exit(main())
