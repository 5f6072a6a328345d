"""A process that hangs ends the run for a requeue, and a run goes on with other processes."""

import signal
import time

import psutil
import pytest

from tape_exp.machine.preemption import REQUEUE
from tape_exp.runs.sinks import read_metrics
from tape_exp.training.heartbeat import Silence
from tests.processes import Command
from tests.training.test_faults import WORDS, wait_for_step


def test_a_value_counts_as_silent_after_as_many_looks():
    silence = Silence(patience=3)
    looks = [silence.look(values) for values in ("ab", "ac", "ad", "ad", "ed", "ed", "ed", "ef")]
    assert looks == [[], [], [], [0], [], [1], [1], [0]]


def test_nobody_is_silent_after_the_job_was_suspended():
    """However much time passes between two looks, a value has to stay the same for all of them."""
    silence = Silence(patience=2)
    silence.look("a")
    assert silence.look("a") == []
    assert silence.look("b") == []


@pytest.fixture
def two_processes(tmp_path):
    """A run of two processes that has come to step 5, its further process, and its words."""
    words = [f"runs={tmp_path}", "trainer.devices=2", "trainer.heartbeat=3"]
    words += ["trainer.checkpoint_every=5", "task.optim.max_steps=3000"]
    process = Command(*WORDS, *words)
    wait_for_step(tmp_path, 6, process)
    (second,) = (
        child for child in psutil.Process(process.pid).children() if "python" in child.name()
    )
    yield process, second, words
    for each in (second, process):
        if each.is_running() if isinstance(each, psutil.Process) else each.poll() is None:
            each.kill()


@pytest.mark.hosts
def test_a_hung_process_ends_the_run_for_a_requeue(two_processes, tmp_path):
    process, second, words = two_processes
    second.send_signal(signal.SIGSTOP)
    ended = process.finish()
    err = ended.stderr
    assert ended.returncode == REQUEUE, err
    assert "error: rank 1 of 2 (on " in err
    assert "has given no sign of life for 3 seconds" in err
    assert err.count("error:") == 1
    (failed,) = tmp_path.rglob("FAILED")
    assert "rank 1 of 2" in failed.read_text()
    saved = list(tmp_path.rglob("step*.ckpt"))
    assert saved
    again = Command(*WORDS, *words[:-1], "task.optim.max_steps=3000")
    try:
        first = int(min(saved).stem.removeprefix("step"))
        wait_for_step(tmp_path, first + 20, again)
    finally:
        again.send_signal(signal.SIGTERM)
        assert again.finish().returncode == REQUEUE
    assert not failed.exists()


@pytest.mark.hosts
def test_the_others_leave_when_the_first_process_hangs(two_processes):
    process, second, _ = two_processes
    process.send_signal(signal.SIGSTOP)
    deadline = time.monotonic() + 120
    while second.status() != psutil.STATUS_ZOMBIE and time.monotonic() < deadline:
        time.sleep(0.1)
    assert second.status() == psutil.STATUS_ZOMBIE, "it still waits for the first one"


@pytest.mark.hosts
def test_a_run_goes_on_with_another_number_of_processes(tmp_path):
    """Two, then one, then four: the same samples at each step, so the losses of one process."""
    words = ["task.optim.batch=8", "task.optim.max_steps=30", "trainer.checkpoint_every=10"]
    whole = Command(*WORDS, *words, f"runs={tmp_path}/whole")
    assert whole.wait() == 0
    for devices, step in ((2, 10), (1, 20), (4, None)):
        process = Command(*WORDS, *words, f"runs={tmp_path}/parts", f"trainer.devices={devices}")
        if step is not None:
            stop_after(tmp_path / "parts", step, process)
        else:
            ended = process.finish()
            assert ended.returncode == 0, ended.stderr
    one, other = (
        [(row["step"], row["train/loss"]) for row in read_metrics(path) if "train/loss" in row]
        for path in (next((tmp_path / part).rglob("metrics.jsonl")) for part in ("whole", "parts"))
    )
    assert [step for step, _ in one] == [step for step, _ in other] == list(range(1, 31))
    assert [loss for _, loss in other] == pytest.approx([loss for _, loss in one], rel=1e-4)


def stop_after(folder, step: int, process: Command) -> None:
    """Tell a run to leave once it has reached a step; it must not have come to its end."""
    wait_for_step(folder, step, process)
    process.send_signal(signal.SIGUSR1)
    ended = process.finish()
    assert ended.returncode == REQUEUE, ended.stderr
