"""A run resumes exactly, whatever its micro-batches and devices are then."""

import os
import signal

import pytest

from tape_exp.machine.preemption import REQUEUE, Preempted
from tape_exp.runs.directory import RunDirectory
from tape_exp.runs.metrics import read_metrics
from tape_exp.tasks.arithmetic import Arithmetic
from tests.processes import Command, script, train
from tests.training.test_faults import WORDS, signal_at

COMPUTED = ("step", "train/loss", "train/lr", "train/grad_norm", "val/loss", "val/exact_match")


def curve(path) -> list[dict[str, float]]:
    """What was computed at each step."""
    return [{key: row[key] for key in COMPUTED if key in row} for row in read_metrics(path)]


def assert_same_curve(resumed, undisturbed) -> None:
    """The same rows at the same steps, up to the rounding of other micro-batches."""
    assert [row.keys() for row in resumed] == [row.keys() for row in undisturbed]
    for one, other in zip(resumed, undisturbed, strict=True):
        assert one == pytest.approx(other, rel=1e-4, abs=1e-6)


DENSE = [((16, 4, 8, 16, 1, 2)[step % 6], step) for step in range(1, 15)]
MIXED = [(16, 3), (4, 5), (8, 7), (16, 10), (2, 11)]


@pytest.mark.parametrize("stops", [DENSE, MIXED], ids=["dense", "mixed"])
def test_micro_batches_may_change_at_any_step(stops, tiny_run, tmp_path, monkeypatch):
    """Stops are within an interval of validation and at its end."""
    words = ["model=rope", "trainer.validate_every=5", "trainer.checkpoint_every=1000"]
    undisturbed, _ = tiny_run(*words, f"runs={tmp_path}/undisturbed", steps=15)
    for micro, step in stops:
        with monkeypatch.context() as patch:
            patch.setattr(Arithmetic, "train_batch", signal_at(step - 1, signal.SIGTERM))
            with pytest.raises(Preempted):
                tiny_run(*words, f"trainer.micro_batch={micro}", steps=15)
    resumed, record = tiny_run(*words, "trainer.micro_batch=4", steps=15)
    assert record["steps"] == 15
    assert_same_curve(*(curve(RunDirectory(cfg).metrics) for cfg in (resumed, undisturbed)))


def stopping(*words: str) -> None:
    """``train.py words``, whose first process has SIGUSR1 while it makes the samples of a step."""
    make = Arithmetic.train_batch

    def train_batch(self, first: int, count: int, *purpose):
        if first == self.optim.batch * int(os.environ["STOP_AT"]):
            os.kill(os.getpid(), signal.SIGUSR1)
        return make(self, first, count, *purpose)

    Arithmetic.train_batch = train_batch
    script(*words)


def test_the_number_of_processes_may_change(tmp_path):
    """One, two, one and two, with other micro-batches too."""
    words = [*WORDS, "task.optim.batch=8", "task.optim.max_steps=30", "trainer.validate_every=9"]
    assert train(*words, f"runs={tmp_path}/undisturbed").returncode == 0
    for devices, micro, stop in [(1, 8, 4), (2, 2, 12), (1, 4, 20), (2, 4, 999)]:
        machine = [f"trainer.devices={devices}", f"trainer.micro_batch={micro}"]
        ended = Command(
            *(*words, *machine, f"runs={tmp_path}/resumed"),
            program=stopping,
            environment={"STOP_AT": str(stop)},
        ).finish()
        assert ended.returncode == (REQUEUE if stop < 30 else 0), ended.stderr
    names = ("resumed", "undisturbed")
    paths = [next((tmp_path / name).rglob("metrics.jsonl")) for name in names]
    assert_same_curve(*map(curve, paths))
