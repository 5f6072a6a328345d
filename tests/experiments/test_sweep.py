"""What a sweep submits, without a cluster: SLURM's commands are shell scripts that write down their
arguments.
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tape_exp.artifacts.requests import specs_of_words
from tape_exp.experiments import cluster, job_script, snapshot
from tape_exp.experiments import slurm as room
from tape_exp.experiments.run_spec import read_specs, write_specs
from tape_exp.runs.directory import RunDirectory
from tape_exp.settings.folders import ROOT
from tape_exp.sweep import main
from tests.conftest import finish


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """SLURM's commands: each appends its arguments to calls.txt, prints <name>.says and exits with
    <name>.exits, or with 1 and no word the first <name>.fails times. Nobody sleeps, and no settings
    of a cluster are read.
    """
    commands = tmp_path / "bin"
    commands.mkdir()
    for name in ("sbatch", "squeue", "srun", "scontrol", "sleep"):
        (commands / name).write_text(
            f'#!/bin/bash\nprintf "%s" {name} >> {tmp_path}/calls.txt\n'
            f'printf " %q" "$@" >> {tmp_path}/calls.txt\n'
            f"echo >> {tmp_path}/calls.txt\n"
            f"left=$(cat {tmp_path}/{name}.fails 2> /dev/null || echo 0)\n"
            f"[ $left -gt 0 ] && echo $((left - 1)) > {tmp_path}/{name}.fails && exit 1\n"
            f"cat {tmp_path}/{name}.says 2> /dev/null\n"
            f"exit $(cat {tmp_path}/{name}.exits 2> /dev/null || echo 0)\n"
        )
        (commands / name).chmod(0o755)
    (tmp_path / "sbatch.says").write_text("41;cluster\n")
    monkeypatch.setenv("PATH", f"{commands}:{os.environ['PATH']}")
    monkeypatch.setattr(cluster, "CLUSTER", tmp_path / "cluster.yaml")
    monkeypatch.setattr(room, "snapshot", lambda folder: ROOT)
    monkeypatch.setattr(room, "check_committed", lambda: None)
    return tmp_path


def calls(folder: Path, name: str) -> list[str]:
    file = folder / "calls.txt"
    lines = file.read_text().splitlines() if file.exists() else []
    return [line.removeprefix(f"{name} ") for line in lines if line.startswith(f"{name} ")]


def only_sweep(runs: Path) -> Path:
    (jobs,) = (runs / ".sweeps").glob("*/jobs.tsv")
    return jobs.parent


def queue_holds(slurm: Path, words: list[str], tasks: str) -> None:
    """Let tasks of a sweep be in the queue: ``3 RUNNING 40`` is its fourth run, in array 40."""
    specs = specs_of_words(words)
    sweep = room.sweep_folder(specs)
    sweep.mkdir(parents=True, exist_ok=True)
    write_specs(specs, sweep)
    lines = [f"tape_exp-{sweep.name} {task} None\n" for task in tasks.splitlines()]
    (slurm / "squeue.says").write_text("".join(lines))


def run_task(script: Path, number: int, **options) -> subprocess.CompletedProcess:
    """The script as SLURM would run it, as a task of array 7."""
    task = {"SLURM_JOB_ID": "9", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": str(number)}
    environment = {**os.environ, **task}
    return subprocess.run(
        ["bash", script], env=environment, capture_output=True, text=True, **options
    )


def test_what_is_done_or_in_the_queue_is_left_out(slurm, capsys):
    words = ["model=rope,nope", "seed=0,1,2", f"runs={slurm}/runs"]
    jobs = specs_of_words(words)
    finish(RunDirectory(jobs[0].config))
    queue_holds(slurm, words, "3 RUNNING 40\n4 PENDING 40")
    assert main(["sweep", *words, "--cap", "2"]) == 0
    printed = capsys.readouterr().out
    assert "6 runs: 1 done, 2 in the queue, 3 to submit." in printed
    assert "Submitted job 41" in printed
    assert f"tape-exp status {shlex.join(words)}" in printed
    folder = only_sweep(slurm / "runs")
    assert calls(slurm, "sbatch") == [f"--parsable --array=1\\,2\\,5%2 {folder}/script.sh"]
    (asked,) = calls(slurm, "squeue")
    assert "--me " in asked, "the tasks of others were asked for"


@pytest.mark.parametrize(
    "words",
    [
        ["model=rope,nope", "seed=0,1,2"],  # more seeds
        ["model=nope,rope", "seed=1,0,2", "scale=smoke"],  # in another order, with a default
    ],
)
def test_runs_are_in_the_queue_whatever_words_name_them(slurm, capsys, words):
    queue_holds(
        slurm, ["model=rope,nope", "seed=0,1", f"runs={slurm}/runs"], "0 RUNNING 40\n3 PENDING 40"
    )
    assert main(["sweep", *words, f"runs={slurm}/runs"]) == 0
    assert "6 runs: 0 done, 2 in the queue, 4 to submit." in capsys.readouterr().out
    assert main(["status", *words, f"runs={slurm}/runs"]) == 0
    assert "1 running" in (shown := capsys.readouterr().out)
    assert "1 queued" in shown


def test_the_same_words_after_a_pull_that_changed_a_default_are_other_runs(slurm, capsys):
    """Queued jobs run the older commit, in the folder that its config gave."""
    words = ["model=rope", f"runs={slurm}/runs"]
    queue_holds(slurm, words, "0 PENDING 40")
    jobs = only_sweep(slurm / "runs") / "jobs.tsv"
    (run,) = read_specs(jobs.parent)
    jobs.write_text(jobs.read_text().replace(run.folder.name, "seed0-0123456789"))
    assert main(["sweep", *words]) == 0
    assert "1 runs: 0 done, 0 in the queue, 1 to submit." in capsys.readouterr().out


def test_what_sbatch_refuses_is_no_sweep(slurm, capsys):
    (slurm / "sbatch.exits").write_text("1")
    words = ["model=rope", f"runs={slurm}/runs"]
    assert main(["sweep", *words]) == 2
    assert f"those of slurm.<option>= and of {slurm}/cluster.yaml" in capsys.readouterr().err
    assert main(["status", "--runs", f"{slurm}/runs"]) == 2
    assert "has neither a sweep that was submitted" in capsys.readouterr().err


def test_a_job_whose_setup_fails_does_not_run(slurm):
    (slurm / "cluster.yaml").write_text("setup:\n  - true\n  - source /no/such/env\n")
    assert main(["sweep", "model=rope", f"runs={slurm}/runs"]) == 0
    done = run_task(only_sweep(slurm / "runs") / "script.sh", 0)
    assert done.returncode == 1
    assert "error: setup of launch/cluster.yaml: source /no/such/env failed." in done.stdout
    assert calls(slurm, "srun") == []


def test_finished_runs_that_are_to_be_made_anew_are_submitted(slurm, capsys):
    words = ["model=rope", "seed=0,1", f"runs={slurm}/runs"]
    finish(RunDirectory(specs_of_words(words)[0].config))
    assert main(["sweep", *words, "rerun=true"]) == 0
    assert "2 runs: 0 done, 0 in the queue, 2 to submit." in capsys.readouterr().out


def test_the_list_of_runs_has_their_words_folders_and_steps(slurm):
    words = ["model=rope,nope", "task.optim.max_steps=70", f"runs={slurm}/runs"]
    assert main(["sweep", *words]) == 0
    folder = only_sweep(slurm / "runs")
    lines = (folder / "jobs.tsv").read_text().splitlines()
    for job, line in zip(specs_of_words(words), lines, strict=True):
        run = f"arithmetic/smoke/{job.config.model.name}/{job.folder.name}"
        assert line == f"{shlex.join(job.overrides)}\t{run}\t70\t"
    for read, job in zip(read_specs(folder), specs_of_words(words), strict=True):
        assert (read.overrides, read.folder, read.steps) == (job.overrides, job.folder, 70)


@pytest.mark.parametrize(
    ("queue", "submitted"),
    [
        ("", ["--array=0\\,1%16", "--array=2\\,3%16 --dependency=afterany:41"]),
        ("0 RUNNING 39\n1 PENDING 40\n", ["--array=2\\,3%16 --dependency=afterany:39:40"]),
        (
            "1 RUNNING 40\n2 PENDING 38\n",
            ["--array=0%16", "--array=3%16 --dependency=afterany:40:41"],
        ),
        ("2 PENDING 38\n", ["--array=0\\,1%16", "--array=3%16 --dependency=afterany:41"]),
    ],
)
def test_levels_wait_for_what_is_in_the_queue(slurm, monkeypatch, queue, submitted):
    """Tasks 0 and 1 are the bases of 2 and 3."""
    monkeypatch.setattr("tape_exp.artifacts.runs.read_records", list)
    words = ["fig_dp_layers", f"runs={slurm}/runs", "seed=5,6"]
    queue_holds(slurm, words, queue)
    assert main(["sweep", *words, "--cap", "16"]) == 0
    script = only_sweep(slurm / "runs") / "script.sh"
    assert calls(slurm, "sbatch") == [f"--parsable {options} {script}" for options in submitted]


def test_a_sweep_begins_after_other_jobs(slurm, monkeypatch):
    monkeypatch.setattr("tape_exp.artifacts.runs.read_records", list)
    words = ["fig_dp_layers", f"runs={slurm}/runs", "seed=5,6", "--cap", "16"]
    assert main(["sweep", *words, "--after", "7:8"]) == 0
    first, second = calls(slurm, "sbatch")
    assert "--dependency=afterany:7:8 " in first
    assert "--dependency=afterany:7:8:41 " in second


def test_limits_that_nobody_chose_are_said(slurm, capsys):
    words = ["model=rope", f"runs={slurm}/runs"]
    assert main(["sweep", *words]) == 0
    said = capsys.readouterr().out
    assert "Each run has 240 minutes and 2 CPUs for each process; slurm.time= and " in said
    assert main(["sweep", *words, "slurm.time=30", "seed=1"]) == 0
    assert (
        "Each run has 2 CPUs for each process; slurm.cpus-per-task= or" in capsys.readouterr().out
    )
    assert main(["sweep", *words, "slurm.time=240", "slurm.cpus_per_task=2", "seed=2"]) == 0
    assert "Each run has" not in capsys.readouterr().out
    (slurm / "cluster.yaml").write_text("time: 30\ncpus_per_task: 8\n")
    assert main(["sweep", *words, "seed=3"]) == 0
    assert "Each run has" not in capsys.readouterr().out


def test_dry_run_prints_the_script_and_writes_nothing(slurm, capsys):
    words = ["model=rope", "seed=0,1", "trainer=ddp", f"runs={slurm}/runs", "slurm.partition=gpu"]
    words += ["slurm.mem=7G", "slurm.signal=USR1@300", "slurm.setup=module load cuda"]
    assert main(["sweep", "--dry-run", *words]) == 0
    script = capsys.readouterr().out
    assert "\nmodule load cuda\n" in script
    for flag in (
        "partition=gpu",
        "mem=7G",
        "ntasks-per-node=2",
        "gpus-per-node=2",
        "nodes=1",
        "signal=USR1@300",
        "requeue",
        "open-mode=append",
    ):
        assert f"#SBATCH --{flag}\n" in script
    assert "model=rope seed=1 trainer=ddp" in script
    assert not (slurm / "runs").exists()
    assert calls(slurm, "sbatch") == []
    assert subprocess.run(["bash", "-n"], input=script, text=True).returncode == 0


def test_dry_run_shows_what_would_be_submitted_in_order(slurm, capsys):
    """Bases first, and nothing that is done or in the queue; also where there is no SLURM."""
    words = ["task=patterns", "checkpoint=c4", "model=rope,tape,nope", f"runs={slurm}/runs"]
    jobs = specs_of_words(words)
    assert [job.config.task.name for job in jobs] == ["c4"] * 3 + ["patterns"] * 3
    base = RunDirectory(jobs[0].config)
    base.open({})
    (base.checkpoints / "step00000008.ckpt").touch()
    finish(base)
    queue_holds(slurm, words, "1 RUNNING 40")
    assert main(["sweep", "--dry-run", *words]) == 0
    shown = capsys.readouterr().out.rpartition("launch/array.sh\n")[2].splitlines()
    assert shown == [
        "",
        "# sbatch --array=2%64",
        f"#   2: {jobs[2].line}",
        "# sbatch --array=3,4,5%64 --dependency=afterany:40:<the array above>",
        *(f"#   {i}: {jobs[i].line}" for i in (3, 4, 5)),
        "# 6 runs: 1 done, 1 in the queue, 4 to submit.",
    ]
    (slurm / "squeue.fails").write_text("1")
    assert main(["sweep", "--dry-run", *words]) == 0
    shown = capsys.readouterr().out
    assert "1 done, 0 in the queue, 5 to submit. Without SLURM's queue: squeue failed" in shown


def test_dry_run_says_that_changes_will_be_refused(slurm, monkeypatch, capsys):
    monkeypatch.setattr(room, "check_committed", snapshot.check_committed)
    monkeypatch.setattr(snapshot, "git_state", lambda: {"commit": "0" * 40, "dirty": True})
    words = ["sweep", "--dry-run", "model=rope", f"runs={slurm}/runs"]
    for options, refused in ([], True), (["--dirty"], False):
        assert main([*words, *options]) == 0
        said = capsys.readouterr().out
        assert ("1 to submit. It will be refused: " in said) == refused


def test_a_base_of_other_settings_that_is_finished_is_the_one_to_begin_from(slurm):
    words = ["checkpoint=c4", "model=rope", f"runs={slurm}/runs"]
    (other,) = specs_of_words(["task=c4", "task.optim.lr=0.01", *words[1:]])
    base = RunDirectory(other.config)
    base.open({})
    (base.checkpoints / "step00000008.ckpt").touch()
    finish(base)
    (job,) = specs_of_words(["task=patterns", *words])
    assert job.folder == RunDirectory(job.config).path


def test_where_nothing_is_to_be_submitted_no_code_is_copied(slurm, monkeypatch, capsys):
    monkeypatch.setattr(room, "snapshot", None)
    words = ["model=rope", "seed=0", f"runs={slurm}/runs"]
    finish(RunDirectory(specs_of_words(words)[0].config))
    assert main(["sweep", *words]) == 0
    assert "1 runs: 1 done, 0 in the queue, 0 to submit." in capsys.readouterr().out


def test_what_sbatch_says_is_told(slurm, capsys):
    said = "sbatch: error: invalid partition: h100\nsbatch: error: Batch job submission failed"
    (slurm / "bin" / "sbatch").write_text(f"#!/bin/bash\necho '{said}' >&2\nexit 1\n")
    assert main(["sweep", "model=rope", f"runs={slurm}/runs", "slurm.partition=h100"]) == 2
    told = said.replace("\n", " ")
    assert capsys.readouterr().err.startswith(f"error: sbatch failed: {told}. Its options are")


@pytest.mark.parametrize(
    ("status", "state", "requeued"),
    [(85, "RUNNING", True), (85, "COMPLETING", False), (1, "RUNNING", False)],
)
def test_a_task_runs_its_line_and_is_requeued_after_a_signal_alone(slurm, status, state, requeued):
    (slurm / "cluster.yaml").write_text("setup: [set -e]")
    words = ["model=rope", f"runs={slurm}/runs", "seed=0,1"]
    words.append(r"cache='a \'b\' $HOME `x` ;&#'")
    assert main(["sweep", *words]) == 0
    (slurm / "srun.exits").write_text(str(status))
    (slurm / "squeue.says").write_text(f"{state}\n")
    done = run_task(only_sweep(slurm / "runs") / "script.sh", 1)
    assert done.returncode == status, done.stderr
    ran = shlex.split(calls(slurm, "srun")[0])
    assert ran[1:3] == [sys.executable, str(ROOT / "train.py")]
    assert ran[3:] == specs_of_words(words)[1].overrides
    assert calls(slurm, "scontrol") == (["requeue 7_1"] if requeued else [])


@pytest.mark.parametrize(
    ("state", "squeue_fails", "scontrol_fails", "requeued"),
    [
        ("RUNNING", 0, 0, True),
        ("RUNNING", 1, 0, True),
        ("RUNNING", 4, 4, True),
        ("RUNNING", 99, 0, True),  # nobody knows
        ("COMPLETING", 3, 0, False),
        ("", 0, 0, False),  # it is in no queue
        ("RUNNING", 0, 99, False),
    ],
)
def test_a_preempted_task_asks_again_where_slurm_does_not_answer(
    slurm, state, squeue_fails, scontrol_fails, requeued
):
    (slurm / "cluster.yaml").write_text("setup: [set -eu]")
    assert main(["sweep", "model=rope", f"runs={slurm}/runs"]) == 0
    (slurm / "srun.exits").write_text("85")
    (slurm / "squeue.says").write_text(f"{state}\n" if state else "")
    (slurm / "scontrol.says").write_text("requeued\n")
    (slurm / "squeue.fails").write_text(f"{squeue_fails}")
    (slurm / "scontrol.fails").write_text(f"{scontrol_fails}")
    done = run_task(only_sweep(slurm / "runs") / "script.sh", 0)
    assert done.returncode == 85, done.stderr
    assert ("requeued\n" in done.stdout) is requeued
    assert ("cannot be requeued" in done.stdout) is (scontrol_fails > 4)
    assert len(calls(slurm, "squeue")) == 1 + min(squeue_fails + 1, 5), "with that of the sweep"
    assert len(calls(slurm, "sleep")) <= 10, "it leaves before SLURM kills it"


@pytest.mark.parametrize(
    ("queue", "told"),
    [
        (None, "this machine has no squeue. Nothing is submitted"),
        (1, "squeue failed and gives no reason. Nothing is submitted"),
    ],
)
def test_a_queue_that_nobody_knows_is_not_an_empty_one(slurm, monkeypatch, capsys, queue, told):
    words = ["model=rope", "seed=0,1", f"runs={slurm}/runs"]
    assert main(["sweep", *words]) == 0
    if queue is None:
        (slurm / "bin" / "squeue").unlink()
        monkeypatch.setenv("PATH", str(slurm / "bin"))
    else:
        (slurm / "squeue.fails").write_text("1")
    capsys.readouterr()
    assert main(["sweep", *words]) == 2
    assert told in capsys.readouterr().err
    assert len(calls(slurm, "sbatch")) == 1, "the first time"


def test_outside_a_clone_a_task_runs_the_package(slurm, monkeypatch, capsys):
    monkeypatch.setattr(job_script, "INSTALLED", True)
    assert main(["sweep", "--dry-run", "model=rope"]) == 0
    assert f"train=({sys.executable} -m tape_exp.training)\n" in capsys.readouterr().out


def test_the_settings_of_a_cluster_are_options_of_sbatch(slurm, capsys):
    """As the example has them; a word of the command line goes before the file."""
    (slurm / "cluster.yaml").write_text((ROOT / "launch/cluster.example.yaml").read_text())
    words = ["model=rope", "trainer=gpu", "slurm.mem=8G", "slurm.cpus_per_task=", "slurm.qos=a b"]
    assert main(["sweep", "--dry-run", *words]) == 0
    script = capsys.readouterr().out
    for option in (
        "account=my_project",
        "time=24:00:00",
        "mail-type=FAIL",
        "gpus-per-node=1",
        "mem=8G",
        "qos='a b'",
    ):
        assert script.count(f"#SBATCH --{option}\n") == 1
    assert "cpus-per-task=" not in script
    assert script.index("module load cuda/12.8\n") < script.index("# then launch/job.sh")


@pytest.mark.parametrize(
    ("words", "gpus"),
    [
        (["trainer=gpu"], ["gpus-per-node=1"]),
        (["trainer=fsdp"], ["gpus-per-node=2"]),
        (["trainer=gpu", "slurm.gres=gpu:a100:1"], ["gres=gpu:a100:1"]),
        (["trainer=ddp", "slurm.gpus-per-node=false"], []),
        (["trainer=ddp", "trainer.accelerator=cpu"], []),
        (["trainer=cpu"], []),
    ],
)
def test_runs_on_gpus_ask_for_them(slurm, capsys, words, gpus):
    assert main(["sweep", "model=rope", f"runs={slurm}/runs", *words, "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    options = [line.removeprefix("#SBATCH --") for line in lines if line.startswith("#SBATCH")]
    assert [option for option in options if re.match("gpu|gres", option)] == gpus
