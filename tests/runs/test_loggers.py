"""Loggers: W&B offline read back, and a W&B that cannot be reached."""

import json
import logging
import math
import re
import time
from pathlib import Path

import numpy as np
import pytest
import wandb
from lightning.pytorch.loggers import WandbLogger

from tape_exp.machine.processes import Process, part_of_run
from tape_exp.runs.directory import RunDirectory
from tape_exp.runs.evaluation import Evaluation
from tape_exp.runs.loggers import JsonlLogger, make_loggers
from tape_exp.runs.metrics import POINTS, Stopwatch, curves, read_metrics
from tape_exp.settings.compose import compose_config


def wandb_records(folder: Path, seconds: float = 90) -> list:
    """Every record of an offline run's log, once W&B's own process has written the last one, that
    of the run's exit.
    """
    deadline = time.monotonic() + seconds
    while True:
        records = written_records(folder)
        if any(record.WhichOneof("record_type") == "exit" for record in records):
            return records
        assert time.monotonic() < deadline, "W&B has not written the end of the run"
        time.sleep(0.2)


def written_records(folder: Path) -> list:
    """What the log holds at this moment."""
    from wandb.proto import wandb_internal_pb2

    log = next(folder.glob("wandb/offline-run-*/run-*.wandb")).read_bytes()
    records, position, pending = [], 7, b""
    while position + 7 <= len(log):
        left = 32768 - position % 32768
        if left < 7:
            position += left
            continue
        length, kind = int.from_bytes(log[position + 4 : position + 6], "little"), log[position + 6]
        pending += log[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # a full record, or the last part of one
            record = wandb_internal_pb2.Record()
            record.ParseFromString(pending)
            records.append(record)
            pending = b""
    return records


@pytest.mark.slow
def test_wandb_offline_run_holds_config_curve_image_and_table(tiny_run, capfd):
    cfg, record = tiny_run("model=rope", "logger=wandb", "logger.tags=[mine]")
    folder = next(RunDirectory(cfg).path.glob("wandb/offline-run-*"))
    printed = capfd.readouterr().out
    assert printed.count("W&B is offline") == 1
    assert f"wandb sync {folder}" in printed
    directory = RunDirectory(cfg)
    files = next(directory.path.glob("wandb/offline-run-*/files"))
    assert files.parent.name.endswith(directory.hash)
    images = list(files.glob("media/images/test/heatmap_*.png"))
    assert len(images) == 1
    assert images[0].read_bytes() == (directory.artifacts / "heatmap.png").read_bytes()
    table = json.loads(next(files.glob("media/table/test/samples_*.table.json")).read_text())
    rows = json.loads((directory.artifacts / "samples.json").read_text())
    assert table["columns"] == list(rows[0])
    assert table["data"] == [list(row.values()) for row in rows]

    records = wandb_records(directory.path)
    started = next(r.run for r in records if r.WhichOneof("record_type") == "run")
    assert started.run_id == directory.hash
    config = {item.key: json.loads(item.value_json) for item in started.config.update}
    assert config["model"]["name"] == "rope"
    logged = [
        {"/".join(i.nested_key) or i.key: i.value_json for i in r.history.item}
        for r in records
        if r.history.item
    ]
    assert started.display_name == directory.name
    assert list(started.tags) == ["rope", "arithmetic", "smoke", "mine"]
    assert started.notes == "rope on arithmetic, scale smoke, seed 0"
    charts = {key for row in logged for key in row if not key.startswith(("_", "test/heatmap"))}
    kinds = [json.loads(v) for row in logged for key, v in row.items() if key.endswith("/_type")]
    assert kinds.count("images/separated") == len(list(directory.artifacts.glob("*.png"))) >= 1
    assert kinds.count("table-file") == len(list(directory.artifacts.glob("*.json"))) >= 1
    assert {"train/loss", "val/loss", "test/exact_match", "ood/exact_match"} <= charts
    summary = {i.key: json.loads(i.value_json) for r in records for i in r.summary.update}
    assert summary["test/exact_match"] == record["metrics"]["test/exact_match"]
    assert summary["parameters"] == record["parameters"]
    assert not any(r.WhichOneof("record_type") == "output_raw" for r in records)
    losses = [json.loads(row["train/loss"]) for row in logged if "train/loss" in row]
    assert losses == [
        row["train/loss"]
        for row in read_metrics(directory.path / "metrics.jsonl")
        if "train/loss" in row
    ]


@pytest.mark.slow
def test_a_logger_that_fails_ends_no_run(tiny_run, monkeypatch):
    """W&B's process may be killed, by the machine's guard of memory for one."""
    taken = []

    def log_metrics(self, metrics, step=None):
        taken.append(step)
        if step == 2:
            raise ConnectionResetError("Connection lost")

    monkeypatch.setattr(WandbLogger, "log_metrics", log_metrics)
    cfg, record = tiny_run("model=rope", "logger=wandb", "logger.mode=offline")
    assert RunDirectory(cfg).done
    assert max(taken) == 2
    said = (RunDirectory(cfg).path / "log.txt").read_text()
    assert said.count("No more is sent to WandbLogger: ConnectionResetError('Connection") == 1
    steps = [row["step"] for row in read_metrics(RunDirectory(cfg).metrics)]
    assert steps[-1] == record["steps"] == 4


def test_a_second_node_begins_no_run_of_wandb(tmp_path):
    cfg = compose_config([f"runs={tmp_path}", "logger.mode=offline"])
    directory = RunDirectory(cfg)
    directory.path.mkdir(parents=True)
    with part_of_run(Process(1, 2, 1), directory.name):
        assert make_loggers(cfg, directory, Stopwatch(), 0) == []
    assert list(tmp_path.rglob("offline-run-*")) == []


def test_a_point_that_is_not_finite_is_none_of_a_record(caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("tape_exp"), "propagate", True)
    rows = [{"step": n, "val/loss": value} for n, value in enumerate((2.0, math.nan, 1.0))]
    assert curves(rows) == {"val/loss": {"step": [0, 2], "value": [2.0, 1.0]}}
    matrices = {"good": np.ones((2, 2)), "bad": np.full((2, 2), np.nan)}
    assert list(Evaluation({}, matrices=matrices).for_record()["matrices"]) == ["good"]
    assert "Not finite, and not in the record: bad." in caplog.text


def test_a_run_continues_offline_where_wandb_cannot_be_reached(tiny_run, monkeypatch, capfd):
    """The server does not answer in time."""
    begin, timeouts = wandb.init, []

    def init(mode=None, **options):
        if mode != "offline":
            timeouts.append(options["settings"].init_timeout)
            raise wandb.errors.CommError("no answer")
        return begin(mode=mode, **options)

    monkeypatch.setattr(wandb, "init", init)
    cfg, _ = tiny_run("model=rope", "logger=wandb", "logger.mode=online", "logger.timeout=7")
    assert timeouts == [7]
    assert "W&B could not begin a run online: CommError('no answer')" in capfd.readouterr().out
    (folder,) = RunDirectory(cfg).path.glob("wandb/offline-run-*")
    assert folder.name.endswith(RunDirectory(cfg).hash), "the id is the hash there too"


def test_jsonl_rewinds_to_a_checkpoint(tmp_path):
    path = tmp_path / "metrics.jsonl"
    logger = JsonlLogger(path, Stopwatch())
    for step in range(1, 6):
        logger.log_metrics({"train/loss": 1 / step}, step)
    path.write_text(re.sub(r'"seconds": [\d.]+', '"seconds": 1000.0', path.read_text()))
    with path.open("a") as file:
        file.write('{"step": 6, "train/lo')  # what a killed process leaves
    logger = JsonlLogger(path, Stopwatch(), step=3)
    assert [row["step"] for row in read_metrics(path)] == [1, 2, 3]
    logger.log_metrics({"train/loss": 0.2}, 3)  # which the killed process has reported
    logger.log_metrics({"train/loss": 0.1}, 4)
    assert [row["step"] for row in read_metrics(path)] == [1, 2, 3, 4]
    assert read_metrics(path)[-1]["seconds"] >= 1000, "with those of earlier processes"


def test_a_long_curve_is_thinned_and_keeps_its_ends():
    rows = [{"step": step, "train/loss": 1 / step} for step in range(1, 1001)] + [
        {"step": 1000, "val/loss": 0.5}
    ]
    found = curves(rows)
    assert list(found) == ["train/loss"], "a single point is no curve"
    steps, values = found["train/loss"]["step"], found["train/loss"]["value"]
    assert len(steps) == POINTS["train/loss"]
    assert (steps[0], steps[-1]) == (1, 1000)
    assert values == pytest.approx([1 / step for step in steps], rel=1e-4)


def test_two_runs_of_one_process_are_two_wandb_runs(tiny_run):
    """A sweep in one process must not write all its curves into the first run."""
    for seed in (0, 1):
        cfg, _ = tiny_run("model=rope", "logger=wandb", f"seed={seed}", steps=1)
        (folder,) = RunDirectory(cfg).path.glob("wandb/offline-run-*")
        assert folder.name.endswith(RunDirectory(cfg).hash)
        (started,) = {r.run.run_id for r in wandb_records(RunDirectory(cfg).path)} - {""}
        assert started == RunDirectory(cfg).hash
