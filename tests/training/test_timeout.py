"""A process that hangs ends the run for a requeue, and the same command resumes."""

import signal
import time

import psutil
import pytest

from tape_exp.machine.preemption import REQUEUE
from tests.processes import Command
from tests.training.test_faults import WORDS, wait_for_step

pytestmark = pytest.mark.hosts


@pytest.fixture
def two_processes(tmp_path):
    """A run of two processes that has come to step 6, its further process, and its words."""
    words = [*WORDS, f"runs={tmp_path}", "trainer.devices=2", "trainer.timeout=30"]
    words += ["trainer.checkpoint_every=5", "task.optim.max_steps=3000"]
    process = Command(*words)
    wait_for_step(tmp_path, 6, process)
    (second,) = (
        child for child in psutil.Process(process.pid).children() if "python" in child.name()
    )
    yield process, second, words
    for each in (second, process):
        if each.is_running() if isinstance(each, psutil.Process) else each.poll() is None:
            each.kill()


def test_a_hung_process_ends_the_run_for_a_requeue(two_processes, tmp_path):
    process, second, words = two_processes
    second.send_signal(signal.SIGSTOP)
    ended = process.finish()
    assert ended.returncode == REQUEUE, ended.stderr
    (sentence,) = ended.stderr.splitlines()
    assert "has not answered for trainer.timeout=30 seconds" in sentence
    assert not second.is_running() or second.status() == psutil.STATUS_ZOMBIE
    (failed,) = tmp_path.rglob("FAILED")
    assert "has not answered" in failed.read_text()
    saved = max(tmp_path.rglob("step*.ckpt"))
    again = Command(*words)
    wait_for_step(tmp_path, int(saved.stem.removeprefix("step")) + 10, again)
    again.send_signal(signal.SIGTERM)
    assert again.finish().returncode == REQUEUE
    assert not failed.exists()


def test_the_others_leave_when_the_first_process_hangs(two_processes):
    process, second, _ = two_processes
    process.send_signal(signal.SIGSTOP)
    while second.status() != psutil.STATUS_ZOMBIE:  # else pytest's own limit ends this
        time.sleep(0.1)
    assert process.poll() is None  # still stopped, it did not end the other itself
