"""What a sweep submits, without a cluster: SLURM's commands are shell scripts that write down their
arguments.
"""

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock

from tape_exp.launch import status, sweep
from tape_exp.launch.grid import folder_of as folder_of_jobs
from tape_exp.launch.grid import jobs_of
from tape_exp.runs.identity import identity_of, without_folders
from tape_exp.settings import targets
from tape_exp.settings.folders import ROOT
from tests.conftest import finish


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """SLURM's commands: each appends its arguments to calls.txt, prints <name>.says and exits with
    <name>.exits.
    """
    places = tmp_path / "bin"
    places.mkdir()
    for name in ("sbatch", "squeue", "srun", "scontrol"):
        (places / name).write_text(
            f'#!/bin/bash\nprintf "%s" {name} >> {tmp_path}/calls.txt\n'
            f'printf " %q" "$@" >> {tmp_path}/calls.txt\n'
            f"echo >> {tmp_path}/calls.txt\ncat {tmp_path}/{name}.says 2> /dev/null\n"
            f"exit $(cat {tmp_path}/{name}.exits 2> /dev/null || echo 0)\n"
        )
        (places / name).chmod(0o755)
    (tmp_path / "sbatch.says").write_text("41;cluster\n")
    monkeypatch.setenv("PATH", f"{places}:{os.environ['PATH']}")
    return tmp_path


def calls(folder: Path, name: str) -> list[str]:
    lines = (
        (folder / "calls.txt").read_text().splitlines() if (folder / "calls.txt").exists() else []
    )
    return [line.removeprefix(f"{name} ") for line in lines if line.startswith(f"{name} ")]


def folder_of(runs: Path) -> Path:
    (folder,) = (runs / ".sweeps").iterdir()
    return folder


def test_what_is_done_or_in_the_queue_is_left_out(slurm, capsys):
    words = ["model=rope,nope", "seed=0,1,2", f"runs={slurm}/runs"]
    jobs = jobs_of(words)
    jobs[0].directory().open({})
    finish(jobs[0].directory())
    (slurm / "squeue.says").write_text("3 RUNNING 40\n4 PENDING 40\n")
    assert sweep.main([*words, "--cap", "2"]) == 0
    told = capsys.readouterr().out
    assert "6 runs: 1 done, 2 in the queue, 3 to submit." in told
    assert "Submitted job 41" in told
    folder = folder_of(slurm / "runs")
    assert calls(slurm, "sbatch") == [f"--parsable --array=1-2\\,5%2 {folder}/script.sh"]
    assert [shlex.split(line) for line in (folder / "jobs.txt").read_text().splitlines()] == [
        job.words for job in jobs
    ]
    (asked,) = calls(slurm, "squeue")
    assert folder.name in asked
    assert "--me " in asked, "the tasks of others were asked for"
    assert f"tape-exp status {shlex.join(words)}" in told


def test_what_slurm_prints_besides_is_no_number(slurm, capsys):
    words = ["model=rope", f"runs={slurm}/runs"]
    (slurm / "squeue.says").write_text("0 RUNNING\n77 RUNNING 4242\nwarning\n")
    (slurm / "sbatch.says").write_text("Welcome \x1b[31m\n")
    assert sweep.main(words) == 2
    told = capsys.readouterr()
    assert "0 in the queue, 1 to submit" in told.out
    assert "instead of the number of a job" in told.err
    assert "\x1b" not in told.out + told.err
    (slurm / "sbatch.says").write_text("Welcome\n41;cluster\n")
    assert sweep.main(words) == 0
    assert "Submitted job 41 " in capsys.readouterr().out
    assert status.main(words) == 0


def test_more_runs_than_any_cluster_takes_are_refused(capsys):
    assert sweep.main(["--dry-run", "seed=range(0,100000000)"]) == 2
    assert "the words name more than 10,000 runs" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ["model=rope,tape", "seed=0,0"],
            "model=rope,tape seed=0,0 names the run `model=rope seed=0` twice; name each once.",
        ),
        (["task.optim.lr=0.1,0.2,0.10"], "0.10 names the run `task.optim.lr=0.1` twice"),
        (["seed=choice(1,1)"], "names the run `seed=1` twice"),
    ],
)
def test_a_run_that_is_named_twice_is_refused(words, told, capsys):
    assert sweep.main(["--dry-run", "hydra.launcher.mem_gb=7", *words]) == 2
    assert told in capsys.readouterr().err
    assert status.main(words) == 2
    assert told in capsys.readouterr().err


def test_levels_wait_for_each_other(slurm, monkeypatch, capsys):
    monkeypatch.setattr("tape_exp.paper.runner.read_records", list)
    assert sweep.main(["fig_dp_layers", f"runs={slurm}/runs", "seeds=5,6"]) == 0
    first, second = calls(slurm, "sbatch")
    assert "--array=0-1%" in first
    assert "dependency" not in first
    assert "--array=2-3%" in second
    assert "--dependency=afterany:41" in second


@pytest.mark.parametrize(
    ("queue", "submitted"),
    [
        ("0 RUNNING 39\n1 PENDING 40\n", ["--array=2-3%16 --dependency=afterany:39:40"]),
        (
            "1 RUNNING 40\n2 PENDING 38\n",
            ["--array=0%16", "--array=3%16 --dependency=afterany:40:41"],
        ),
        ("2 PENDING 38\n", ["--array=0-1%16", "--array=3%16 --dependency=afterany:41"]),
    ],
)
def test_levels_wait_for_what_is_in_the_queue(slurm, monkeypatch, queue, submitted):
    """Tasks 0 and 1 are the bases of 2 and 3."""
    monkeypatch.setattr("tape_exp.paper.runner.read_records", list)
    (slurm / "squeue.says").write_text(queue)
    assert sweep.main(["fig_dp_layers", f"runs={slurm}/runs", "seeds=5,6", "--cap", "16"]) == 0
    script = folder_of(slurm / "runs") / "script.sh"
    assert calls(slurm, "sbatch") == [f"--parsable {options} {script}" for options in submitted]


def test_a_record_that_appears_changes_neither_folder_nor_numbers(slurm, monkeypatch, capsys):
    words = ["fig_addition_yarn", f"runs={slurm}/runs", "seeds=5"]
    jobs = jobs_of(words)
    assert len(jobs) > 2
    assert sweep.main(words) == 0
    record = {"config": without_folders(identity_of(jobs[0].cfg)), "seed": 5}
    monkeypatch.setattr("tape_exp.paper.runner.read_records", lambda: [record])
    (slurm / "squeue.says").write_text("1 RUNNING 41\n")
    capsys.readouterr()
    assert sweep.main(words) == 0
    assert (
        f"{len(jobs)} runs: 1 done, 1 in the queue, {len(jobs) - 2} to submit."
        in capsys.readouterr().out
    )
    folder = folder_of(slurm / "runs")
    assert f"--array={sweep.ranges(range(2, len(jobs)))}%" in calls(slurm, "sbatch")[1]
    assert len((folder / "jobs.txt").read_text().splitlines()) == len(jobs)
    assert status.main(["--runs", f"{slurm}/runs"]) == 0
    assert f"1 done, 1 running, {len(jobs) - 2} missing" in capsys.readouterr().out


def test_a_queue_that_refuses_without_a_word_is_told(slurm, capsys):
    (slurm / "squeue.exits").write_text("1")
    assert sweep.main(["model=rope", f"runs={slurm}/runs"]) == 2
    assert (
        "squeue fails (no reason); where there is a cluster, try again when SLURM answers."
        in capsys.readouterr().err
    )


def test_dry_run_prints_the_script_and_touches_nothing(slurm, capsys):
    words = [
        "model=rope",
        "seed=0,1",
        "trainer=ddp",
        "hydra/launcher=slurm",
        "hydra.launcher.partition=gpu",
        f"runs={slurm}/runs",
    ]
    assert (
        sweep.main(
            ["--dry-run", *words, "hydra.launcher.mem_gb=7", "hydra.launcher.signal_delay_s=300"]
        )
        == 0
    )
    script = capsys.readouterr().out
    for flag in (
        "partition=gpu",
        "mem=7G",
        "ntasks-per-node=2",
        "nodes=1",
        "signal=USR1@300",
        "requeue",
        "open-mode=append",
    ):
        assert f"#SBATCH --{flag}\n" in script
    assert "model=rope seed=1 trainer=ddp" in script
    assert not (slurm / "runs").exists()
    assert not (slurm / "calls.txt").exists()
    assert subprocess.run(["bash", "-n"], input=script, text=True).returncode == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cluster.yaml cannot be read ("),
        ("[]", "cluster.yaml must hold keys with values; conf/local/example.yaml is an example."),
        ("a: &a\n  b: *a", "cluster.yaml cannot be read (line 2 has the alias *a; write its"),
        ("[" * 100_000, "cluster.yaml cannot be read (it nests without end); mend it ("),
        ("setup: 3", "hydra.launcher.setup=3 must be a list of lines"),
        ("setup: [[1]]", "hydra.launcher.setup=[[1]] must be a list of lines"),
        ("additional_parameters: 7", "hydra.launcher.additional_parameters=7 must be a section"),
        ("array_parallelism: x", "hydra.launcher.array_parallelism=x must be a number from 1 on"),
        ("timeout_min: 1e99", "hydra.launcher.timeout_min=1e+99 must be a number from 1 on"),
        ("partition: .nan", "hydra.launcher.partition=nan must be a word"),
        (b"\xff\xfe\x00", "cluster.yaml"),
        (None, "cluster.yaml cannot be read ([Errno 21] Is a directory"),
    ],
)
def test_a_damaged_file_of_settings_is_one_sentence(
    slurm, tmp_path, monkeypatch, capsys, text, message
):
    conf = shutil.copytree(sweep.CONF, tmp_path / "conf", ignore=lambda *_: ["cluster.yaml"])
    path = conf / "local" / "cluster.yaml"
    if text is None:
        path.mkdir()
    else:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    monkeypatch.setattr(sweep, "CONF", conf)
    monkeypatch.setattr(targets, "CONF", conf)
    assert sweep.main(["--dry-run", "model=rope", f"runs={slurm}/runs"]) == 2
    told = capsys.readouterr().err
    assert message in told
    assert told.count("\n") == 1
    assert len(told) < 500


def test_dry_run_prints_the_options_that_submission_adds(slurm, capsys):
    words = ["tab_shift", "scale=small", f"runs={slurm}/runs"]
    assert sweep.main(["--dry-run", *words]) == 0
    first, second = [line for line in capsys.readouterr().out.splitlines() if "sbatch --" in line]
    assert "--dependency" not in first
    assert second.split()[3] == "--dependency=afterany:<the"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["trainer.devices=1,2"], "cannot share an array"),
        (
            ["hydra.launcher.partion=gpu"],
            "hydra.launcher.partion is not known. Did you mean 'partition'?",
        ),
        (["--cap", "0"], "--cap 0 must be at least 1"),
        (["model=rpe"], "model=rpe is not known. Did you mean 'rope'?"),
        (["task.train_digits=9", "task.test_digits=3"], "task.test_digits=3 is below"),
        (["task.arch.width=32", "task.arch.heads=3"], "is not divisible by task.arch.heads=3"),
        (["task.optim.lr=0.001,-1"], "task.optim.lr=-1.0 must be positive"),
        (["model.theta=x"], "model.theta=x is of a wrong type"),
        (["trainer.micro_batch=5"], "trainer.micro_batch=5 does not divide"),
    ],
)
def test_mistakes_are_one_sentence(slurm, words, message, capsys):
    assert sweep.main(["model=rope", "task.optim.batch=16", f"runs={slurm}/runs", *words]) == 2
    told = capsys.readouterr().err
    assert message in told
    assert told.count("\n") == 1
    assert not calls(slurm, "sbatch")


def test_what_sbatch_refuses_is_told(slurm, capsys):
    (slurm / "sbatch.exits").write_text("1")
    assert sweep.main(["model=rope", f"runs={slurm}/runs"]) == 2
    assert "sbatch refused the sweep" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("status", "state", "requeued"),
    [(85, "RUNNING", True), (85, "COMPLETING", False), (1, "RUNNING", False)],
)
def test_a_task_runs_its_line_and_is_requeued_after_a_signal_alone(slurm, status, state, requeued):
    """The script as SLURM would run it, as task 1 of array 7."""
    words = ["model=rope", f"runs={slurm}/runs", "seed=0,1"]
    words.append(r"cache='a \'b\' $HOME `x` ;&#'")
    assert sweep.main(words) == 0
    (slurm / "srun.exits").write_text(str(status))
    (slurm / "squeue.says").write_text(f"{state}\n")
    script = folder_of(slurm / "runs") / "script.sh"
    task = {
        "SLURM_JOB_ID": "9",
        "SLURM_ARRAY_JOB_ID": "7",
        "SLURM_ARRAY_TASK_ID": "1",
        "SLURM_CPUS_PER_TASK": "3",
    }
    done = subprocess.run(
        ["bash", script], env={**os.environ, **task}, capture_output=True, text=True
    )
    assert done.returncode == status, done.stderr
    ran = shlex.split(calls(slurm, "srun")[0])
    assert ran[1:3] == [sys.executable, str(ROOT / "train.py")]
    assert ran[3:] == jobs_of(words)[1].words
    assert calls(slurm, "scontrol") == (["requeue 7_1"] if requeued else [])


def test_outside_a_clone_a_task_runs_the_package(slurm, monkeypatch, capsys):
    for module in (sweep, targets):
        monkeypatch.setattr(module, "INSTALLED", True)
    monkeypatch.chdir(slurm)
    assert sweep.main(["--dry-run", "model=rope"]) == 0
    assert f"train=({sys.executable} -m tape_exp.training)\n" in capsys.readouterr().out
    (slurm / "conf" / "local").mkdir(parents=True)
    (slurm / "conf" / "local" / "cluster.yaml").write_text("partition: gpu\n")
    assert sweep.main(["--dry-run", "model=rope"]) == 2
    assert "cluster.yaml is read in a clone of the repository only" in capsys.readouterr().err


def test_the_settings_of_a_cluster_are_read_from_its_file(slurm, monkeypatch, tmp_path, capsys):
    """Of a copy of the project, into which the example was copied as README says; both ways of
    submitting read it.
    """
    copy = tmp_path / "project"
    copy.mkdir()
    for name in ("tape_exp", "launch", "conf", "train.py"):
        subprocess.run(["cp", "-r", str(ROOT / name), str(copy)], check=True)
    (copy / "conf/local/cluster.yaml").write_text((copy / "conf/local/example.yaml").read_text())
    words = ["model=rope", "trainer=ddp", "trainer.accelerator=cpu", "scale=smoke"]
    call = {
        "cwd": copy,
        "capture_output": True,
        "text": True,
        "timeout": 120,
        "env": {**os.environ, "PYTHONPATH": str(copy)},
    }
    script = subprocess.run(
        [sys.executable, "-m", "launch.sweep", "--dry-run", *words], **call
    ).stdout
    for line in (
        "#SBATCH --account=my_project",
        "#SBATCH --gpus-per-node=2",
        "#SBATCH --mail-type=FAIL",
        "#SBATCH --requeue",
    ):
        assert f"{line}\n" in script
    assert "module load cuda/12.8\n" in script
    (slurm / "sbatch.exits").write_text("1")  # hydra's launcher has written its script by then
    subprocess.run([sys.executable, "train.py", "-m", *words, "hydra/launcher=slurm"], **call)
    written = next((copy / "runs/.sweeps/.submitit").glob("*.sh")).read_text()
    for line in (
        "account=my_project",
        "gpus-per-node=2",
        "ntasks-per-node=2",
        "signal=USR1@120",
        "requeue",
        "time=1440",
    ):
        assert f"#SBATCH --{line}\n" in written
    assert "scontrol requeue $job" in written


def test_overrides_arrive_as_they_are(slurm, monkeypatch):
    """The script is run by bash, with a python that writes down its arguments."""
    python = slurm / "bin" / "python"
    python.write_text(
        f"#!{sys.executable}\nimport json, sys\nprint(json.dumps(sys.argv[1:]), file=sys.stderr)\n"
    )
    (slurm / "bin" / "srun").write_text('#!/bin/bash\nexec "${@:2}"\n')
    python.chmod(0o755)
    monkeypatch.setattr(sweep.sys, "executable", str(python))
    values = ["$(touch sprung)", "`touch sprung`", "a 'b' \"c\"", "*.py ~ {x,y}", "$HOME;&|<>#!"]
    escaped = [value.replace("'", "\\'") for value in values]
    words = ["model=rope", "cache=" + ",".join(f"'{value}'" for value in escaped)]
    words += [f"runs={slurm}/runs", "logger.project='ü~'"]
    assert sweep.main(words) == 0
    jobs = jobs_of(words)
    for number, job in enumerate(jobs):
        task = {"SLURM_JOB_ID": "9", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": str(number)}
        done = subprocess.run(
            ["bash", folder_of(slurm / "runs") / "script.sh"],
            env={**os.environ, **task},
            cwd=slurm,
            capture_output=True,
            text=True,
        )
        assert json.loads(done.stderr) == [str(ROOT / "train.py"), *job.words]
    assert len(jobs) == len(values)
    assert not (slurm / "sprung").exists()


@pytest.mark.parametrize("breaks", ["\n", "\r", "\v", "\x1b", "\x85", "\u2028"])
@pytest.mark.parametrize("first", ["model=rope", "fig_addition"])
@pytest.mark.parametrize("key", ["logger.project", "hydra.launcher.comment"])
def test_words_that_would_add_lines_to_the_script_are_refused(slurm, capsys, first, key, breaks):
    words = [first, f"{key}='x{breaks}touch sprung'", f"runs={slurm}/runs"]
    assert sweep.main(words) == 2
    told = capsys.readouterr().err
    assert "holds a line break or another control character" in told
    assert told.count("\n") == 1
    assert not (slurm / "runs").exists()


@pytest.mark.parametrize("first", ["model=rope", "fig_addition"])
def test_no_secret_is_written(slurm, capsys, first):
    secret = "planted-1234"
    words = [first, f"+scale.api_key={secret}", f"runs={slurm}/runs"]
    for more in ([], ["--dry-run"]):
        assert sweep.main([*words, *more]) == 2
        told = capsys.readouterr()
        assert "+scale.api_key holds a secret, and a sweep writes" in told.err
        assert secret not in told.out + told.err
    assert not (slurm / "runs").exists()


def test_two_commands_for_the_same_runs_submit_them_once(slurm, monkeypatch, capsys):
    """squeue and sbatch are asked while a second command would wait."""
    words = ["model=rope", f"runs={slurm}/runs"]
    lock = folder_of_jobs(jobs_of(words)) / ".lock"
    for name in ("squeue", "sbatch"):
        with (slurm / "bin" / name).open("r+") as file:
            script = file.read().replace("\n", f"\nflock -n {lock} touch {slurm}/{name}.free\n", 1)
            file.seek(0)
            file.write(script)
    assert sweep.main(words) == 0
    assert not list(slurm.glob("*.free"))
    monkeypatch.setattr(sweep, "PATIENCE", 0.1)
    capsys.readouterr()
    with FileLock(lock):
        assert sweep.main(words) == 2
    assert "another tape-exp sweep submits the same runs" in capsys.readouterr().err
    assert len(calls(slurm, "sbatch")) == 1
    assert sweep.main(words) == 0
    assert len(calls(slurm, "sbatch")) == 2


def test_ranges():
    assert sweep.ranges([0, 1, 2, 5, 7, 8]) == "0-2,5,7-8"
    assert sweep.ranges([3]) == "3"


def test_local_settings_stay_out_of_version_control():
    told = subprocess.run(
        ["git", "check-ignore", "conf/local/cluster.yaml", "conf/local/example.yaml"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if told.returncode == 128:
        pytest.skip("not a git checkout")
    assert told.stdout.split() == ["conf/local/cluster.yaml"]


@pytest.mark.parametrize("dry", [[], ["--dry-run"]])
@pytest.mark.parametrize(
    ("words", "warned"),
    [
        (["trainer=gpu"], True),
        (["trainer=fsdp"], True),
        (["trainer=gpu", "hydra.launcher.gpus_per_node=1"], False),
        (["trainer=gpu", "hydra.launcher.gres=gpu:1"], False),
        (["trainer=cpu"], False),
    ],
)
def test_a_script_without_the_gpus_of_its_runs_is_warned_of(slurm, capsys, dry, words, warned):
    assert sweep.main(["model=rope", f"runs={slurm}/runs", *words, *dry]) == 0
    assert ("conf/local/example.yaml" in capsys.readouterr().err) == warned
