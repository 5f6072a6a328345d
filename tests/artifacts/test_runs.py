"""The runs that artifacts lack: which, in which order, and what becomes of those that end badly."""

import runpy
import signal
import subprocess
import sys
import time

import psutil
import pytest

from tape_exp.artifacts import __main__ as compare
from tape_exp.artifacts import comparison
from tape_exp.artifacts import runs as room
from tape_exp.artifacts.artifact import artifact_of, load
from tape_exp.experiments import local
from tape_exp.experiments.runnable import runnable
from tape_exp.machine.preemption import REQUEUE
from tape_exp.results.store import read_records
from tape_exp.runs.metrics import read_metrics
from tape_exp.settings.compose import compose_config
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.plugins import source_hash
from tests.artifacts.fakes import addition, record, train_here
from tests.conftest import SMALL
from tests.processes import Command
from tests.training.test_faults import WORDS, wait_for_step

TINY = [*SMALL, "task.train_digits=2", "task.test_digits=3", "task.samples_per_cell=2"]
TINY += ["task.optim.max_steps=2", "logger=none", "trainer=cpu"]


def script(text: str) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-c", text], process_group=0)


@pytest.fixture
def jobs(tmp_path):
    return room.specs_of_artifacts(
        [addition()], "smoke", [0], [*TINY, f"runs={tmp_path}/runs"], records=[]
    )


def test_seeds_come_in_turn_and_what_has_a_record_is_left_out():
    known = [record("fire", 0, {"test/exact_match": 1.0})]
    jobs = room.specs_of_artifacts(
        [addition(), addition(name="again")], "smoke", [0, 1], records=known
    )
    assert [job.title.partition(": ")[2] for job in jobs] == [
        "rope, scale smoke, seed 0",
        "tape, scale smoke, seed 0",
        *(f"{model}, scale smoke, seed 1" for model in ("rope", "fire", "tape")),
    ]


def test_rerun_names_what_has_a_record_too():
    known = [record(model, 0, {"test/exact_match": 1.0}) for model in ("rope", "fire", "tape")]
    assert room.specs_of_artifacts([addition()], "smoke", [0], records=known) == []
    jobs = room.specs_of_artifacts([addition()], "smoke", [0], ["rerun=true"], records=known)
    assert [job.config.rerun for job in jobs] == [True, True, True]
    assert room.specs_of_artifacts([addition()], "smoke", [0], ["rerun=false"], records=known) == []


def test_what_is_recorded_with_another_version_of_a_file_is_told(capsys):
    known = record("rope", 0, {"test/exact_match": 1.0})
    module = "tape_exp.models.positions.rope"
    for digits, told in (
        (source_hash(module), ""),
        ("0123456789", "another version of rope.py. They"),
    ):
        room.specs_of_artifacts(
            [addition()], "smoke", [0], records=[known | {"sources": {module: digits}}]
        )
        said = capsys.readouterr().err
        assert told in said
        assert bool(said) == bool(told)


@pytest.mark.parametrize(("anew", "told"), [(False, "resumes.\n"), (True, "anew (rerun=true).\n")])
def test_the_last_sentence_says_what_the_same_command_does(anew, told, capsys):
    assert local.Outcome(left=2, rerun=anew).status() == REQUEUE
    assert capsys.readouterr().err.endswith(told)


def test_a_run_follows_the_run_that_it_begins_from():
    artifact = load("fig_passkey")
    jobs = room.specs_of_artifacts([artifact], "smoke", [0], records=[], only=["lora interpolated"])
    tasks = [(job.config.task.name, job.config.model.name, job.config.peft.name) for job in jobs]
    assert tasks == [
        ("mixture", "rope", "none"),
        ("extend", "rope", "lora"),
        ("passkey", "rope", "lora"),
    ]
    assert [job.base for job in jobs] == [None, *jobs[:2]]
    assert [job.level for job in jobs] == [0, 1, 2]
    assert [job.config.peft.get("lr") for job in jobs] == [None, 0.001, 0.001]
    for job in jobs:
        assert compose_config(job.overrides).task.name == job.config.task.name


@pytest.mark.parametrize(("status", "reason"), [(1, "status 1."), (REQUEUE, "resumes it.")])
def test_failed_and_killed_runs_cost_only_what_begins_from_them(status, reason, jobs, monkeypatch):
    one, two, three = jobs
    three.base = one
    texts = {
        one: "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
        two: f"raise SystemExit({status})",
    }
    monkeypatch.setattr(local, "start", lambda job, _: local.Running(script(texts[job])))
    outcome = local.run(jobs, 2)
    assert "killed by SIGKILL, maybe for lack of memory" in outcome.failed[one]
    assert outcome.failed[two].endswith(reason)
    assert three in outcome.failed
    assert (outcome.left, outcome.status()) == (0, 1)


@pytest.mark.long
def test_runs_of_the_papers_scale_can_be_built():
    """Of all artifacts `tape-exp paper cost` builds them, in half a minute."""
    artifacts = map(load, ("tab_tune_ppl", "fig_passkey", "tab_bench", "tab_ablation"))
    jobs = room.specs_of_artifacts([*artifacts], "paper", [0], records=[])
    assert runnable(jobs, all_of_them=True) == jobs


@pytest.mark.parametrize("label", ["tape intact 5 digits", "tape intact text"])
def test_a_run_is_made_alone_though_its_task_lacks_what_other_columns_show(label):
    specs = room.specs_of_artifacts([load("fig_address")], "ladder", [0], records=[], only=[label])
    assert runnable(specs, all_of_them=True) == specs


@pytest.mark.slow
def test_the_mistake_of_a_quiet_run_is_told(jobs):
    jobs[0].overrides = ["no_such_key=1"]
    outcome = local.run(jobs[:1], 1)
    assert "no_such_key" in outcome.failed[jobs[0]]


@pytest.mark.slow
def test_when_the_time_is_over_runs_leave_and_the_rest_is_counted(jobs, monkeypatch, tmp_path):
    told = tmp_path / "told"
    text = f"""
import pathlib, signal, sys, time
signal.signal(signal.SIGUSR1, lambda *_: (pathlib.Path({str(told)!r}).touch(), sys.exit({REQUEUE})))
time.sleep(60)
"""
    began = []

    def start(job, one_thread):
        began.append(job.title)
        process = script(text)
        time.sleep(1)  # it takes the signal only once it has begun
        return local.Running(process)

    monkeypatch.setattr(local, "start", start)
    outcome = local.run(jobs, minutes=0.02)
    assert (outcome.left, outcome.status(), len(began)) == (3, REQUEUE, 1)
    assert told.exists()


def test_a_metric_that_no_run_measures_is_told_before_anything_runs(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(local, "run", None)
    words = ["task=arithmetic", *TINY, "model=rope,nope", f"runs={tmp_path}/runs"]
    assert compare.main([*words, "metrics=id/exact_match,test/exact_mach"]) == 2
    told = capsys.readouterr().err
    assert "metric test/exact_mach is not known. Did you mean 'test/exact_match'?" in told
    assert "The task has val/loss, val/exact_match, test/exact_match," in told
    assert not (tmp_path / "runs").exists()


def test_a_column_of_an_artifact_needs_one_run_that_measures_it():
    """Its rows may be of several tasks, and labels may come from records that are still missing."""
    rows = {"task": ["arithmetic", "word_problem"], "n": {"2": [], "": []}}

    def jobs(metric):
        keys = {"title": "", "rows": rows, "columns": {"x": {"metric": metric}}}
        artifact = artifact_of("a", keys)
        return room.specs_of_artifacts([artifact], "smoke", [0], records=[])

    for metric in ("ood/state", "id/exact_match", "state/size@{n}", "extra_length", "steps"):
        found = jobs(metric)
        assert runnable(found) == found, metric
    for metric in ("ood/stat", "state/size@{n}{n}"):
        with pytest.raises(ConfigError, match=f"^metric {metric.format(n=2)} is not known"):
            runnable(jobs(metric))


@pytest.mark.slow
def test_a_comparison_runs_what_it_lacks_once_and_keeps_it(tmp_path, capsys, monkeypatch):
    """One model in a process of its own, the other in this one."""
    monkeypatch.chdir(tmp_path)
    given = ["task=arithmetic", *TINY, f"runs={tmp_path}/runs", "metrics=id/exact_match"]
    assert compare.main([*given, "model=nope", "--cores", "2"]) == 0
    monkeypatch.setattr(local, "start", train_here)
    words = [*given, "model=rope,nope"]
    assert compare.main(words) == 0
    printed = capsys.readouterr().out
    assert printed.count("| NoPE ") == 2
    assert printed.count("| RoPE ") == 1
    own = tmp_path / "runs" / ".compare"
    assert (own / "tables" / "compare_arithmetic-smoke.csv").exists()
    assert len(read_records(own / "records")) == 2
    assert [*comparison.saved(own / "tables")[0].columns] == ["id/exact_match"]
    monkeypatch.setattr(local, "start", None)  # nothing may run again
    assert compare.main(words) == 0
    assert compare.main([*words[:-2], words[-1], "metrics=test/exact_matc"]) == 2
    assert "Did you mean 'test/exact_match'" in capsys.readouterr().err
    assert compare.main([*words[:-2], words[-1]]) == 0
    printed = capsys.readouterr().out
    assert "| test/exact_match   | id/exact_match   | ood/exact_match   |" in printed
    assert "val/loss" not in printed
    assert "seed 0. Further results are in its CSV file." in printed
    assert "val/loss" in (own / "tables" / "compare_arithmetic_2-smoke.csv").read_text()


def test_a_comparison_never_takes_the_name_of_another(tmp_path):
    def named(words, name="", metrics=()):
        artifact, *_ = comparison.requested(["task=arithmetic", *words.split()], name, metrics)
        return artifact, comparison.free_name(artifact, tmp_path, name)

    def write(words, *further):
        artifact, artifact.name = named(words, *further)
        comparison.describe(artifact, tmp_path)
        return artifact.name

    first = "model=rope,tape seed=0"
    assert write(first) == "compare_arithmetic"
    assert write("model=rope,nope") == "compare_arithmetic_2"
    assert write(f"{first} task.train_digits=3") == "compare_arithmetic_3"
    assert write(f"{first} trainer.precision=bf16-mixed") == "compare_arithmetic_4"
    assert write(f"{first} scale=small") == "compare_arithmetic_5"
    assert write(first, "", ["ood/exact_match"]) == "compare_arithmetic", "of the same runs"
    assert write("model=rope,tape seed=0,1 runs=elsewhere") == "compare_arithmetic", "the same"
    assert write("model=rope,nope") == "compare_arithmetic_2"
    assert write("model=alibi", "mine") == "mine"
    assert write("model=alibi seed=0,1", "mine") == "mine"
    with pytest.raises(ConfigError, match=r"as in --name=mine_2, or remove .*mine"):
        named("model=fire", "mine")


def comparing(*words: str) -> None:
    """``python -m tape_exp.artifacts words``."""
    sys.argv = ["compare", *words]
    runpy.run_module("tape_exp.artifacts", run_name="__main__", alter_sys=True)


@pytest.mark.hosts
@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGKILL])
def test_runs_save_and_leave_with_their_comparison(number, tmp_path):
    """Also where it cannot tell them to."""
    words = [*(word for word in WORDS if "model" not in word), "model=rope", "task=arithmetic"]
    words += [f"runs={tmp_path}", "task.optim.max_steps=100000", "trainer.checkpoint_every=100000"]
    comparison = Command(*words, "--cores", "1", program=comparing, group=True)
    wait_for_step(tmp_path, 5, comparison)
    (child,) = psutil.Process(comparison.pid).children()
    comparison.send_signal(number)
    comparison.wait()
    while child.is_running() and child.status() != psutil.STATUS_ZOMBIE:  # until pytest's own limit
        time.sleep(0.1)
    (checkpoint,) = tmp_path.rglob("*.ckpt")
    (metrics,) = tmp_path.rglob("metrics.jsonl")
    assert checkpoint.name == f"step{read_metrics(metrics)[-1]['step']:08d}.ckpt"
