"""Runs over two hosts of two processes each: the losses of one process, a cable that is cut."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tape_exp.machine.preemption import REQUEUE
from tape_exp.runs.metrics import read_metrics
from tape_exp.settings.folders import ROOT
from tests.conftest import SMALL
from tests.hosts.network import Host, missing, two_hosts

pytestmark = [
    pytest.mark.hosts,
    pytest.mark.skipif(missing() is not None, reason=f"two hosts: {missing()}"),
]

WORDS = [*SMALL, "model=tape", "trainer=cpu", "logger=none", "trainer.log_every=1"]
WORDS += ["task.train_digits=2", "task.test_digits=3", "task.samples_per_cell=4"]
WORDS += ["task.optim.batch=8", "trainer.timeout=10"]
BOTH = ["trainer.devices=2", "trainer.nodes=2"]


@pytest.fixture
def hosts():
    with two_hosts() as pair:
        yield pair


def torchrun(hosts: tuple[Host, Host], *words: str) -> list[subprocess.Popen]:
    """One ``torchrun`` a host, which starts its two processes."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=2"]
    launcher += [f"--master-addr={hosts[0].address}", "--master-port=29511"]
    return [
        start(host, [*launcher, f"--node-rank={node}", "train.py", *WORDS, *BOTH, *words])
        for node, host in enumerate(hosts)
    ]


def srun(hosts: tuple[Host, Host], *words: str) -> list[subprocess.Popen]:
    """Four processes with the environment that ``srun`` gives its tasks."""
    shared = {"SLURM_JOB_ID": "4711", "SLURM_JOB_NAME": "sweep", "SLURM_NTASKS": "4"}
    shared |= {"SLURM_STEP_ID": "0"}
    shared |= {"SLURM_NTASKS_PER_NODE": "2", "SLURM_NNODES": "2", "MASTER_ADDR": hosts[0].address}
    shared |= {"SLURM_NODELIST": ",".join(host.address for host in hosts)}
    return [
        start(
            host,
            [sys.executable, "train.py", *WORDS, *BOTH, *words],
            **shared,
            SLURM_NODEID=str(node),
            SLURM_LOCALID=str(local),
            SLURM_PROCID=str(2 * node + local),
        )
        for node, host in enumerate(hosts)
        for local in range(2)
    ]


def start(host: Host, command: list[str], **environment: str) -> subprocess.Popen:
    environment |= {"GLOO_SOCKET_IFNAME": host.interface, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        host.command(*command),
        cwd=ROOT,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(processes: list[subprocess.Popen]) -> list[tuple[int, str]]:
    """Status and standard error of each; one that does not end in time is killed."""
    limit = threading.Timer(240, lambda: [process.kill() for process in processes])
    limit.start()
    told = [process.communicate()[1] for process in processes]
    limit.cancel()
    return [(process.returncode, err) for process, err in zip(processes, told, strict=True)]


def curve(runs: Path) -> list[dict]:
    """The losses of the only run there, step by step."""
    (path,) = runs.rglob("metrics.jsonl")
    names = ("step", "train/loss", "train/lr", "train/grad_norm", "val/loss", "val/exact_match")
    return [{name: row[name] for name in names if name in row} for row in read_metrics(path)]


def alone(folder: Path, *words: str) -> list[dict]:
    """The curve of one process."""
    command = [sys.executable, "train.py", *WORDS, *words, f"runs={folder}"]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=240)
    return curve(folder)


def assert_close(one: list[dict], other: list[dict]) -> None:
    assert [row.keys() for row in one] == [row.keys() for row in other]
    for a, b in zip(one, other, strict=True):
        assert a == pytest.approx(b, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("launch", [torchrun, srun])
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_losses_are_those_of_one_process(hosts, tmp_path, launch, strategy):
    words = ["task.optim.max_steps=8"]
    further = [f"trainer.strategy={strategy}", f"runs={tmp_path}/two"]
    outcomes = ended(launch(hosts, *words, *further))
    assert all(status == 0 for status, _ in outcomes), outcomes
    assert len(list(tmp_path.glob("two/**/DONE"))) == 1
    assert_close(curve(tmp_path / "two"), alone(tmp_path / "one", *words))


def test_a_cut_cable_ends_the_run_and_the_same_command_goes_on(hosts, tmp_path):
    words = ["task.optim.max_steps=120", "trainer.checkpoint_every=5", f"runs={tmp_path}/cut"]
    processes = srun(hosts, *words)
    deadline = time.monotonic() + 120
    while not list(tmp_path.rglob("step*.ckpt")) and time.monotonic() < deadline:
        time.sleep(0.1)
    hosts[1].link("down")
    outcomes = ended(processes)
    # One whose neighbour gives up first sees a closed connection, status 1; srun takes the highest.
    assert {REQUEUE} <= {status for status, _ in outcomes} <= {REQUEUE, 1}, outcomes
    given_up = [err for status, err in outcomes if status == REQUEUE]
    assert all("has not answered for trainer.timeout=10 seconds" in err for err in given_up)
    assert not list(tmp_path.rglob("DONE"))
    hosts[1].link("up")
    outcomes = ended(srun(hosts, *words))
    assert all(status == 0 for status, _ in outcomes), outcomes
    assert len(list(tmp_path.rglob("DONE"))) == 1
    assert_close(curve(tmp_path / "cut"), alone(tmp_path / "one", "task.optim.max_steps=120"))
