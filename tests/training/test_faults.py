"""What may happen to a run: signals, a second process, a full disk, a lack of memory, a process
that dies, a silent W&B.
"""

import errno
import os
import signal
import time
from pathlib import Path

import pytest
import torch
from filelock import FileLock

from tape_exp.machine.preemption import REQUEUE, SIGNALS, Preempted, Preemption
from tape_exp.machine.processes import Process, part_of_run
from tape_exp.runs.directory import RunDirectory
from tape_exp.runs.metrics import read_metrics
from tape_exp.settings.compose import compose_config
from tape_exp.settings.errors import ConfigError
from tape_exp.tasks.arithmetic import Arithmetic
from tape_exp.training import faults
from tape_exp.training.run import run
from tests import soak
from tests.conftest import SMALL
from tests.processes import Command, both, train

WORDS = [*SMALL, "model=rope", "trainer=cpu", "logger=none"]
WORDS += ["trainer.log_every=1"]
WORDS += ["task.train_digits=2", "task.test_digits=3", "task.samples_per_cell=4"]
WORDS += ["trainer.checkpoint_every=50"]


def wait_for_step(folder: Path, step: int, process: Command) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        found = list(folder.rglob("metrics.jsonl"))
        if found and any(row["step"] >= step for row in read_metrics(found[0])):
            return
        time.sleep(0.01)
    pytest.fail(f"the run did not come to step {step}: {process.finish()}")


def signal_at(step: int, number: signal.Signals):
    """A Task.train_batch that signals this process while it makes the samples of a step."""
    made = Arithmetic.train_batch

    def train_batch(self, first: int, count: int, *purpose):
        if first == 16 * step and not purpose:
            os.kill(os.getpid(), number)
        return made(self, first, count, *purpose)

    return train_batch


@pytest.mark.slow
def test_a_signal_in_training_saves_its_step_and_asks_for_a_requeue(
    tiny_run, tmp_path, monkeypatch, capsys
):
    """Step 7 is followed by a validation, which is reported once. The requeued run ends as one that
    was left alone.
    """
    words = ["model=rope", "trainer.validate_every=8"]
    whole, _ = tiny_run(*words, f"runs={tmp_path}/whole", steps=12)
    before = signal.getsignal(signal.SIGTERM)
    with monkeypatch.context() as patch:
        patch.setattr(Arithmetic, "train_batch", signal_at(7, signal.SIGTERM))
        with pytest.raises(Preempted) as left:
            tiny_run(*words, steps=12)
    assert left.value.code == REQUEUE
    assert signal.getsignal(signal.SIGTERM) == before
    sentence = "Stopped by SIGTERM. Step 8 is saved: the same command resumes from it."
    assert sentence in capsys.readouterr().out
    assert [path.stem for path in tmp_path.glob("runs/**/step*.ckpt")] == ["step00000008"]
    assert not list(tmp_path.glob("runs/**/FAILED"))
    cfg, _ = tiny_run(*words, steps=12)
    assert "Resuming from step 8" in capsys.readouterr().out
    assert soak.compare(RunDirectory(whole), RunDirectory(cfg)) == []


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_in_the_evaluation_leaves_at_once(number, tiny_run, monkeypatch):
    def evaluate(self, *_):
        os.kill(os.getpid(), number)
        pytest.fail("the evaluation went on")

    with monkeypatch.context() as patch:
        patch.setattr(Arithmetic, "evaluate", evaluate)
        with pytest.raises(Preempted):
            tiny_run("model=rope")
    _, record = tiny_run("model=rope")
    assert record["steps"] == 4
    assert record["metrics"]["val/loss"] > 0  # of a validation that an earlier process has made


def test_a_signal_that_nohup_ignores_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Preemption() as preemption:
            os.kill(os.getpid(), signal.SIGHUP)
            assert preemption.received is None
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.fixture
def same_signals():
    """Further processes leave with signals ignored, and so would every process that tests start."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def further_of_slurm():
    with part_of_run(Process(1, 2, 2, "SLURM"), "a-run"):
        yield


@pytest.mark.usefixtures("same_signals")
def test_further_processes_leave_the_first_to_decide():
    with part_of_run(Process(1, 2, 2), "a-run"):
        with Preemption() as preemption:
            os.kill(os.getpid(), signal.SIGTERM)
            assert preemption.received == "SIGTERM"
        assert Preempted("SIGTERM").code == 0


@pytest.mark.usefixtures("same_signals")
def test_a_further_process_that_slurm_started_leaves_by_itself(further_of_slurm):
    """With status 0: it gets the signal too, and killed, it would hide the first's REQUEUE."""
    with Preemption() as preemption:
        with pytest.raises(Preempted) as left:
            os.kill(os.getpid(), signal.SIGTERM)
        assert left.value.code == 0
    with Preemption() as preemption:
        preemption.defer_signals(True)
        os.kill(os.getpid(), signal.SIGUSR1)
        assert preemption.received == "SIGUSR1", "in training, the end of the step is waited for"
        with pytest.raises(Preempted):
            preemption.defer_signals(False)


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["training", "evaluation"])
@pytest.mark.hosts
def test_two_processes_leave_together(moment, tmp_path):
    """The first alone gets the signal; status 85, nobody is left behind, and the run goes on to its
    end.
    """
    words = [f"runs={tmp_path}", "trainer.devices=2", "trainer.checkpoint_every=1000"]
    if moment == "training":
        process, _ = both(*WORDS, *words, "task.optim.max_steps=2000")
    else:  # where the first ends the second, which Lightning has started
        few = ["task.optim.max_steps=5", "task.samples_per_cell=60000"]
        process = Command(*WORDS, *words, *few)
    wait_for_step(tmp_path, 5, process)
    if moment == "evaluation":
        time.sleep(1)
    process.send_signal(signal.SIGUSR1)
    log = next(tmp_path.rglob("log.txt"))
    while "Stopped by SIGUSR1" not in log.read_text() and process.poll() is None:
        time.sleep(0.01)
    while process.poll() is None:  # SLURM sends SIGTERM some time after SIGUSR1
        process.send_signal(signal.SIGTERM)
        time.sleep(0.05)
    ended = process.finish()
    assert ended.returncode == REQUEUE, ended.stderr
    assert ended.stdout.count("Stopped by SIGUSR1") == 1
    assert not list(tmp_path.rglob("FAILED"))
    (row,) = [read_metrics(path)[-1] for path in tmp_path.rglob("metrics.jsonl")]
    assert [path.stem for path in tmp_path.rglob("*.ckpt")] == [f"step{row['step']:08d}"]


def test_a_second_process_is_refused_and_one_that_has_ended_makes_way(tiny_run, monkeypatch):
    monkeypatch.setattr("tape_exp.runs.directory.LOCK_SECONDS", 0.2)
    cfg, _ = tiny_run("model=rope")
    directory = RunDirectory(cfg)
    (directory.path / "DONE").unlink()
    files = {path: path.stat().st_mtime_ns for path in directory.path.rglob("*") if path.is_file()}
    with (
        FileLock(directory.path / ".lock"),
        pytest.raises(ConfigError, match=r"another process works on .*; wait for its end"),
    ):
        tiny_run("model=rope")
    assert {path: path.stat().st_mtime_ns for path in files} == files
    tiny_run("model=rope")
    assert directory.done


def test_debug_clears_the_directory_but_not_its_lock(tiny_run):
    cfg, _ = tiny_run("model=rope", "debug=one_batch")
    old = RunDirectory(cfg).artifacts / "old.txt"
    old.write_text("of an earlier run")
    held = (RunDirectory(cfg).path / ".lock").stat().st_ino
    tiny_run("model=rope", "debug=one_batch")
    assert not old.exists()
    assert (RunDirectory(cfg).path / ".lock").stat().st_ino == held


@pytest.mark.slow
def test_a_full_disk_names_the_folder_and_leaves_the_last_checkpoint(tmp_path, monkeypatch):
    """RLIMIT_FSIZE below the size of a checkpoint; then there is room again.

    Going on, with a process that prepares data: the error keeps it alive, and the run must not wait
    for it.
    """
    words = [f"runs={tmp_path}/a", "task.optim.max_steps=40", "trainer.checkpoint_every=10"]
    with monkeypatch.context() as patch:
        patch.setattr(Arithmetic, "train_batch", signal_at(9, signal.SIGUSR1))
        with pytest.raises(Preempted):
            run(compose_config([*WORDS, *words]))
    full = train(*WORDS, *words, "trainer.workers=1", largest_file=20_000)
    err = full.stderr
    assert full.returncode == 1
    assert "File too large: free space there" in err
    assert len(err.strip().splitlines()) == 1
    (failed,) = tmp_path.rglob("FAILED")
    assert str(failed.parent) in err
    assert "Step 10 is saved: the same command resumes from it." in full.stdout
    assert not list(tmp_path.rglob(".step*"))
    run(compose_config([*WORDS, *words]))
    assert failed.with_name("DONE").exists()
    assert not failed.exists()


@pytest.mark.parametrize(
    ("error", "part"),
    [
        (torch.OutOfMemoryError("CUDA out of memory.\nTried"), "try trainer.micro_batch=8, "),
        (MemoryError(), "try trainer.micro_batch=8, "),
        (OSError(errno.EDQUOT, "Quota exceeded"), "Quota exceeded: free space there or raise"),
    ],
)
def test_a_lack_of_memory_or_space_says_what_to_do(error, part, tmp_path):
    directory = RunDirectory(compose_config([*WORDS, f"runs={tmp_path}"]))
    outer = RuntimeError("from a library")
    outer.__cause__ = error
    explanation = faults.explain(outer, directory, None)
    assert part in str(explanation)
    assert "\n" not in str(explanation)


def test_a_resumed_run_repeats_no_row(tiny_run):
    """Killed after everything but DONE: the evaluation and its rows come again, the curve holds
    them once.
    """
    cfg, record = tiny_run("model=rope", "trainer.validate_every=3")
    path = RunDirectory(cfg).path
    before = soak.curve(RunDirectory(cfg))
    (path / "DONE").unlink()
    (path / "checkpoints" / ".step00000009.ckpt.0123abcd.partial").write_text("of a killed process")
    _, again = tiny_run("model=rope", "trainer.validate_every=3")
    assert soak.curve(RunDirectory(cfg)) == before
    assert again["metrics"] == record["metrics"]
    assert not list(path.rglob(".step*"))


@pytest.fixture
def forked(monkeypatch):
    monkeypatch.setattr(soak.Subject, "start", lambda run: Command(*run.words, group=True))


def assert_survived(subjects):
    assert [subject.differences for subject in subjects] == [[]] * len(subjects)
    assert all(fault["as_expected"] for subject in subjects for fault in subject.faults)


@pytest.mark.long
def test_a_short_soak_is_survived(tmp_path, monkeypatch, forked):
    """In as many runs as the kills take: on a busy machine one may end before the last of them."""
    monkeypatch.setattr(soak, "CASES", [f"{soak.CASES[0]} task.optim.max_steps=60"])
    subjects = soak.soak(tmp_path, 3)
    assert sum(len(subject.faults) for subject in subjects) == 3
    assert_survived(subjects)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_fifty_kills_are_survived(tmp_path):
    assert_survived(soak.soak(tmp_path, 50))
