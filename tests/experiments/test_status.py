"""What the status of a sweep says, of run directories in every state."""

import json

import pytest
from filelock import FileLock

from tape_exp.artifacts import runs as room
from tape_exp.artifacts.requests import specs_of_words
from tape_exp.experiments import queue as queue_module
from tape_exp.experiments import slurm, status
from tape_exp.experiments.queue import ArrayTask
from tape_exp.experiments.slurm import sweep_folder
from tape_exp.runs.directory import RunDirectory
from tape_exp.settings.errors import ConfigError
from tape_exp.sweep import main
from tests.conftest import finish


@pytest.fixture
def queue(monkeypatch, tmp_path):
    """The queue of a SLURM that takes every job, as {number: task} of each sweep."""
    tasks = {}

    def tasks_in_queue():
        sweeps = [file.parent.name for file in tmp_path.glob(".sweeps/*/jobs.tsv")]
        return [
            ArrayTask(sweep, number, *task) for sweep in sweeps for number, task in tasks.items()
        ]

    monkeypatch.setattr(queue_module, "tasks_in_queue", tasks_in_queue)
    monkeypatch.setattr(slurm, "sbatch", lambda arguments: "7")
    return tasks


@pytest.fixture
def grid(tmp_path, queue):
    """(words, jobs) of six runs of 100 steps."""
    words = ["model=rope,nope,alibi", "seed=0,1", "task.optim.max_steps=100", f"runs={tmp_path}"]
    return words, specs_of_words(words)


def begin(job, steps=40):
    """Let a run have taken some steps, 0.5 seconds each."""
    job.folder.mkdir(parents=True)
    rows = [
        {"step": step, "train/loss": 1.0, "seconds": 10 + step / 2} for step in range(1, steps + 1)
    ]
    text = "".join(json.dumps(row) + "\n" for row in rows) + '{"step": 41, "unfin'
    (job.folder / "metrics.jsonl").write_text(text)


@pytest.mark.parametrize("given", ["words", "the sweeps of a folder"])
def test_every_state_is_shown(grid, capsys, tmp_path, given):
    words, jobs = grid
    assert main(["sweep", "--dirty", *words]) == 0
    for job in jobs[:4]:
        begin(job)
    finish(RunDirectory(jobs[0].config))
    (jobs[2].folder / "FAILED").write_text("Traceback\n  NotFiniteError: the loss is [nan]\n\n")
    log = sweep_folder(jobs) / "logs/4.txt"
    log.write_text("== job\nerror: the run directory cannot be written\nsrun: launch\n")
    capsys.readouterr()
    with FileLock(jobs[1].folder / ".lock"):
        assert main(["status", *(words if given == "words" else ["--runs", str(tmp_path)])]) == 0
    printed = capsys.readouterr().out
    rows = {
        tuple(line.split()[:2]): line for line in printed.splitlines() if line.startswith("model=")
    }
    assert "done" in rows["model=rope", "seed=0"]
    left = "0:00:30 left"  # 60 steps of half a second
    assert all(word in rows["model=rope", "seed=1"] for word in ("running", "40/100", left))
    assert printed.count(" left") == 1, "only of what runs"
    assert "failed" in rows["model=nope", "seed=0"]
    assert "NotFiniteError: the loss is [nan]" in rows["model=nope", "seed=0"]
    assert "stopped" in rows["model=nope", "seed=1"]
    assert "error: the run directory cannot be written" in rows["model=alibi", "seed=0"]
    assert "missing" in rows["model=alibi", "seed=1"]
    assert "1 done, 1 running, 2 failed, 1 stopped, 1 missing" in printed
    assert f"All with task.optim.max_steps=100 runs={tmp_path}" in printed


def test_the_queue_knows_better_than_the_folders(grid, queue, capsys):
    words, jobs = grid
    begin(jobs[0])
    begin(jobs[1])
    (jobs[1].folder / "FAILED").write_text("before\n")
    assert main(["sweep", "--dirty", *words]) == 0
    queue |= {0: ("RUNNING", "7"), 1: ("PENDING", "7"), 2: ("PENDING", "8", "PartitionTimeLimit")}
    assert main(["status", *words]) == 0
    printed = capsys.readouterr().out
    assert "1 running, 2 queued, 3 missing" in printed
    assert "pending (PartitionTimeLimit)" in printed


@pytest.mark.parametrize(
    ("printed", "shown"),
    [
        (
            "Step 8 is saved: the same command resumes from it.\nsrun: error: n1: task 0: Killed",
            "stopped",
        ),
        (
            "error: this machine has no GPUs.\nsrun: error: node1: task 0: Exited with code 2\n",
            "error: this machine has no GPUs.",
        ),
        ("srun: error: node1: task 0: Killed\n", "srun: error: node1: task 0: Killed"),
        ("error: of the first start\n== job 7_0, start 2: model=rope\n", "stopped"),
    ],
)
def test_a_run_is_told_of_by_its_own_sentence_before_that_of_slurm(
    grid, queue, capsys, printed, shown
):
    words, jobs = grid
    assert main(["sweep", "--dirty", *words]) == 0
    begin(jobs[0])
    (sweep_folder(jobs) / "logs/0.txt").write_text(f"== job 7_0, start 1: model=rope\n{printed}")
    capsys.readouterr()
    assert main(["status", *words]) == 0
    row, *_ = [line for line in capsys.readouterr().out.splitlines() if line.startswith("model=")]
    assert shown in row


def test_a_slurm_that_does_not_answer_is_no_obstacle(grid, capsys, monkeypatch):
    assert main(["sweep", "--dirty", *grid[0]]) == 0

    def tasks_in_queue():
        raise ConfigError("squeue failed.")

    monkeypatch.setattr(queue_module, "tasks_in_queue", tasks_in_queue)
    assert main(["status", *grid[0]]) == 0
    printed = capsys.readouterr().out
    assert "squeue failed." in printed
    assert "6 missing" in printed


def test_where_no_sweep_was_submitted(tmp_path, capsys):
    assert main(["status", "--runs", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: {tmp_path} has neither a sweep that was submitted to SLURM nor")
    assert "as in tape-exp status task=arithmetic model=rope,tape" in said


@pytest.mark.parametrize("submitted", [False, True])
def test_a_machine_without_slurm_is_told_of_it_only_after_a_submission(
    submitted, grid, queue, capsys, monkeypatch
):
    words, _ = grid
    if submitted:
        assert main(["sweep", "--dirty", *words]) == 0
    capsys.readouterr()

    def tasks_in_queue():
        raise ConfigError("this machine has no squeue.")

    monkeypatch.setattr(queue_module, "tasks_in_queue", tasks_in_queue)
    assert main(["status", *words]) == 0
    printed = capsys.readouterr().out
    assert ("SLURM" in printed) == submitted
    assert "6 missing" in printed


def test_the_time_to_go_needs_two_reports(grid):
    _, (job, *_) = grid
    assert status.time_to_go(job) == ""
    begin(job, steps=1)
    assert status.time_to_go(job) == ""


@pytest.mark.slow
def test_a_run_whose_base_was_not_finished_at_submission(queue, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(room, "read_records", list)
    words = ["fig_dp_layers", "seed=5", f"runs={tmp_path}"]
    assert main(["sweep", "--dirty", *words]) == 0
    base, started = specs_of_words(words)
    assert main(["status", "--runs", str(tmp_path)]) == 0
    assert "starts from a run that is not finished" in capsys.readouterr().out
    directory = RunDirectory(base.config)
    directory.open({})
    (directory.checkpoints / "step00000008.ckpt").touch()
    finish(directory)
    begun = RunDirectory(started.config)
    log = sweep_folder([base, started]) / "logs/1.txt"
    log.write_text(f"{begun.name}\n  279,840 parameters in {begun.path}\n")
    finish(begun)
    assert main(["status", "--runs", str(tmp_path)]) == 0
    assert "2 done" in capsys.readouterr().out
