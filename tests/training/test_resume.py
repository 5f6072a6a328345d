"""A run resumes exactly, whatever its micro-batches and devices are then, and however it ended."""

import os
import signal
from pathlib import Path

import pytest

from tape_exp.machine.preemption import REQUEUE, Preempted
from tape_exp.runs.directory import RunDirectory
from tape_exp.runs.metrics import read_metrics
from tape_exp.settings.compose import compose_config
from tape_exp.tasks.arithmetic import Arithmetic
from tape_exp.training.run import run
from tests import soak
from tests.conftest import on_text
from tests.processes import Command, both, script
from tests.training.test_faults import WORDS, signal_at, wait_for_step

COMPUTED = ("step", "train/loss", "train/lr", "train/grad_norm", "val/loss", "val/exact_match")


def curve(path) -> list[dict[str, float]]:
    """What was computed at each step."""
    return [{key: row[key] for key in COMPUTED if key in row} for row in read_metrics(path)]


def assert_same_curve(resumed, undisturbed) -> None:
    """The same rows at the same steps, up to the rounding of other micro-batches."""
    assert [row.keys() for row in resumed] == [row.keys() for row in undisturbed]
    for one, other in zip(resumed, undisturbed, strict=True):
        assert one == pytest.approx(other, rel=1e-4, abs=1e-6)


@pytest.mark.slow
def test_micro_batches_may_change_at_any_step(tiny_run, tmp_path, monkeypatch):
    """Stops follow one another at once, are within an interval of validation and at its end."""
    words = ["model=rope", "trainer.validate_every=5", "trainer.checkpoint_every=1000"]
    undisturbed, _ = tiny_run(*words, f"runs={tmp_path}/undisturbed", steps=15)
    for micro, step in [(16, 1), (4, 2), (8, 3), (16, 5), (1, 6), (2, 9), (4, 10), (16, 14)]:
        with monkeypatch.context() as patch:
            patch.setattr(Arithmetic, "train_batch", signal_at(step - 1, signal.SIGTERM))
            with pytest.raises(Preempted):
                tiny_run(*words, f"trainer.micro_batch={micro}", steps=15)
    resumed, record = tiny_run(*words, "trainer.micro_batch=4", steps=15)
    assert record["steps"] == 15
    assert_same_curve(*(curve(RunDirectory(cfg).metrics) for cfg in (resumed, undisturbed)))


def stopping(*words: str) -> None:
    """``train.py words``, whose first process has SIGUSR1 while it makes the samples of a step."""
    Arithmetic.train_batch = signal_at(int(os.environ["STOP_AT"]), signal.SIGUSR1)
    script(*words)


@pytest.mark.hosts
def test_the_number_of_processes_may_change(tmp_path, monkeypatch, sketched):
    """One, two, one and two, with other micro-batches too; positions are sampled. Losses and
    metrics are those of one process.
    """
    words = [*WORDS, "model=tape_randpe", "task.optim.max_steps=20", "trainer.validate_every=9"]
    words += ["task.samples_per_cell=40", "logger=none"]
    resumed = [*words, f"runs={tmp_path}/resumed"]
    undisturbed = run(compose_config([*words, f"runs={tmp_path}/undisturbed"]))
    for micro, stop, next_stop in ((8, 4, 9), (4, 14, 999)):
        with monkeypatch.context() as patch:
            patch.setattr(Arithmetic, "train_batch", signal_at(stop, signal.SIGUSR1))
            with pytest.raises(Preempted):
                run(compose_config([*resumed, f"trainer.micro_batch={micro}"]))
        machine = f"trainer.micro_batch={micro // 2}"
        ended = both(*resumed, machine, program=stopping, STOP_AT=str(next_stop))
        statuses = [one.finish().returncode for one in ended]
        assert statuses == [0 if next_stop == 999 else REQUEUE, 0]
    again = RunDirectory(compose_config(resumed))
    assert_same_curve(
        curve(again.metrics), curve(next(tmp_path.glob("und*/*/*/*/*/metrics.jsonl")))
    )
    assert again.record()["metrics"] == pytest.approx(undisturbed["metrics"], abs=1e-3)


@pytest.mark.hosts
def test_a_rank_that_dies_stops_the_others_and_the_run_goes_on_bit_for_bit(tmp_path, text_folder):
    """SIGKILL of the second process: FAILED names it. The same command gives the losses of a run
    that was left alone, each step once.

    An epoch of the text has fewer steps than the run: it stops inside one and goes on into the
    next.
    """
    words = ["task=c4", *on_text(text_folder), "task.optim.max_steps=30", "task.optim.batch=16"]
    words += ["model=rope", "trainer=cpu", "logger=none"]
    words += ["trainer.log_every=1", "trainer.checkpoint_every=5", "trainer.validate_every=10"]
    process = Command(*words, f"runs={tmp_path}/killed", "trainer.devices=2")
    whole = both(*words, f"runs={tmp_path}/whole")
    wait_for_step(tmp_path / "killed", 12, process)
    children = (
        Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text(encoding="utf-8").split()
    )
    os.kill(int(children[0]), signal.SIGKILL)
    assert process.finish().returncode != 0
    (failed,) = tmp_path.rglob("FAILED")
    assert "the process of rank 1 of 2 was killed by SIGKILL" in failed.read_text().splitlines()[-1]
    resumed = both(*words, f"runs={tmp_path}/killed")
    assert "Resuming from step" in resumed[0].finish().stdout
    assert [one.wait() for one in (*whole, *resumed)] == [0] * 4
    alone, killed = (soak.directory_of(words, tmp_path / name) for name in ("whole", "killed"))
    assert soak.compare(alone, killed) == []
