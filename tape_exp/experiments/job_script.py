"""The script of a job array of SLURM: a head of options, setup and program, then launch/*.sh."""

import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from tape_exp.experiments import cluster
from tape_exp.experiments.cluster import JobSettings, chosen_settings, flags
from tape_exp.experiments.queue import NAME
from tape_exp.experiments.run_spec import RunSpec
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.folders import INSTALLED, ROOT

# SLURM sends USR1 two minutes before the end of the time: the run saves and ends with status 85.
DEFAULTS = {"time": "240", "cpus-per-task": "2", "signal": "USR1@120", "requeue": "true"}
UNITS = {"time": "minutes", "cpus-per-task": "CPUs for each process"}
BODY = ("job.sh", "array.sh")  # of launch/, behind the head of every script
STOP_AT_ERROR = (
    """trap 'echo "error: setup of launch/cluster.yaml: $BASH_COMMAND failed."; exit 1' ERR"""
)


def job_script(head: str) -> str:
    """Write the script of every task: its head, then the files of launch/ as they are now."""
    body = [(ROOT / "launch" / name).read_text(encoding="utf-8") for name in BODY]
    return "\n".join([head, *body])


def script_head(
    specs: Sequence[RunSpec],
    command: Sequence[str],
    sweep: Path,
    code: Path,
    module: str = "",
    name: str = "",
) -> str:
    """Write the head of the script of every task: options of sbatch, the lines of ``setup``, and
    the program, whose arguments ``launch/array.sh`` reads from the sweep's ``jobs.tsv``.

    Args:
        command: what the user gave, ``["sweep", "model=rope", "slurm.mem=8G"]``.
        sweep: the folder of the script, the list of runs and the logs.
        code: the folder of the code that is run.
        module: what to run in the place of a run, ``tape_exp.tune``.
        name: of the job, behind ``tape_exp-``; that of the sweep's folder by default.
    """
    settings = settings_of(specs, command)
    fixed = {
        "job-name": f"{NAME}{name or sweep.name}",
        "chdir": str(Path.cwd()),
        "output": f"{sweep}/logs/%a.txt",
        "open-mode": "append",
    }
    setup = settings.setup
    if module and not INSTALLED:
        setup = [*setup, f"export PYTHONPATH={shlex.quote(str(code))}${{PYTHONPATH:+:$PYTHONPATH}}"]
    if setup:  # a job without its modules would run in another environment
        setup = [STOP_AT_ERROR, *setup, "trap - ERR"]
    lines = ["#!/bin/bash", f"# {shlex.join(['tape-exp', *command])}"]
    lines += [f"#SBATCH {quoted(flag)}" for flag in flags({**settings.options, **fixed})]
    lines += ["", *setup]
    lines.append(f"sweep={shlex.quote(str(sweep))}")
    lines.append(f"train=({shlex.join([sys.executable, *program(code, module)])})")
    return "\n".join(lines) + "\n"


def program(code: Path, module: str) -> list[str]:
    """List the first arguments of Python: those of a run, or of another module."""
    if not module:
        return ["-m", "tape_exp.training"] if INSTALLED else [str(code / "train.py")]
    if INSTALLED:
        return ["-m", module]
    return ["-P", "-m", module]  # -P: the folder in which the job runs may have other code


def settings_of(specs: Sequence[RunSpec], command: Sequence[str]) -> JobSettings:
    """Collect the settings of a job: what the runs' devices take, our defaults, and on top of them
    what the user has chosen.
    """
    devices = {(spec.config.trainer.nodes, spec.config.trainer.devices) for spec in specs}
    if len(devices) > 1:
        raise ConfigError("runs of one sweep need equal trainer.nodes and trainer.devices.")
    nodes, per_node = devices.pop()
    chosen = chosen_settings(command)
    options = {"nodes": str(nodes), "ntasks-per-node": str(per_node), **DEFAULTS, **chosen.options}
    names_gpus = re.search("gpu|gres|tres", " ".join(chosen.options))
    if not names_gpus and any(map(runs_on_gpu, specs)):
        options["gpus-per-node"] = str(per_node)
    return JobSettings(options, chosen.setup)


def runs_on_gpu(spec: RunSpec) -> bool:
    """Say whether a run needs GPUs: it asks for them, or shares its work over several devices."""
    trainer = spec.config.trainer
    if trainer.accelerator == "auto":
        return trainer.strategy != "auto"
    return trainer.accelerator == "gpu"


def quoted(flag: str) -> str:
    """Write an option as sbatch reads it in a script.

    >>> quoted("--qos=a b")
    "--qos='a b'"
    """
    option, equals, value = flag.partition("=")
    return f"{option}={shlex.quote(value)}" if equals else option


def print_defaults(command: Sequence[str]) -> None:
    """Print the limits of a run that nobody has chosen."""
    chosen = chosen_settings(command).options
    unset = [option for option in UNITS if option not in chosen]
    if unset:
        limits = " and ".join(f"{DEFAULTS[option]} {UNITS[option]}" for option in unset)
        names = " and ".join(f"slurm.{option}=" for option in unset)
        print(f"Each run has {limits}; {names} or {cluster.CLUSTER} changes that.")
