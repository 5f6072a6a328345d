"""Whole runs: every model on addition, every task, records, and what failures leave behind."""

import errno
import io
import json
import os
import signal
import sys
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from PIL import Image

from tape_exp.runs import checkpoints
from tape_exp.runs.checkpoints import Checkpoints
from tape_exp.runs.directory import RunDirectory
from tape_exp.runs.metrics import read_metrics
from tape_exp.settings.compose import compose_config
from tape_exp.settings.errors import ConfigError
from tape_exp.training.from_config import make_task
from tape_exp.training.optimizer import rate_factor
from tape_exp.training.run import run
from tests.conftest import SMALL, TASKS, knows_digits, on_text
from tests.processes import Command, train

TINY = [*SMALL, "task.train_digits=2", "task.test_digits=3", "task.samples_per_cell=4"]
TINY += ["trainer.log_every=1"]


def losses_of(run: Path) -> list[float]:
    """The losses of training, in order."""
    rows = read_metrics(run / "metrics.jsonl")
    return [row["train/loss"] for row in rows if "train/loss" in row]


def test_the_rate_of_a_step_is_the_one_that_it_used(tmp_path):
    words = ["task=arithmetic", "model=nope", *TINY, "trainer=cpu", "logger=none"]
    cfg = compose_config([*words, "task.optim.max_steps=4", f"runs={tmp_path}"])
    run(cfg)
    optim = make_task(cfg).optim
    rows = read_metrics(RunDirectory(cfg).path / "metrics.jsonl")
    rates = [row["train/lr"] for row in rows if "train/lr" in row]
    assert rates == pytest.approx([optim.lr * rate_factor(step, optim) for step in range(4)])


RUNS = [("tape", task) for task in TASKS]
RUNS += [("alibi", "retrieval_training"), ("abacus", "arithmetic")]


@pytest.mark.slow
@pytest.mark.parametrize(("model", "task"), RUNS)
def test_every_task_runs(model, task, tmp_path, text_folder, request):
    """One training step and one evaluation batch; with TAPE, pictures too."""
    drawn = model == "tape"
    if not drawn:
        request.getfixturevalue("sketched")
    sizes = [s for s in SMALL if "batch" not in s]
    if "text" in compose_config([f"task={task}"]).task:
        sizes = on_text(text_folder, task)
    words = [f"model={model}", f"task={task}", "debug=one_batch", "trainer=cpu", "logger=none"]
    cfg = compose_config([*words, f"runs={tmp_path}", *sizes])
    record, directory, trains = run(cfg), RunDirectory(cfg), make_task(cfg).trains
    assert record["steps"] == int(trains)
    assert ("an untrained model" in (directory.path / "log.txt").read_text()) is not trains
    assert record.get("knows_digits", False) is knows_digits(cfg)
    assert all(value == value for value in record["metrics"].values())
    assert directory.done
    pictures = [Image.open(path) for path in directory.artifacts.glob("*.png")]
    assert all((min(picture.size) > 100) is drawn for picture in pictures)


def test_processes_that_go_on_from_different_steps_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoints, "gather", lambda own: [own, (own[0], own[1] + 4)])
    saving = Checkpoints(tmp_path, 1, 1, 1, Mock())
    with pytest.raises(ConfigError, match=r"from different steps, \[0, 4\]: .* runs= is the same"):
        saving.on_train_start(SimpleNamespace(global_step=0, world_size=2), None)


@pytest.mark.long
def test_compiling_changes_the_losses_by_rounding_only(tiny_run, tmp_path, monkeypatch):
    """Of a layer that samples its positions anew in every step; graphs are not made into kernels
    here, which takes a minute.
    """
    graphs = partial(torch.compile, backend="aot_eager")
    monkeypatch.setattr(torch, "compile", graphs)
    losses, backends = [], []
    for compiled in ("false", "true"):
        place = f"runs={tmp_path}/{compiled}"
        words = [place, f"trainer.compile={compiled}", "model=tape_randpe", "task.arch.layers=1"]
        cfg, record = tiny_run(*words, steps=3)
        losses.append(losses_of(RunDirectory(cfg).path))
        backends.append(record["attention"])
        assert record.get("compiled", False) == (compiled == "true")
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)
    assert backends[0] == backends[1], "the record names the backends in either case"
    assert "explicit" in backends[0][0]


@pytest.mark.slow
def test_a_record_holds_what_tables_need_and_is_not_made_again(tiny_run, capsys):
    cfg, record = tiny_run("model=fire", "seed=3")
    directory = RunDirectory(cfg)
    assert record == json.loads((directory.path / "record.json").read_text())
    assert record["config"]["model"]["name"] == "fire"
    assert (record["seed"], record["steps"], record["tokens"]) == (3, 4, 4 * 16 * 9)
    assert set(record["git"]) == {"commit", "dirty"}
    assert record["packages"]["torch"] == torch.__version__
    assert record["hardware"]["cores"] >= 1
    assert len(record["heatmap"]) == 3
    results = {"test/exact_match", "id/exact_match", "ood/exact_match", "val/loss"}
    assert results <= {*record["metrics"]}
    assert record["artifacts"] == sorted(path.name for path in directory.artifacts.iterdir())
    name = "accuracy_by_digits"
    assert {f"{name}.npz", f"{name}.png", "samples.json"} <= {*record["artifacts"]}
    assert (directory.artifacts / f"{name}.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert (directory.path / "config.yaml").exists()
    manifest = json.loads((directory.path / "manifest.json").read_text())
    assert manifest["config_hash"] == record["config_hash"]
    before = directory.metrics.read_text()
    assert run(cfg) == record
    assert "is DONE" in capsys.readouterr().out
    assert directory.metrics.read_text() == before


@pytest.mark.slow
def test_overfit_sees_one_batch_and_learns_it(tiny_run):
    cfg, _ = tiny_run("debug=overfit", "model=rope", "debug.max_steps=60", "task.optim.lr=1e-2")
    losses = losses_of(RunDirectory(cfg).path)
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.slow
def test_failed_run_ends_with_one_sentence_and_exit_code_1(tmp_path):
    words = ["model=rope", "trainer=cpu", "logger=none", *TINY, f"runs={tmp_path}"]
    failed = train(*words, "task.optim.lr=1000", "task.optim.weight_decay=1e30")
    assert failed.returncode == 1
    (line,) = failed.stderr.splitlines()
    assert line.startswith("error: NotFiniteError: the loss is")
    assert ", first seen in the gradient of the parameter layers." in line
    assert "Lower task.optim.lr=1000.0" in line
    (traceback,) = tmp_path.rglob("FAILED")
    assert str(traceback) in failed.stdout
    assert "NotFiniteError" in traceback.read_text()
    assert not traceback.with_name("DONE").exists()


@pytest.mark.slow
def test_ctrl_c_ends_a_sweep_with_130_and_no_traceback(tmp_path):
    words = ["trainer=cpu", "logger=none", *TINY, f"runs={tmp_path}", "task.optim.max_steps=100000"]
    running = Command("-m", *words, "seed=0,1")
    while not list(tmp_path.rglob("metrics.jsonl")) and running.poll() is None:
        time.sleep(0.05)
    running.send_signal(signal.SIGINT)
    ended = running.finish()
    assert ended.returncode == 130, ended.stdout + ended.stderr
    assert "Traceback" not in ended.stderr
    assert ": the same command " in ended.stdout


@pytest.mark.slow
def test_a_run_whose_output_nobody_can_take_ends_done(tiny_run, monkeypatch, capfd):
    class Lost(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(sys, "stdout", Lost())
    cfg, record = tiny_run("model=rope")
    folder = RunDirectory(cfg).path
    assert record["steps"] == 4
    assert (folder / "DONE").exists()
    assert not (folder / "FAILED").exists()
    assert "DONE" in (folder / "log.txt").read_text()
    assert "Logging error" not in capfd.readouterr().err
