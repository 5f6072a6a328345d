"""Whole runs: every model on every task, resumption bit for bit, records, and what failures leave
behind.
"""

import errno
import io
import json
import logging
import os
import signal
import sys
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from PIL import Image

from tape_exp.runs import checkpoints
from tape_exp.runs.directory import RunDirectory
from tape_exp.runs.evaluation import Evaluation
from tape_exp.runs.metrics import read_metrics
from tape_exp.settings.compose import compose_config
from tape_exp.settings.errors import ConfigError
from tape_exp.training import module
from tape_exp.training import run as run_module
from tape_exp.training.assembly import make_task
from tape_exp.training.from_config import blank_parts
from tape_exp.training.run import run
from tests import soak
from tests.conftest import MODELS, SMALL, TASKS, knows_digits, on_text
from tests.processes import Command, train


def losses_of(run: Path) -> list[float]:
    """The losses of training, in order."""
    rows = read_metrics(run / "metrics.jsonl")
    return [row["train/loss"] for row in rows if "train/loss" in row]


# Addition with every model, everything else with two.
PAIRS = [
    (model, task)
    for task in TASKS
    for model in (MODELS if task == "arithmetic" else ["tape", "alibi"])
]


@pytest.mark.parametrize(("model", "task"), PAIRS)
def test_every_model_runs_every_task(model, task, tmp_path, text_folder, request):
    """One training step and one evaluation batch of each pair; the pictures of one model."""
    drawn = model == "tape"
    if not drawn:
        request.getfixturevalue("sketched")
    sizes = [s for s in SMALL if "batch" not in s]
    if "text" in compose_config([f"task={task}"]).task:
        sizes = on_text(text_folder, task)
    words = [f"model={model}", f"task={task}", "debug=one_batch", "trainer=cpu", "logger=none"]
    cfg = compose_config([*words, f"runs={tmp_path}", *sizes])
    told = knows_digits(cfg)
    if told and task != "arithmetic":
        with pytest.raises(ConfigError, match=r"which tokens are digits.* task=arithmetic"):
            blank_parts(cfg)
        return
    record = run(cfg)
    trains = make_task(cfg).trains
    assert record["steps"] == int(trains)
    said = (RunDirectory(cfg).path / "log.txt").read_text()
    assert ("an untrained model is evaluated" in said) is not trains
    assert record.get("knows_digits", False) is told
    assert all(value == value for value in record["metrics"].values())
    assert RunDirectory(cfg).done
    pictures = [Image.open(path) for path in RunDirectory(cfg).artifacts.glob("*.png")]
    assert all((min(picture.size) > 100) is drawn for picture in pictures)


def test_accumulation_does_not_change_the_loss(tiny_run, tmp_path):
    losses = []
    for micro in (16, 4):
        cfg, _ = tiny_run(
            f"runs={tmp_path}/{micro}", f"trainer.micro_batch={micro}", "model=rope", steps=6
        )
        losses.append(losses_of(RunDirectory(cfg).path))
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)
    assert len(losses[0]) == 6


def test_processes_that_go_on_from_different_steps_are_refused(tiny_run, monkeypatch):
    monkeypatch.setattr(checkpoints, "gather", lambda step: [step, step + 4])
    with pytest.raises(
        ConfigError, match=r"go on from different steps, 0, 4: .* runs= is the same"
    ):
        tiny_run()


def test_processes_count_the_tokens_of_a_step_once(tiny_run, monkeypatch):
    """Not before each of its micro-batches, where a GPU would wait for the slowest."""
    counted = []

    def summed(values):
        counted.extend([int(values)] if values.dtype == torch.int64 else [])
        return values

    monkeypatch.setattr(module, "sum_over_processes", summed)
    cfg, _ = tiny_run("trainer.micro_batch=2", steps=3)
    assert cfg.task.optim.batch > 2
    assert len(counted) == 3


def test_compiling_changes_the_losses_by_rounding_only(tiny_run, tmp_path, monkeypatch):
    """Of a layer that samples its positions anew in every step; graphs are not made into kernels
    here, which takes a minute.
    """
    graphs = partial(torch.compile, backend="aot_eager")
    monkeypatch.setattr(torch, "compile", graphs)
    losses, kept = [], []
    for compiled in ("false", "true"):
        place = f"runs={tmp_path}/{compiled}"
        words = [place, f"trainer.compile={compiled}", "model=tape_randpe", "task.arch.layers=1"]
        cfg, record = tiny_run(*words, steps=6)
        losses.append(losses_of(RunDirectory(cfg).path))
        kept.append(record["attention"])
        assert record.get("compiled", False) == (compiled == "true")
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)
    assert kept[0] == kept[1], "the record names the backends in either case"
    assert "explicit" in kept[0][0]


def test_two_processes_see_the_same_samples_and_losses(tmp_path):
    """DDP and FSDP on two CPU processes against one process, sampled positions included."""
    losses, metrics = [], []
    for strategy, devices in (("auto", 1), ("ddp", 2), ("fsdp", 2)):
        place = tmp_path / strategy
        arguments = ["trainer=cpu", f"trainer.strategy={strategy}", f"trainer.devices={devices}"]
        arguments += [f"runs={place}", "model=tape_randpe"]
        finished = train(
            *arguments, "logger=none", *TINY, "task.optim.max_steps=6", "task.samples_per_cell=400"
        )
        assert finished.returncode == 0, finished.stderr
        path = next(place.rglob("record.json"))
        losses.append(losses_of(path.parent))
        metrics.append(json.loads(path.read_text())["metrics"])
    for other in range(1, len(losses)):
        assert losses[other] == pytest.approx(losses[0], abs=1e-5)
        assert metrics[other] == pytest.approx(metrics[0], abs=1e-3)
    assert len(losses[0]) == 6


TINY = [*SMALL, "task.train_digits=2", "task.test_digits=3", "task.samples_per_cell=4"]
TINY += ["trainer.log_every=1", "trainer.progress=none"]


def test_killed_and_resumed_gives_the_uninterrupted_curve(tmp_path, text_folder):
    """SIGKILL of both processes in the middle, the same command again: the same losses bit for bit,
    each step once. The soak does so with one process.

    An epoch of the text has fewer steps than the run: it stops inside one and goes on into the
    next.
    """
    common = ["model=tape", "trainer=cpu", "logger=none", "trainer.devices=2", "task=c4"]
    common += [*on_text(text_folder), "task.optim.max_steps=90", "task.optim.batch=16"]
    common += ["trainer.log_every=1", "trainer.checkpoint_every=10", "trainer.validate_every=30"]
    steps = compose_config(common).task.optim.max_steps
    assert train(*common, f"runs={tmp_path}/whole").returncode == 0
    process = Command(*common, f"runs={tmp_path}/killed", group=True)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        found = list(Path(tmp_path, "killed").rglob("metrics.jsonl"))
        if found and any(row["step"] >= 25 for row in read_metrics(found[0])):
            break
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.finish()
    interrupted = read_metrics(found[0])[-1]["step"]
    assert 25 <= interrupted < steps, "the process was not killed in the middle"
    resumed = train(*common, f"runs={tmp_path}/killed")
    assert resumed.returncode == 0
    assert "Resuming from step" in resumed.stdout
    whole, killed = (soak.directory_of(common, tmp_path / name) for name in ("whole", "killed"))
    assert soak.compare(whole, killed) == []


def test_record_holds_what_tables_need(tiny_run):
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
    assert {"heatmap.npz", "heatmap.png", "patterns.npz", "samples.json"} <= {*record["artifacts"]}
    assert (directory.artifacts / "heatmap.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert (directory.path / "config.yaml").exists()
    assert (
        json.loads((directory.path / "manifest.json").read_text())["config_hash"]
        == record["config_hash"]
    )


def test_finished_run_is_not_run_again(tiny_run, capsys):
    cfg, record = tiny_run("model=nope")
    before = (RunDirectory(cfg).path / "metrics.jsonl").read_text()
    assert run(cfg) == record
    assert "is DONE" in capsys.readouterr().out
    assert (RunDirectory(cfg).path / "metrics.jsonl").read_text() == before


def test_overfit_sees_one_batch_and_learns_it(tiny_run):
    cfg, _ = tiny_run("debug=overfit", "model=rope", "debug.max_steps=120", "task.optim.lr=3e-3")
    losses = losses_of(RunDirectory(cfg).path)
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize("profiler", ["simple", "pytorch"])
def test_profiler_leaves_its_report(tiny_run, profiler):
    cfg, _ = tiny_run(
        "debug=profiler", f"debug.profiler={profiler}", "debug.max_steps=6", "model=rope"
    )
    reports = [p.name for p in RunDirectory(cfg).artifacts.iterdir() if "profile" in p.name]
    assert reports


def test_corrupt_checkpoint_falls_back_to_the_one_before(tiny_run, capsys, tmp_path):
    cfg, _ = tiny_run("model=rope", "trainer.checkpoint_every=2", steps=8)
    directory, whole = RunDirectory(cfg), soak.curve(RunDirectory(cfg))
    (directory.path / "DONE").unlink()
    newest = directory.checkpoints / "step00000008.ckpt"
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes(content)
    capsys.readouterr()
    run(cfg)
    said = capsys.readouterr().out
    assert "step00000008.ckpt is damaged" in said
    assert "Resuming from step 6" in said
    assert soak.curve(directory) == whole


def test_checkpoint_of_another_config_is_refused(tiny_run):
    cfg, _ = tiny_run("model=rope")
    other, _ = tiny_run("model=rope", "seed=5")
    (RunDirectory(other).path / "DONE").unlink()
    name = "checkpoints/step00000004.ckpt"
    (RunDirectory(cfg).path / name).replace(RunDirectory(other).path / name)
    with pytest.raises(ConfigError, match="belongs to a run of another config"):
        run(other)


def test_failed_run_ends_with_one_sentence_and_exit_code_1(tmp_path):
    words = ["model=rope", "trainer=cpu", "logger=none", *TINY, f"runs={tmp_path}"]
    failed = train(*words, "task.optim.lr=1000", "task.optim.weight_decay=1e30")
    assert failed.returncode == 1
    (line,) = failed.stderr.splitlines()
    assert line.startswith("error: NotFiniteError: the loss is")
    assert "Lower task.optim.lr=1000.0" in line
    (traceback,) = tmp_path.rglob("FAILED")
    assert str(traceback) in failed.stdout
    assert "NotFiniteError" in traceback.read_text()
    assert not traceback.with_name("DONE").exists()


@pytest.mark.parametrize("flags", [(), ("-m",)])
def test_ctrl_c_ends_with_130_and_no_traceback(tmp_path, flags):
    words = ["trainer=cpu", "logger=none", *TINY, f"runs={tmp_path}", "task.optim.max_steps=100000"]
    running = Command(*flags, *words)
    while not list(tmp_path.rglob("metrics.jsonl")) and running.poll() is None:
        time.sleep(0.05)
    running.send_signal(signal.SIGINT)
    ended = running.finish()
    assert ended.returncode == 130, ended.stdout + ended.stderr
    assert "Traceback" not in ended.stderr
    assert ". The same command " in ended.stdout


def test_nodes_that_nobody_starts_are_told_at_once(tiny_run, monkeypatch):
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    with pytest.raises(ConfigError, match=r"trainer\.nodes=2 waits for .*torchrun"):
        tiny_run("model=rope", "trainer.nodes=2")


def test_the_log_says_that_an_error_is_a_standard_error(caplog, tmp_path):
    caplog.set_level(logging.INFO, logger="tape_exp")
    directory = RunDirectory(compose_config([f"runs={tmp_path}"]))
    found = Evaluation({"ood/exact_match": 12.5, "ood/exact_match_stderr": 0.25, "ood/other": 3.0})
    module = SimpleNamespace(validation={"val/loss": 0.004}, evaluation=found)
    run_module.log_result(directory, module, [])
    validated, first, second, _ = caplog.messages
    assert validated.split() == ["val/loss", "4.0e-03"]
    assert first.split() == ["ood/exact_match", "12.50", "(SE", "0.25)"]
    assert second.split() == ["ood/other", "3.00"]


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EPIPE], ids=["full disk", "no reader"])
def test_a_run_whose_output_nobody_can_take_ends_done(tiny_run, monkeypatch, capfd, error):
    class Lost(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(error, os.strerror(error))

    monkeypatch.setattr(sys, "stdout", Lost())
    cfg, record = tiny_run("model=rope", "trainer.progress=lines")
    folder = RunDirectory(cfg).path
    assert record["steps"] == 4
    assert (folder / "DONE").exists()
    assert not (folder / "FAILED").exists()
    assert "DONE" in (folder / "log.txt").read_text()
    assert "Logging error" not in capfd.readouterr().err
