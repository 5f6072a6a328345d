"""What a terminal shows of a run: a bar whose time left is whole, and log lines above it."""

import io
import logging
from types import SimpleNamespace

import pytest
from rich.console import Console

from tape_exp.training import callbacks, logs
from tape_exp.training.callbacks import Progress

METRICS = {
    "train/loss": 0.00083,
    "val/exact_match": 45.0,
    "val/loss": 1.2345,
    "val/perplexity": 10.3,
}


@pytest.fixture
def screen(monkeypatch):
    """Makes a terminal of so many columns; returns what is written to it."""

    def make(width: int) -> io.StringIO:
        out = io.StringIO()
        console = Console(file=out, width=width, force_terminal=True, color_system=None)
        monkeypatch.setattr(callbacks, "Terminal", lambda: console)
        return out

    return make


def shown(screen, width: int, log_line: str = "") -> list[str]:
    """The lines of a bar after one of ten thousand steps, and of what is logged meanwhile."""
    out = screen(width)
    trainer = SimpleNamespace(
        max_steps=10_000, global_step=0, is_global_zero=True, progress_bar_metrics=METRICS
    )
    progress = Progress("rich")
    progress.on_train_start(trainer, None)
    try:
        trainer.global_step = 1234
        progress.on_train_batch_end(trainer, None, None, None, 0)
        if log_line:
            logs.Console().emit(logging.LogRecord("x", 20, "", 0, log_line, None, None))
        progress.bar.refresh()
    finally:
        progress.teardown(trainer, None, "fit")
    return out.getvalue().replace("\r", "\n").splitlines()


def test_at_80_columns_the_time_is_whole_and_figures_are_cut(screen):
    bars = [line for line in shown(screen, 80) if " 1234/10000 " in line]
    assert bars
    assert all("loss 8.3e-04" in line and "…" in line for line in bars)
    assert all(len(line.removeprefix("\x1b[2K")) <= 80 and "-:--:--" in line for line in bars)


def test_a_line_has_the_step_the_figures_and_the_time_left(caplog, monkeypatch):
    trainer = SimpleNamespace(
        max_steps=60, global_step=0, is_global_zero=True, progress_bar_metrics=METRICS
    )
    progress = Progress("lines", seconds=-1.0)
    clock = iter([0.0, 10.0])
    monkeypatch.setattr(callbacks.time, "monotonic", lambda: next(clock))
    progress.on_train_start(trainer, None)
    trainer.global_step = 20
    with caplog.at_level(logging.INFO, "tape_exp.progress"):
        progress.on_train_batch_end(trainer, None, None, None, 0)
    (line,) = caplog.messages
    assert line.startswith("step 20/60  loss 8.3e-04  val exact match 45.0 %")
    assert line.endswith("0.500 s/step  0:20 left")


def test_log_lines_are_above_the_bar(screen):
    (line,) = [line for line in shown(screen, 80, "a line of the log") if "a line" in line]
    assert line.strip("\x1b[2K ").startswith("a line of the log")
    assert "training" not in line
