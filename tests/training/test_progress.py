"""What a run says of its progress."""

import logging
from types import SimpleNamespace

from tape_exp.training import callbacks
from tape_exp.training.callbacks import StepReport


def test_a_line_has_the_step_the_figures_and_the_time_left(caplog, monkeypatch):
    """A validation is told of in the line after it, and in no other."""
    latest = {"train/loss": 0.00083, "val/exact_match": 45.0}
    trainer = SimpleNamespace(max_steps=60, global_step=4, progress_bar_metrics=latest)
    trainer.accumulate_grad_batches = 1
    module = SimpleNamespace(report_step=lambda gauges: None, validation={"val/exact_match": 45.0})
    progress = StepReport(every=1000, line_seconds=-1.0)
    clock = iter([0.0, 10.0, 20.0])
    monkeypatch.setattr(callbacks.time, "monotonic", lambda: next(clock))
    progress.on_train_batch_end(trainer, module, None, None, 0)
    progress.on_validation_end(trainer, module)
    with caplog.at_level(logging.INFO, "tape_exp"):
        for step in (24, 44):
            trainer.global_step = step
            progress.on_train_batch_end(trainer, module, None, None, 0)
    *_, line, after = caplog.messages
    assert line.startswith("step 24/60  train/loss 8.3e-04  val/exact_match 45.0000")
    assert line.endswith("0.500 s/step  0:00:18 left")
    assert after == "step 44/60  train/loss 8.3e-04  0.500 s/step  0:00:08 left"


def test_the_last_line_has_the_last_validation(caplog):
    trainer = SimpleNamespace(max_steps=2, global_step=1, accumulate_grad_batches=1)
    trainer.progress_bar_metrics = {"train/loss": 0.5, "val/exact_match": 40.0}
    module = SimpleNamespace(report_step=lambda gauges: None, validation={"val/exact_match": 90.0})
    progress = StepReport(every=1000)
    with caplog.at_level(logging.INFO, "tape_exp"):
        progress.on_train_batch_end(trainer, module, None, None, 0)
        trainer.global_step = 2
        progress.on_train_batch_end(trainer, module, None, None, 1)
        progress.on_validation_end(trainer, module)
    (line,) = caplog.messages
    assert line.startswith("step 2/2  train/loss 0.5000  val/exact_match 90.0000")
