"""Which process of a run this is, and that a run leaves nothing of it behind."""

import os
import signal
import time

import pytest
import torch
import torch.distributed as dist

from tape_exp.machine.preemption import Preemption
from tape_exp.machine.processes import (
    Process,
    first_process,
    part_of_run,
    read_process,
    this_process,
)
from tape_exp.runs.directory import RunDirectory
from tape_exp.settings.compose import compose_config
from tape_exp.settings.folders import ROOT
from tape_exp.training.run import run
from tests.processes import Command, both, python, script, train
from tests.training.test_faults import WORDS

TORCHRUN = {"TORCHELASTIC_RUN_ID": "x", "LOCAL_RANK": "1", "GROUP_RANK": "1", "RANK": "3"}
SLURM = {"SLURM_JOB_NAME": "sweep", "SLURM_PROCID": "2", "SLURM_LOCALID": "0"}
SLURM |= {"SLURM_STEP_ID": "0"}
BATCH = {"SLURM_JOB_NAME": "sweep", "SLURM_NTASKS": "2", "SLURM_PROCID": "0"}  # before any srun
MPIRUN = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1"}
ON_CPUS = ["trainer=ddp", "trainer.accelerator=cpu"]


def srun(number: int, of: int) -> dict[str, str | None]:
    """The environment of a task of ``srun -n<of>``."""
    environment = {"SLURM_JOB_ID": "4711", "SLURM_JOB_NAME": "seeds", "SLURM_NTASKS": str(of)}
    environment |= {
        "SLURM_STEP_ID": "0",
        "SLURM_NNODES": "1",
        "SLURM_NODELIST": "localhost",
        "SLURM_NODEID": "0",
    }
    return {**environment, "SLURM_PROCID": str(number), "SLURM_LOCALID": str(number)}


@pytest.mark.parametrize(
    ("devices", "nodes", "environment", "expected"),
    [
        # one device: a run of its own, whatever else was started
        (1, 1, {}, Process()),
        (1, 1, srun(2, 4), Process()),
        (1, 1, {"RANK": "1", "WORLD_SIZE": "2"}, Process()),
        (1, 1, TORCHRUN | {"WORLD_SIZE": "4"}, Process()),
        # this process begins the others, or was begun by one that does
        (2, 1, {}, Process(0, 2, 2)),
        (2, 1, {"LOCAL_RANK": "1", "NODE_RANK": "0", "WORLD_SIZE": "2"}, Process(1, 2, 2)),
        (2, 2, {"NODE_RANK": "1", "MASTER_ADDR": "a"}, Process(2, 4, 2)),
        (2, 1, srun(0, 1), Process(0, 2, 2)),
        (2, 1, srun(0, 1) | {"LOCAL_RANK": "1", "WORLD_SIZE": "2"}, Process(1, 2, 2)),
        (2, 1, srun(0, 4) | {"SLURM_JOB_NAME": "bash"}, Process(0, 2, 2)),
        # a launcher has begun all of them
        (2, 2, TORCHRUN | {"WORLD_SIZE": "4"}, Process(3, 4, 2, "torchrun")),
        (2, 2, TORCHRUN | {"WORLD_SIZE": "4"} | srun(0, 2), Process(3, 4, 2, "torchrun")),
        (2, 1, srun(1, 2), Process(1, 2, 2, "SLURM")),
        (1, 4, SLURM | {"SLURM_NTASKS": "4", "SLURM_NNODES": "4"}, Process(2, 4, 1, "SLURM")),
        # they do not agree
        (2, 1, srun(2, 4), "SLURM_NTASKS=4 .* trainer.devices=2 and trainer.nodes=1, .* 2:"),
        (2, 1, srun(1, 2) | {"SLURM_NNODES": "2"}, "SLURM_NNODES=2 .* trainer.nodes=1, .* 1:"),
        (4, 1, TORCHRUN | {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}, "LOCAL_WORLD_SIZE=2 .* 4:"),
        (2, 1, TORCHRUN | {"WORLD_SIZE": "4"}, "WORLD_SIZE=4 .* trainer.devices=2 .* 2:"),
        (2, 1, {"RANK": "1", "WORLD_SIZE": "2"}, "RANK=1 .* trainer.devices=2 .* 0:"),
        (4, 1, {"LOCAL_RANK": "1", "WORLD_SIZE": "2"}, "WORLD_SIZE=2 .* trainer.devices=4 .* 4:"),
        (2, 1, {"NODE_RANK": ""}, "NODE_RANK= in the environment is no number"),
        # a launcher that does not start what the run needs
        (1, 1, BATCH, Process()),
        (2, 1, BATCH, "the job has 2 tasks, .* put srun in front"),
        (2, 1, {"SLURM_JOB_NAME": "mine", "SLURM_NTASKS": "2"}, "the job has 2 tasks"),  # salloc
        (1, 1, MPIRUN, Process()),
        (2, 1, MPIRUN, "mpirun has started 2 processes .* by torchrun or srun"),
        (2, 1, {"PMI_SIZE": "2", "PMI_RANK": "0"}, "mpirun has started 2 processes .PMI_SIZE."),
        (2, 1, MPIRUN | {"LOCAL_RANK": "1", "RANK": "1", "WORLD_SIZE": "2"}, Process(1, 2, 2)),
    ],
)
def test_config_and_environment_together_say_which_process_this_is(
    devices, nodes, environment, expected
):
    if isinstance(expected, Process):
        assert read_process(devices, nodes, environment) == expected
    else:
        with pytest.raises(ValueError, match=expected):
            read_process(devices, nodes, environment)


def test_a_run_leaves_nothing_in_its_process(monkeypatch):
    monkeypatch.setenv("MASTER_PORT", "1")
    before, threads = dict(os.environ), torch.get_num_threads()
    with part_of_run(Process(1, 2, 2), "a-run"):
        assert this_process() == Process(1, 2, 2)
        assert not first_process()
        os.environ |= {"LOCAL_RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "2"}
        torch.set_num_threads(threads + 1)
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    assert this_process() == Process()
    assert dict(os.environ) == before
    assert torch.get_num_threads() == threads
    assert not dist.is_initialized()


def test_a_run_on_one_device_sees_nothing_of_a_launcher(monkeypatch):
    for name, value in (TORCHRUN | {"WORLD_SIZE": "4", "MASTER_PORT": "1"}).items():
        monkeypatch.setenv(name, value)
    with part_of_run(Process(), "a-run"):
        assert not {"RANK", "WORLD_SIZE", "MASTER_PORT", *TORCHRUN} & os.environ.keys()
    assert os.environ["WORLD_SIZE"] == "4"


def test_a_group_of_the_users_own_stays():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with part_of_run(Process(), "a-run"):
            pass
        assert dist.is_initialized()
    finally:
        dist.destroy_process_group()


def test_a_further_process_that_was_begun_for_a_run_ends_with_it(monkeypatch):
    monkeypatch.setenv("TAPE_EXP_HELPS", "a-run")
    with part_of_run(Process(1, 2, 2), "an-earlier-run"):
        pass
    with pytest.raises(SystemExit) as left, part_of_run(Process(1, 2, 2), "a-run"):
        pass
    assert left.value.code == 0


def test_ctrl_c_is_what_it_was_before_a_run():
    """Lightning ignores it once it has ended a training by it."""
    before = signal.getsignal(signal.SIGINT)
    with Preemption():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    assert signal.getsignal(signal.SIGINT) == before


def record_of(words: list[str], seed: int) -> dict:
    """The record of the finished run of a seed."""
    directory = RunDirectory(compose_config([*words, f"seed={seed}"]))
    assert directory.done
    assert (directory.path / "log.txt").read_text().count("DONE") == 1
    return directory.record()


@pytest.mark.hosts
def test_tasks_of_slurm_with_a_device_each_are_runs_of_their_own(tmp_path):
    words = [*WORDS, f"runs={tmp_path}", "task.optim.max_steps=5"]
    tasks = [Command(*words, f"seed={n}", environment=srun(n, 2)) for n in range(2)]
    assert [task.finish().returncode for task in tasks] == [0, 0]
    for seed in range(2):
        assert record_of(words, seed)["curves"]["train/loss"]["step"] == [1, 2, 3, 4, 5]


@pytest.mark.hosts
def test_every_job_of_a_sweep_over_two_processes_trains(tmp_path):
    words = [*WORDS, *ON_CPUS, f"runs={tmp_path}", "task.optim.max_steps=5"]
    ended = train("-m", *words, "seed=11,12")
    assert ended.returncode == 0, ended.stderr
    alone = train(*words, "seed=12", f"runs={tmp_path}/alone")
    assert alone.returncode == 0, alone.stderr
    record, other = record_of(words, 12), record_of([*words, f"runs={tmp_path}/alone"], 12)
    assert record["curves"] == other["curves"]
    assert record["metrics"] == other["metrics"]


@pytest.mark.hosts
def test_processes_of_different_runs_are_refused(tmp_path):
    words = [*WORDS, *ON_CPUS, f"runs={tmp_path}", "task.optim.max_steps=5"]
    tasks = [Command(*words, f"seed={n}", environment=srun(n, 2)) for n in range(2)]
    ended = [task.finish() for task in tasks]
    assert [one.returncode for one in ended] == [2, 2]
    assert all("the processes work on different runs, " in one.stderr for one in ended)


def late(*words: str) -> None:
    """``python train.py words`` whose first process is late to open the run's folder."""
    opened = RunDirectory.open

    def open_late(self, assets):
        time.sleep(3 * first_process())
        opened(self, assets)

    RunDirectory.open = open_late
    script(*words)


@pytest.mark.hosts
def test_no_process_looks_into_the_folder_before_the_first_has_cleared_it(tmp_path):
    words = [*WORDS, *ON_CPUS, f"runs={tmp_path}", "task.optim.max_steps=5"]
    directory = RunDirectory(compose_config(words))
    assert train(*words, "trainer.devices=1").returncode == 0
    (directory.artifacts / "left.txt").touch()
    ended = [one.finish() for one in both(*words, "rerun=true", program=late)]
    assert [one.returncode for one in ended] == [0, 0], ended[0].stderr
    assert directory.done
    assert not (directory.artifacts / "left.txt").exists()
    assert directory.record()["curves"]["train/loss"]["step"] == [1, 2, 3, 4, 5]


@pytest.mark.slow
def test_what_surrounds_a_run_decides_nothing_that_it_computes(tmp_path, monkeypatch):
    words = [*WORDS, "task.optim.max_steps=5"]
    expected = run(compose_config([*words, f"runs={tmp_path}/alone"]))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hpc_ckpt_3.ckpt").write_text("of another Lightning project")
    for name, value in srun(0, 1).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PL_TRAINER_LIMIT_VAL_BATCHES", "1")
    monkeypatch.setenv("PL_TRAINER_OVERFIT_BATCHES", "1")
    monkeypatch.setenv("PL_GLOBAL_SEED", "3")
    record = run(compose_config([*words, f"runs={tmp_path}/surrounded"]))
    assert record["curves"] == expected["curves"]
    assert record["metrics"] == expected["metrics"]


SCRIPT = """
import sys
import tape_exp as te

for seed in (1, 2):
    run = te.train(*sys.argv[1:], f"seed={seed}", quiet=True)
    print("seed", run.record["seed"], "steps", run.record["steps"], flush=True)
print("end", flush=True)
"""


@pytest.mark.hosts
@pytest.mark.parametrize(
    ("launcher", "ends"),
    [([], 1), (["-m", "torch.distributed.run", "--nproc-per-node=2"], 2)],
    ids=["alone", "torchrun"],
)
def test_a_script_trains_one_run_after_another_on_two_processes(launcher, ends, tmp_path):
    """Lightning starts the script again for the second process of each run, which then ends."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT, encoding="utf-8")
    words = [*WORDS, *ON_CPUS, f"runs={tmp_path}", "task.optim.max_steps=5"]
    done = python(*launcher, str(script), *words, folder=tmp_path, path=str(ROOT))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("end\n") == ends
    for seed in (1, 2):
        assert f"seed {seed} steps 5" in done.stdout
        assert len(record_of(words, seed)["curves"]["train/loss"]["step"]) == 5
