"""What training reports: the figures of its steps, and lines of progress."""

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

from lightning import Callback, Trainer

from tape_exp.drawing.terminal import brief
from tape_exp.machine.hardware import peak_flops

log = logging.getLogger("tape_exp")
Item = TypeVar("Item")
FIGURES = ("train/loss", "val/loss", "val/exact_match", "val/perplexity")
LINE_SECONDS = 10.0  # between two lines of progress


@dataclass(eq=False)
class StepReport(Callback):
    """Measures the throughput, lets the module report, and logs now and then where the run is, at
    the end of each optimizer step.

    Lightning's own hook of the module comes after the callbacks, and a checkpoint must not precede
    the report of its step, which a resumed run would not repeat.

    ``train/tokens_per_second`` is between two reports, validation left out; tokens are positions
    that the model computes, padding included. ``train/mfu`` is the share of the devices' peak,
    where that is known. ``train/data_wait`` is the part of the time, in percent, in which the model
    waited for data.
    """

    every: int
    line_seconds: float = LINE_SECONDS
    _first: tuple[int, float] | None = field(default=None, init=False)  # step, and its end
    _last_line: float = field(default=0.0, init=False)
    _each: float = field(default=0.0, init=False)  # seconds of a step
    _figures: dict[str, float] = field(default_factory=dict, init=False)  # since the last line
    _gauges: dict[str, float] = field(default_factory=dict, init=False)
    # step, time, time waited for data
    _since: tuple[int, float, float] | None = field(default=None, init=False)

    def on_train_batch_end(
        self, trainer: Trainer, module: Any, outputs: Any, batch: Any, index: int
    ) -> None:
        """Report an optimizer step, which may have several micro-batches; the line of the last one
        comes after its validation.
        """
        if (index + 1) % trainer.accumulate_grad_batches:
            return
        step = trainer.global_step
        total = trainer.max_steps
        if step % self.every == 0:
            self._measure(trainer, module, batch["inputs"].shape[1])
        module.report_step(self._gauges)
        now = time.monotonic()
        if self._first is None:  # the step in which the model may have been compiled
            self._first = (step, now)
            self._last_line = now
        first, began = self._first
        self._each = (now - began) / max(step - first, 1)
        due = now - self._last_line > self.line_seconds
        if due or step == total:
            self._last_line = now
            if "train/loss" in trainer.progress_bar_metrics:
                self._figures["train/loss"] = float(trainer.progress_bar_metrics["train/loss"])
        if due and step < total:
            self._log_line(step, total)

    def _log_line(self, step: int, total: int) -> None:
        """Log a line of progress: the step, the latest figures and the time left."""
        known = [name for name in FIGURES if name in self._figures]
        latest = "  ".join(f"{name} {brief(self._figures[name], 4)}" for name in known)
        left = timedelta(seconds=round(self._each * (total - step)))
        log.info("step %d/%d  %s  %.3f s/step  %s left", step, total, latest, self._each, left)
        self._figures.clear()  # a validation is told of once

    def _measure(self, trainer: Trainer, module: Any, length: int) -> None:
        now = time.perf_counter()
        if self._since is not None and trainer.global_step > self._since[0]:
            steps = trainer.global_step - self._since[0]
            seconds = now - self._since[1]
            rate = steps * module.task.optim.batch * length / seconds
            waited = 100 * (module.task.waited - self._since[2]) / seconds
            self._gauges = {"train/tokens_per_second": rate, "train/data_wait": waited}
            peak = peak_flops(module.device, fp32=trainer.precision == "32-true")
            if peak:
                flops = rate * module.decoder.flops_per_token(length)
                self._gauges["train/mfu"] = flops / (peak * trainer.world_size)
        self._since = trainer.global_step, now, module.task.waited

    def on_validation_end(self, trainer: Trainer, module: Any) -> None:
        """Leave the validation out of the rate; keep its figures for the next line, the last one at
        once.
        """
        if self._since is not None:
            self._since = trainer.global_step, time.perf_counter(), module.task.waited
        if self._first is None:
            return
        self._figures |= module.validation
        if trainer.global_step == trainer.max_steps:
            self._log_line(trainer.global_step, trainer.max_steps)


def track(items: Sequence[Item], description: str) -> Iterator[Item]:
    """Iterate over items, and log now and then how far that is."""
    last_line = time.monotonic()
    for done, item in enumerate(items, 1):
        yield item
        if time.monotonic() - last_line > LINE_SECONDS:
            last_line = time.monotonic()
            log.info("%s: %d/%d", description, done, len(items))
