"""Sweeps on a real SLURM: a run preempted by its signal and a run killed end as if undisturbed, on
one node or two.
"""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tape_exp.runs.directory import RunDirectory
from tape_exp.runs.metrics import read_metrics
from tape_exp.settings.compose import compose_config
from tape_exp.settings.folders import ROOT
from tape_exp.sweep import main
from tests.conftest import SMALL
from tests.slurm.cluster import ask, cluster, missing, wait_for

pytestmark = [pytest.mark.slurm, pytest.mark.skipif(missing() is not None, reason=str(missing()))]
pytestmark += [pytest.mark.timeout(400)]

GRID = ["model=rope,nope", "seed=0,1"]
STEPS = 800
FIXED = ["trainer=cpu", "logger=none", *SMALL, "task.train_digits=2", "task.test_digits=3"]
FIXED += ["task.samples_per_cell=4"]
FIXED += [f"task.optim.max_steps={STEPS}", "trainer.log_every=1", "trainer.checkpoint_every=10"]
FIXED += ["trainer.validate_every=100"]
SLURM = ["slurm.cpus-per-task=1", "slurm.time=10"]
TIMES = ("seconds", "train/tokens_per_second", "train/data_wait")


@pytest.fixture(scope="module")
def slurm():
    """The environment of a cluster of this module's own."""
    with tempfile.TemporaryDirectory(prefix="slurm", ignore_cleanup_errors=True) as folder:
        os.chmod(folder, 0o755)  # munge refuses a socket below a closed folder
        with cluster(Path(folder)) as environment:
            yield {**environment, "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> Path:
    """The four runs, one after the other in one process."""
    folder = tmp_path_factory.mktemp("undisturbed")
    train("-m", *GRID, folder=folder)
    return folder


def train(*words: str, folder: Path) -> None:
    """Train here, without SLURM."""
    command = [sys.executable, "train.py", *words, *FIXED, f"runs={folder}"]
    subprocess.run(command, cwd=ROOT, check=True, timeout=300)


def place(folder: Path, model: str, seed: int) -> Path:
    return RunDirectory(
        compose_config([f"model={model}", f"seed={seed}", *FIXED, f"runs={folder}"])
    ).path


def curve(path: Path) -> list[dict]:
    return [
        {key: row[key] for key in row if key not in TIMES}
        for row in read_metrics(path / "metrics.jsonl")
    ]


def reached(path: Path, step: int) -> bool:
    file = path / "metrics.jsonl"
    return file.exists() and any(row["step"] >= step for row in read_metrics(file))


def task_of(pid: int) -> str:
    """The task of an array that a process belongs to, ``12_3``."""
    told = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    variables = dict(entry.decode().split("=", 1) for entry in told if b"=" in entry)
    return f"{variables['SLURM_ARRAY_JOB_ID']}_{variables['SLURM_ARRAY_TASK_ID']}"


def process_of(path: Path) -> int:
    """The process that holds a run's log open."""
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if os.readlink(link) == str(path / "log.txt"):
                return int(link.parts[2])
        except OSError:  # it has gone
            continue
    raise AssertionError(f"no process writes {path}/log.txt")


def disturb(slurm: dict[str, str], folder: Path) -> None:
    """Preempt rope's first run with the signal that SLURM sends, and kill nope's second with
    SIGKILL.
    """
    preempted, killed = place(folder, "rope", 0), place(folder, "nope", 1)
    wait_for(lambda: reached(preempted, 40), 120, folder)
    task = task_of(process_of(preempted))
    assert not (preempted / "DONE").exists()
    subprocess.run(["scancel", "--signal=USR1", task], env=slurm, check=True)
    wait_for(lambda: reached(killed, 40), 120, folder)
    os.kill(process_of(killed), signal.SIGKILL)
    assert not (killed / "DONE").exists()


def idle(slurm: dict[str, str]) -> bool:
    return not ask(slurm, "squeue", "--noheader")


def test_array_of_a_sweep(slurm, undisturbed, tmp_path, monkeypatch, capsys):
    words = [*GRID, *FIXED, *SLURM, f"runs={tmp_path}"]
    command = [sys.executable, "-m", "tape_exp.sweep", "sweep", "--dirty", "--cap", "3"]
    command += words
    # imports all, so that the runs below still run
    assert main(["sweep", "--dry-run", *words]) == 0
    capsys.readouterr()
    said = subprocess.run(
        command, cwd=ROOT, env=slurm, check=True, capture_output=True, text=True, timeout=100
    ).stdout
    assert "0 done, 0 in the queue, 4 to submit" in said
    assert "--array=0,1,2,3%3" in said
    assert ask(slurm, "squeue", "--noheader"), "the sweep was over when the prompt came back"
    for name, value in slurm.items():
        monkeypatch.setenv(name, value)
    assert main(["sweep", "--dirty", *words]) == 0
    assert "0 done, 4 in the queue, 0 to submit" in capsys.readouterr().out
    disturb(slurm, tmp_path)
    wait_for(lambda: idle(slurm), 120, tmp_path)
    assert main(["status", *words]) == 0
    said = capsys.readouterr().out
    assert "3 done, 1 failed" in said
    assert "Killed" in said
    assert main(["sweep", "--dirty", *words]) == 0
    assert "3 done, 0 in the queue, 1 to submit" in capsys.readouterr().out
    wait_for(lambda: idle(slurm), 120, tmp_path)
    assert main(["status", "--runs", str(tmp_path)]) == 0
    assert "4 done" in capsys.readouterr().out
    check(tmp_path, undisturbed)


def test_a_run_on_two_nodes(slurm, tmp_path, monkeypatch):
    """A process on each, preempted once: bit for bit the losses of two processes on one node."""
    words = ["model=rope", *FIXED, *SLURM, "trainer.nodes=2", f"runs={tmp_path}"]
    one_node = tmp_path / "one_node"
    train("model=rope", "trainer.devices=2", folder=one_node)
    # Both nodes are this machine, whose name stands for neither.
    environment = {**slurm, "MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}
    for name, value in environment.items():  # sbatch hands them on to the job
        monkeypatch.setenv(name, value)
    assert main(["sweep", "--dirty", *words]) == 0
    run = place(tmp_path, "rope", 0)
    wait_for(lambda: reached(run, 40), 200, tmp_path)
    (job,) = ask(slurm, "squeue", "--noheader", "--format=%F %D %N").splitlines()
    assert job.split()[1:] == ["2", "node[1-2]"]
    subprocess.run(["scancel", "--signal=USR1", f"{job.split()[0]}_0"], env=slurm, check=True)
    wait_for(lambda: idle(slurm), 200, tmp_path)
    assert (run / "DONE").exists(), (run / "log.txt").read_text()
    assert "Resuming from step" in (run / "log.txt").read_text()
    assert curve(run) == curve(place(one_node, "rope", 0))


def check(folder: Path, undisturbed: Path) -> None:
    """Every run is DONE with the losses of the undisturbed one, bit for bit, and the two disturbed
    ones went on.
    """
    for model in ("rope", "nope"):
        for seed in (0, 1):
            run = place(folder, model, seed)
            assert (run / "DONE").read_text() == (
                place(undisturbed, model, seed) / "DONE"
            ).read_text()
            assert curve(run) == curve(place(undisturbed, model, seed)), (model, seed)
    for model, seed in (("rope", 0), ("nope", 1)):
        assert "Resuming from step" in (place(folder, model, seed) / "log.txt").read_text()
