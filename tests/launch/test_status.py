"""What the status of a grid says, of run directories in every state."""

import json
import os
import time

import pytest

from tape_exp.launch import status, sweep
from tape_exp.launch.grid import folder_of, jobs_of
from tape_exp.launch.queue import Task
from tape_exp.settings.errors import ConfigError
from tests.conftest import finish


@pytest.fixture
def grid(tmp_path, monkeypatch):
    """(words, jobs) of six runs of 100 steps; no SLURM answers."""
    monkeypatch.setattr(status, "states", lambda name: {})
    words = ["model=rope,nope,alibi", "seed=0,1", "task.optim.max_steps=100", f"runs={tmp_path}"]
    return words, jobs_of(words)


def begin(job, steps=40, age=0.0):
    """Let a run have come to a step, 0.5 seconds each, and be silent for ``age`` seconds."""
    place = job.directory()
    place.path.mkdir(parents=True)
    rows = [
        {"step": step, "train/loss": 1.0, "seconds": 10 + step / 2} for step in range(1, steps + 1)
    ]
    file = place.path / "metrics.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"step": 41, "unfin')
    os.utime(file, (time.time() - age,) * 2)
    return place


def test_every_state_is_told(grid, capsys, tmp_path):
    words, jobs = grid
    finish(begin(jobs[0]))
    begin(jobs[1])
    begin(jobs[2]).write("FAILED", "Traceback\n  line\nNotFiniteError: the loss is [nan]\n\n")
    begin(jobs[3], age=4000)
    logs = folder_of(jobs) / "logs"
    logs.mkdir(parents=True)
    (logs / "4.txt").write_text(
        "== job\nerror: the run directory cannot be written\nsrun: launch\n"
    )
    assert status.main(words) == 0
    told = capsys.readouterr().out
    rows = {
        tuple(line.split()[:2]): line for line in told.splitlines() if line.startswith("model=")
    }
    assert "done" in rows["model=rope", "seed=0"]
    assert all(word in rows["model=rope", "seed=1"] for word in ("running", "40/100", "0:00:30"))
    assert "failed" in rows["model=nope", "seed=0"]
    assert "NotFiniteError: the loss is [nan]" in rows["model=nope", "seed=0"]
    assert "stopped" in rows["model=nope", "seed=1"]
    assert "error: the run directory cannot be written" in rows["model=alibi", "seed=0"]
    assert "missing" in rows["model=alibi", "seed=1"]
    assert "1 done, 1 running, 2 failed, 1 stopped, 1 missing" in told


def test_a_run_that_was_asked_to_leave_is_stopped_at_once(grid, capsys):
    """And running again as soon as it has said anything more."""
    words, jobs = grid
    log = begin(jobs[0]).path / "log.txt"
    log.write_text("2026-01-01 00:00:00 Stopped by SIGTERM. The same command goes on.\n")
    status.main(words)
    assert "1 stopped, 5 missing" in capsys.readouterr().out
    with log.open("a") as file:
        file.write("2026-01-01 00:00:09 Going on from step 40.\n")
    status.main(words)
    assert "1 running, 5 missing" in capsys.readouterr().out


def test_the_queue_knows_better_than_a_silent_file(grid, capsys, monkeypatch):
    words, jobs = grid
    begin(jobs[0], age=4000)
    begin(jobs[1]).write("FAILED", "before\n")
    told = {0: Task("RUNNING", "7"), 1: Task("PENDING", "7"), 2: Task("PENDING", "8")}
    monkeypatch.setattr(status, "states", lambda name: told)
    assert status.main(words) == 0
    assert "1 running, 2 queued, 3 missing" in capsys.readouterr().out


def test_a_slurm_that_does_not_answer_is_no_obstacle(grid, capsys, monkeypatch):
    def states(name):
        raise ConfigError("SLURM does not answer.")

    monkeypatch.setattr(status, "states", states)
    assert status.main(grid[0]) == 0
    told = capsys.readouterr().out
    assert "The queue is left out: SLURM does not answer." in told
    assert "6 missing" in told


def test_a_submitted_sweep_is_found_again(grid, capsys, tmp_path, monkeypatch):
    lock = folder_of(grid[1]) / ".lock"
    lock.parent.mkdir(parents=True)
    lock.touch()  # of a sweep that sbatch refused
    assert status.main(["--runs", str(tmp_path)]) == 2
    told = capsys.readouterr().err
    assert f"no sweep was submitted from here ({tmp_path}/.sweeps has none)" in told
    submit(monkeypatch, grid[0])
    assert status.main(["--runs", str(tmp_path)]) == 0
    assert "6 missing" in capsys.readouterr().out


def submit(monkeypatch, words):
    """Submit a sweep to no SLURM."""
    monkeypatch.setattr(sweep, "states", lambda name: {})
    monkeypatch.setattr(sweep, "submit", lambda arguments: "7")
    assert sweep.main(words) == 0


def test_a_sweep_that_cannot_be_read_does_not_hide_the_others(grid, capsys, tmp_path, monkeypatch):
    submit(monkeypatch, grid[0])
    folder = tmp_path / ".sweeps/outgrown"
    folder.mkdir()
    outgrown = {
        "model=rope\nmodel=rope task.lost=1\n": "task.lost is not known",
        "model='rope\n": "No closing quotation",
    }
    outgrown[""] = "its jobs.txt is empty"
    for line, reason in outgrown.items():
        (folder / "jobs.txt").write_text(line)
        assert status.main(["--runs", str(tmp_path)]) == 0
        told = capsys.readouterr()
        assert "6 missing" in told.out
        assert f"The sweep {folder} is left out ({reason}" in told.err
        assert told.err.count("\n") == 1
    folder_of(grid[1]).joinpath("jobs.txt").unlink()
    assert status.main(["--runs", str(tmp_path)]) == 2
    assert f"no sweep below {tmp_path}/.sweeps can be read" in capsys.readouterr().err


def test_the_sweeps_of_another_folder_are_read_where_they_lie(capsys, tmp_path, monkeypatch):
    """Of another clone, whose runs= is relative."""
    asked = []
    monkeypatch.setattr(status, "states", lambda name: asked.append(name) or {})
    (tmp_path / "clone").mkdir()
    monkeypatch.chdir(tmp_path / "clone")
    words = ["model=rope", "seed=0,1,2"]
    submit(monkeypatch, words)
    jobs = jobs_of(words)
    finish(begin(jobs[0]))
    folder = folder_of(jobs)
    (folder / "logs/1.txt").write_text("error: no room\n")
    monkeypatch.chdir(tmp_path)
    assert status.main(["--runs", "clone/runs"]) == 0
    told = capsys.readouterr().out
    assert "1 done, 1 failed, 1 missing" in told
    assert "error: no room" in told
    assert asked == [folder.name]
