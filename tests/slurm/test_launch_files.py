"""Files of launch/ and Hydra's launcher on a real SLURM: runs save, are requeued and resume."""

import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tape_exp.runs.directory import RunDirectory
from tape_exp.settings.compose import compose_config
from tape_exp.settings.folders import ROOT
from tests.conftest import on_text
from tests.slurm.cluster import ask, wait_for
from tests.slurm.test_slurm import FIXED, curve, idle, place, reached, slurm, train
from tests.slurm.test_slurm import pytestmark as of_slurm

__all__ = ["slurm"]
pytestmark = [*of_slurm, pytest.mark.timeout(1800)]

LAUNCH = ROOT / "launch"
BRIEF = [word for word in FIXED if "max_steps" not in word] + ["task.optim.max_steps=5"]


@pytest.fixture
def there(slurm, tmp_path) -> tuple[Path, dict[str, str]]:
    """A folder as a user has it: launch/ is copied, tape-exp on the path."""
    shutil.copytree(LAUNCH, tmp_path / "launch")
    program = tmp_path / "bin" / "tape-exp"
    program.parent.mkdir()
    program.write_text(f'#!/bin/bash\nexec {sys.executable} -m tape_exp "$@"\n')
    program.chmod(0o755)
    path = os.pathsep.join((str(program.parent), slurm["PATH"]))
    return tmp_path, {**slurm, "PATH": path, "PYTHONPATH": str(ROOT)}


def submit(there: tuple[Path, dict[str, str]], *words: str) -> str:
    """``tape-exp submit words``; the job's id."""
    folder, environment = there
    command = ["tape-exp", "submit", *words]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert not done.returncode, done.stderr
    return re.findall(r"Submitted job (\d+)", done.stdout)[0]


def end(there: tuple[Path, dict[str, str]], seconds: int = 600) -> None:
    folder, environment = there
    wait_for(lambda: idle(environment), seconds, folder)


def state(environment: dict[str, str], job: str) -> str:
    return re.findall(r"JobState=(\w+)", ask(environment, "scontrol", "show", "job", job))[0]


@pytest.mark.parametrize("file", sorted(LAUNCH.glob("*.sbatch")), ids=lambda path: path.name)
def test_sbatch_takes_each_file(there, file):
    """This cluster has no GPUs, and nodes of four CPUs."""
    folder, environment = there
    options = ["--test-only", "--gpus-per-node=0", "--ntasks-per-node=1", "--mem=0"]
    options += ["--cpus-per-task=1"]
    command = ["sbatch", *options, f"launch/{file.name}", "model=rope"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert not done.returncode, done.stderr


def test_one_run_is_preempted_and_resumes(there, tmp_path):
    (tmp_path / "launch" / "cluster.yaml").write_text("time: 10\nsetup: export SAID=by_setup\n")
    job = submit(there, "launch/run.sbatch", "model=rope", *FIXED, f"runs={tmp_path}")
    run = place(tmp_path, "rope", 0)
    wait_for(lambda: reached(run, 40), 600, tmp_path)
    subprocess.run(["scancel", "--signal=USR1", job], env=there[1], check=True)
    end(there)
    assert (run / "DONE").exists(), (tmp_path / f"run-{job}.txt").read_text()
    assert "Resuming from step" in (run / "log.txt").read_text()
    train("model=rope", folder=tmp_path / "undisturbed")
    assert curve(run) == curve(place(tmp_path / "undisturbed", "rope", 0))


def test_a_cancelled_run_is_not_requeued(there, tmp_path):
    job = submit(there, "launch/run.sbatch", "model=rope", *FIXED, f"runs={tmp_path}")
    run = place(tmp_path, "rope", 0)
    wait_for(lambda: reached(run, 40), 600, tmp_path)
    subprocess.run(["scancel", job], env=there[1], check=True)
    end(there)
    assert state(there[1], job) == "CANCELLED"
    assert not (run / "DONE").exists()


def test_a_run_on_two_nodes(there, tmp_path):
    folder, environment = there
    environment |= {"MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}
    options = ["--ntasks-per-node=1", "--gpus-per-node=0"]
    words = ["model=rope", "trainer.nodes=2", *BRIEF, f"runs={tmp_path}"]
    job = submit((folder, environment), *options, "launch/multinode.sbatch", *words)
    end(there)
    (done,) = tmp_path.glob("arithmetic/smoke/rope/*/DONE")
    assert done.exists(), (tmp_path / f"multinode-{job}.txt").read_text()


def test_workers_share_a_search(there, tmp_path):
    space = ["task.optim.lr=choice(1e-3,2e-3,3e-3)", "--trials=3"]
    words = ["model=rope", "task=arithmetic", *space, *BRIEF, f"runs={tmp_path}"]
    submit(there, "--array=0-1", "--cpus-per-task=1", "launch/tune.sbatch", *words)
    end(there)
    printed = [path.read_text() for path in tmp_path.glob("tune-*_*.txt")]
    assert len(printed) == 2
    assert len([*tmp_path.glob("arithmetic/smoke/rope/*/DONE")]) in (1, 2, 3), printed


def test_tokens_are_made_and_nothing_is_trained(there, tmp_path, text_folder):
    words = ["task=c4", "model=rope", *on_text(text_folder), f"runs={tmp_path}/runs"]
    options = ["--time=10", "--mem=0", "--gpus-per-node=0"]  # jobs here have an hour at most
    job = submit(there, *options, "launch/tokenize.sbatch", *words)
    end(there)
    printed = (tmp_path / f"tokenize-{job}.txt").read_text()
    assert f"are in {text_folder}/cache" in printed
    assert [*(text_folder / "cache").iterdir()]
    assert not (tmp_path / "runs").exists()


@pytest.mark.skipif(not find_spec("submitit"), reason="hydra-submitit-launcher is not installed")
def test_hydras_jobs_are_requeued_and_a_failed_one_costs_no_other(slurm, tmp_path):
    words = ["-m", "hydra/launcher=slurm", "hydra.launcher.timeout_min=10", "model=rope"]
    words += ["hydra.launcher.cpus_per_task=1", "task.optim.lr=1e-3,1e30", *FIXED]
    command = [sys.executable, "train.py", *words, f"runs={tmp_path}"]
    environment = {**slurm, "PYTHONPATH": str(ROOT)}
    sweep = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)
    cfg = compose_config(["model=rope", *FIXED, "task.optim.lr=1e-3", f"runs={tmp_path}"])
    run = RunDirectory(cfg).path
    wait_for(lambda: reached(run, 40), 600, tmp_path)
    tasks = ask(slurm, "squeue", "--noheader", "--format=%i", "--state=RUNNING").split()
    for task in tasks:
        subprocess.run(["scancel", "--signal=USR1", task], env=slurm, check=True)
    assert sweep.wait(600) == 1
    assert "Error executing job with overrides" in sweep.stderr.read()
    assert (run / "DONE").exists()
    assert "Resuming from step" in (run / "log.txt").read_text()
    assert len([*tmp_path.glob("arithmetic/smoke/rope/*/FAILED")]) == 1
