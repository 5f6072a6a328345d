"""Callbacks that report a training: the figures of its steps, and lines of progress."""

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


@dataclass(frozen=True)
class _Mark:
    """A moment of a training."""

    step: int
    seconds: float
    waited: float  # seconds for data, so far

    @classmethod
    def now(cls, trainer: Trainer, module: Any) -> "_Mark":
        """Mark this moment."""
        return cls(trainer.global_step, time.perf_counter(), module.task.waited)


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
    _first: tuple[int, float] | None = field(default=None, init=False)  # step, and when it ended
    _last_line: float = field(default=0.0, init=False)
    _step_seconds: float = field(default=0.0, init=False)
    _figures: dict[str, float] = field(default_factory=dict, init=False)  # since the last line
    _gauges: dict[str, float] = field(default_factory=dict, init=False)
    _since: _Mark | None = field(default=None, init=False)  # from which throughput is measured

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
        self._step_seconds = (now - began) / max(step - first, 1)
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
        seconds = self._step_seconds
        left = timedelta(seconds=round(seconds * (total - step)))
        log.info("step %d/%d  %s  %.3f s/step  %s left", step, total, latest, seconds, left)
        self._figures.clear()  # a validation is in one line only

    def _measure(self, trainer: Trainer, module: Any, length: int) -> None:
        """Measure throughput, MFU and the wait for data since the last mark, and mark this step."""
        now = _Mark.now(trainer, module)
        since = self._since
        self._since = now
        if since is not None and now.step > since.step:
            seconds = now.seconds - since.seconds
            rate = (now.step - since.step) * module.task.optim.batch * length / seconds
            waited = 100 * (now.waited - since.waited) / seconds
            self._gauges = {"train/tokens_per_second": rate, "train/data_wait": waited}
            peak = peak_flops(module.device, fp32=trainer.precision == "32-true")
            if peak:
                flops = rate * module.decoder.flops_per_token(length)
                self._gauges["train/mfu"] = flops / (peak * trainer.world_size)

    def on_validation_end(self, trainer: Trainer, module: Any) -> None:
        """Leave the validation out of the rate; keep its figures for the next line, the last one at
        once.
        """
        if self._since is not None:
            self._since = _Mark.now(trainer, module)
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
