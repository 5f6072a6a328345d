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

import yaml
from filelock import FileLock

from tape_exp.launch import slurm
from tape_exp.launch.grid import runs_of, sweep_folder
from tape_exp.launch.slurm import SweepRun, write_runs
from tape_exp.machine.files import write_atomically
from tape_exp.settings.commands import command
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.folders import HERE, INSTALLED, ROOT
from tape_exp.training.from_config import blank_parts

CLUSTER = HERE / "conf" / "local" / "cluster.yaml"
LOCK_SECONDS = 60.0
# SLURM sends USR1 two minutes before the end of the time: the run saves and ends with status 85.
DEFAULTS = {"time": "240", "cpus-per-task": "2", "signal": "USR1@120", "requeue": "true"}
TASK = """
# Each task of the array is one run, a line of jobs.tsv. srun starts a process for each device, and
# forwards signals to all of them.
line=$(sed -n "$((SLURM_ARRAY_TASK_ID + 1))p" "$sweep/jobs.tsv" | cut -f 1)
eval "words=($line)"
job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
echo "== job $job, start $((${SLURM_RESTART_COUNT:-0} + 1)): $line"
export PYTHONUNBUFFERED=1  # the log can be followed
export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1}
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$SRUN_CPUS_PER_TASK}
insist() {  # SLURM's controller may not answer at once, least of all when it preempts many jobs
    for pause in 1 2 4 8 0; do
        "$@" && return 0
        sleep $pause
    done
    return 1
}
status=0
srun --kill-on-bad-exit=1 "${train[@]}" "${words[@]}" || status=$?
# 85: the run was told to stop, and has saved. A job that scancel ends is no longer RUNNING; one of
# which SLURM says nothing is requeued.
if [ $status -eq 85 ]; then
    state=$(insist squeue --noheader --format=%T --jobs=$job) || state=RUNNING
    if [ "$state" = RUNNING ]; then
        insist scontrol requeue $job || echo "error: $job cannot be requeued; submit it again."
    fi
fi
exit $status
"""


@command
def main(arguments: Sequence[str] | None = None) -> int:
    """Submit what is missing, and print how to watch it."""
    parser = argparse.ArgumentParser("tape-exp sweep", description="Submit a grid to SLURM.")
    parser.add_argument("--dry-run", action="store_true", help="print what would be submitted")
    parser.add_argument("--cap", type=int, default=64, help="runs at once (default: %(default)s)")
    words_help = "key=value,value; or artifacts, scale=, seeds=; and slurm.<option of sbatch>=value"
    parser.add_argument("words", nargs="+", metavar="word", help=words_help)
    args = parser.parse_intermixed_args(arguments)
    jobs = runs_of(args.words)
    for job in jobs:
        if not job.recorded:
            blank_parts(job.cfg)
    sweep = sweep_folder(jobs)
    script = batch_script(sbatch_options(jobs, args.words), sweep, args.words)
    if args.dry_run:
        print(script, *(f"# {i}: {job.line}" for i, job in enumerate(jobs)), sep="\n")
        return 0
    sweep.mkdir(parents=True, exist_ok=True)
    with FileLock(sweep / ".lock", timeout=LOCK_SECONDS):  # a second command finds a full queue
        (sweep / "logs").mkdir(exist_ok=True)
        write_runs(jobs, sweep)
        write_atomically(sweep / "script.sh", script)
        ids = submit(jobs, sweep, args.cap)
    if ids:
        status = shlex.join(["tape-exp", "status", *args.words])
        print(f"Watch:  watch -n 30 {shlex.quote(status)}\nLogs:   {sweep}/logs")
        print("Cancel: scancel", *ids)
    return 0


def submit(jobs: Sequence[SweepRun], sweep: Path, cap: int) -> list[str]:
    """Submit the runs that are neither finished nor in the queue, an array for each level.

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
        if needed := sorted(before) + ids[-1:]:
            options.append(f"--dependency=afterany:{':'.join(needed)}")
        ids.append(slurm.sbatch([*options, str(sweep / "script.sh")]))
        print(f"Submitted job {ids[-1]} ({' '.join(options)}).")
    return ids


def sbatch_options(jobs: Sequence[SweepRun], words: Sequence[str]) -> dict[str, Any]:
    """The options of sbatch, and ``setup``: what the devices take, then conf/local/cluster.yaml,
    then ``slurm.<option>=<value>`` among the words.
    """
    devices = {(job.cfg.trainer.nodes, job.cfg.trainer.devices) for job in jobs}
    if len(devices) > 1:
        raise ConfigError("runs of one sweep need equal trainer.nodes and trainer.devices.")
    nodes, per_node = devices.pop()
    text = CLUSTER.read_text(encoding="utf-8") if CLUSTER.exists() else ""
    chosen = yaml.load(text, yaml.BaseLoader) or {}  # all values are text: 24:00:00 is no number
    if not isinstance(chosen, dict):
        raise ConfigError(f"{CLUSTER} must hold <option>: <value>; see conf/local/example.yaml.")
    for word in words:
        if word.startswith("slurm."):
            option, _, value = word.removeprefix("slurm.").partition("=")
            chosen[option] = value
    options = {option.replace("_", "-"): value for option, value in chosen.items()}
    on_gpus = any(
        job.cfg.trainer.accelerator == "gpu"
        or (job.cfg.trainer.accelerator == "auto" and job.cfg.trainer.strategy != "auto")
        for job in jobs
    )
    if on_gpus and not re.search("gpu|gres|tres", " ".join(options)):
        options["gpus-per-node"] = str(per_node)
    return {"nodes": str(nodes), "ntasks-per-node": str(per_node), **DEFAULTS, **options}


def batch_script(options: dict[str, Any], sweep: Path, words: Sequence[str]) -> str:
    """The script of every task: options of sbatch, the line or lines of ``setup``, and the run.

    An option that is ``true`` is a flag; one that is ``false`` or has no value is left out.
    """
    log = {"output": f"{sweep}/logs/%a.txt", "open-mode": "append"}
    fixed = {"job-name": f"tape_exp-{sweep.name}", "chdir": str(Path.cwd()), **log}
    flags = [
        f"#SBATCH --{option}" + ("" if value == "true" else f"={shlex.quote(value)}")
        for option, value in {**options, **fixed}.items()
        if option != "setup" and value not in ("false", "null", "")
    ]
    train = ["-m", "tape_exp.training"] if INSTALLED else [str(ROOT / "train.py")]
    command = shlex.join(["tape-exp", "sweep", *words])
    setup = options.get("setup", [])
    lines = [setup] if isinstance(setup, str) else setup
    head = ["#!/bin/bash", f"# {command}", *flags, "", *lines]
    head += [f"sweep={shlex.quote(str(sweep))}", f"train=({shlex.join([sys.executable, *train])})"]
    return "\n".join(head) + "\n" + TASK


if __name__ == "__main__":
    sys.exit(main())
