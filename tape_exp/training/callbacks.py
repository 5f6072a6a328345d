"""The callbacks of training: reports of its steps, signals, and progress on a terminal or log."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import accumulate
from typing import Any, TypeVar

import rich.progress
from lightning import Callback, LightningModule, Trainer
from rich.table import Column

from tape_exp.drawing.terminal import Terminal, brief
from tape_exp.machine.hardware import peak_flops
from tape_exp.machine.preemption import Preempted, Preemption
from tape_exp.models.decoder import Decoder
from tape_exp.training.module import LanguageModule

log = logging.getLogger("tape_exp")
progress_log = logging.getLogger("tape_exp.progress")
Item = TypeVar("Item")
BAR = 20  # characters
BESIDE = 52  # of the bar and all but the figures


class StepReport(Callback):
    """Measures the throughput and lets the module report, at the end of each optimizer step.

    ``train/tokens_per_second`` is between two reports, validation left out; tokens are positions
    that the model computes, padding included. ``train/mfu`` is the share of the devices' peak,
    where that is known. ``train/data_wait`` is the part of the time, in percent, in which the model
    waited for data. (Fabric's ``Throughput`` has neither the last, nor pauses.)
    """

    def __init__(self, every: int) -> None:
        self.every = every
        self._gauges: dict[str, float] = {}
        self._since: tuple[int, float, float] | None = None  # step, time, time waited for data

    def on_train_batch_end(
        self, trainer: Trainer, module: LightningModule, outputs: Any, batch: Any, index: int
    ) -> None:
        """Report an optimizer step, which may have several micro-batches."""
        assert isinstance(module, LanguageModule)
        if (index + 1) % trainer.accumulate_grad_batches:
            return
        if trainer.global_step % self.every == 0:
            self._measure(trainer, module, batch["inputs"].shape[1])
        module.report_step(self._gauges)

    def _measure(self, trainer: Trainer, module: LanguageModule, length: int) -> None:
        now = time.perf_counter()
        if self._since is not None and trainer.global_step > self._since[0]:
            steps, seconds = trainer.global_step - self._since[0], now - self._since[1]
            rate = steps * module.task.optim.batch * length / seconds
            waited = 100 * (module.task.waited - self._since[2]) / seconds
            self._gauges = {"train/tokens_per_second": rate, "train/data_wait": waited}
            peak = peak_flops(module.device) * trainer.world_size
            if peak:
                self._gauges["train/mfu"] = rate * module.decoder.flops_per_token(length) / peak
        self._since = trainer.global_step, now, module.task.waited

    def on_validation_end(self, trainer: Trainer, module: LightningModule) -> None:
        """Leave the validation out of the rate."""
        if self._since is not None:
            assert isinstance(module, LanguageModule)
            self._since = trainer.global_step, time.perf_counter(), module.task.waited


class OwnSignals(Callback):
    """Takes the signals back from Lightning, whose handler ends training without a checkpoint.

    It also ends the processes that Lightning has started when the first leaves outside training:
    they may wait for it.
    """

    def __init__(self, preemption: Preemption) -> None:
        self.preemption = preemption

    def on_train_start(self, trainer: Trainer, module: LightningModule) -> None:
        """From now on a signal waits for the end of the step."""
        self.preemption.install()
        self.preemption.waits = True

    def on_validation_start(self, trainer: Trainer, module: LightningModule) -> None:
        """Take the signals of a validation outside training."""
        self.preemption.install()

    def on_test_start(self, trainer: Trainer, module: LightningModule) -> None:
        """Take the signals of the evaluation."""
        self.preemption.install()

    def on_exception(
        self, trainer: Trainer, module: LightningModule, exception: BaseException
    ) -> None:
        """Let nobody wait for a process that has left."""
        if isinstance(exception, Preempted) and not self.preemption.waits:
            children = getattr(trainer.strategy.launcher, "procs", [])
            ended = list(children)
            children.clear()  # Lightning's observer would end this process too, with another status
            for child in ended:
                child.kill()
        self.preemption.waits = False


class Progress(Callback):
    """Shows where a run is: a rich bar or lines on the terminal, and always lines in log.txt.

    Args:
        mode: ``rich``, ``lines`` or ``none``.
        seconds: between two lines.
    """

    def __init__(self, mode: str, seconds: float = 10.0) -> None:
        self.mode, self.seconds = mode, seconds
        self._bar: rich.progress.Progress | None = None
        self._last = 0.0
        self._began = (0, 0.0)

    def on_train_start(self, trainer: Trainer, module: LightningModule) -> None:
        """Open the bar."""
        self._last = time.monotonic()
        self._began = trainer.global_step, self._last
        if self.mode == "rich" and trainer.is_global_zero:
            self._bar = _bar()
            self._bar.start()
            self._task = self._bar.add_task(
                "training", total=trainer.max_steps, completed=trainer.global_step, figures=""
            )

    def on_train_batch_end(
        self, trainer: Trainer, module: LightningModule, outputs: Any, batch: Any, index: int
    ) -> None:
        """Move on."""
        step, now = trainer.global_step, time.monotonic()
        if self._bar is not None:
            room = self._bar.console.width - BESIDE
            figures = accumulate(self._figures(trainer), "{}  {}".format)
            shown = [text for text in figures if len(text) <= room]
            self._bar.update(self._task, completed=step, figures=shown[-1] if shown else "")
        if trainer.is_global_zero and (
            now - self._last > self.seconds or step == trainer.max_steps
        ):
            self._last = now
            rate = (step - self._began[0]) / max(now - self._began[1], 1e-9)
            left = (trainer.max_steps - step) / max(rate, 1e-9)
            latest = self._figures(trainer)
            assert isinstance(module, LanguageModule)
            reported = step if step == trainer.max_steps else step - step % module.log_every
            if reported != step and "train/loss" in trainer.progress_bar_metrics:
                latest[0] += f" (step {reported})"
            text = (
                f"step {step}/{trainer.max_steps}  {'  '.join(latest)}  "
                f"{1 / max(rate, 1e-9):.3f} s/step"
            )
            progress_log.info("%s  %d:%02d left", text, left // 60, left % 60)

    @staticmethod
    def _figures(trainer: Trainer) -> list[str]:
        """The latest figures, those first that a narrow terminal must show."""
        metrics = trainer.progress_bar_metrics
        texts = {
            "train/loss": lambda value: f"loss {brief(value, 4)}",
            "val/exact_match": "val exact match {:.1f} %".format,
            "val/perplexity": "val perplexity {:.2f}".format,
            "val/loss": lambda value: f"val loss {brief(value, 4)}",
        }
        return [text(float(metrics[key])) for key, text in texts.items() if key in metrics]

    def teardown(self, trainer: Trainer, module: LightningModule, stage: str) -> None:
        """Close the bar, whatever ended the run."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def tracker(mode: str, seconds: float = 10.0) -> Callable[[Sequence[Item], str], Iterator[Item]]:
    """``for item in track(items, "evaluating")`` in the style of :class:`Progress`."""

    def track(items: Sequence[Item], description: str) -> Iterator[Item]:
        bar = _bar() if mode == "rich" else None
        context: AbstractContextManager = bar or nullcontext()
        with context:
            task = bar.add_task(description, total=len(items), figures="") if bar else None
            last = time.monotonic()
            for done, item in enumerate(items, 1):
                yield item
                if bar is not None and task is not None:
                    bar.advance(task)
                if time.monotonic() - last > seconds:
                    last = time.monotonic()
                    progress_log.info("%s: %d/%d", description, done, len(items))

    return track


def _bar() -> rich.progress.Progress:
    """What is done, a bar, how much of it, the time left, and figures that fit beside these."""
    whole = Column(no_wrap=True)
    return rich.progress.Progress(
        rich.progress.TextColumn("{task.description}", table_column=whole),
        rich.progress.BarColumn(BAR),
        rich.progress.MofNCompleteColumn(table_column=whole),
        rich.progress.TimeRemainingColumn(table_column=whole),
        rich.progress.TextColumn("{task.fields[figures]}", table_column=whole),
        console=Terminal(),
    )


def parameter_text(decoder: Decoder) -> str:
    """``279,744 parameters (5,040 of them positional)``."""
    positional = decoder.positional_count()
    return f"{decoder.parameter_count():,} parameters" + (
        f" ({positional:,} of them positional)" if positional else ""
    )
