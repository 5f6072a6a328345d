"""launch/: every file is a script that a shell and shellcheck accept, and names what exists."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tape_exp.__main__ import COMMANDS
from tape_exp.experiments import cluster, submit_file
from tape_exp.settings.folders import ROOT
from tape_exp.sweep import main

LAUNCH = ROOT / "launch"
SCRIPTS = sorted([*LAUNCH.rglob("*.sh"), *LAUNCH.glob("*.sbatch")])
LISTS = sorted((LAUNCH / "reproduce").glob("*.txt"))
SHELLCHECK = shutil.which("shellcheck") or shutil.which(
    "shellcheck", path=str(Path(sys.executable).parent)
)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_bash_reads_each_script(script):
    done = subprocess.run(["bash", "-n", script], capture_output=True, text=True)
    assert not done.returncode, done.stderr


@pytest.mark.skipif(SHELLCHECK is None, reason="shellcheck is not installed")
def test_shellcheck_has_nothing_to_say():
    done = subprocess.run([SHELLCHECK, *SCRIPTS], capture_output=True, text=True)
    assert not done.returncode, done.stdout


def test_the_readme_names_each_file_and_commands_that_exist():
    page = (LAUNCH / "README.md").read_text()
    named = set(re.findall(r"^\| `([\w./-]+)`", page, re.MULTILINE))
    tops = {path.name for path in LAUNCH.iterdir() if path.is_file()}
    assert named - {"cluster.yaml", "reproduce/submit.sh"} == tops - {
        "README.md",
        "cluster.yaml",
        "cluster.example.yaml",
    }
    texts = [page, *(script.read_text() for script in SCRIPTS)]
    for text in texts:
        assert {*re.findall(r"tape-exp (\w+)", text)} <= {*COMMANDS, "sets"}
        for path in re.findall(r"launch/[\w/-]+\.(?:sbatch|sh)\b", text):
            assert (ROOT / path).exists(), path


@pytest.mark.parametrize(
    ("exits", "status"),
    [
        ({}, 0),
        ({"pytest": 1}, 1),
        ({"benchmarks.speed": 3}, 3),
        ({"benchmarks.data": 124}, 0),
        ({"pytest": 124}, 124),
    ],
)
def test_a_check_of_the_gpu_fails_where_a_stage_does(exits, status, tmp_path):
    """Of four stages, whose python only ends with a status; 124 is that of a time that is over."""
    python = tmp_path / "python"
    cases = "".join(f"*{module}*) exit {number};;\n" for module, number in exits.items())
    python.write_text(f'#!/bin/bash\necho "$*"\ncase "$*" in\n{cases}esac\n')
    python.chmod(0o755)
    done = subprocess.run(
        ["bash", LAUNCH / "gpu-check.sbatch"],
        cwd=tmp_path,
        env={**os.environ, "GPU_PYTHON": str(python), "TAPE_EXP_SETUP": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode == status, done.stdout + done.stderr
    assert "-m benchmarks.data" in done.stdout, "a stage that failed has cost another"


def words_of(file: Path) -> list[str]:
    return [
        line for line in file.read_text(encoding="utf-8").splitlines() if not line.startswith("#")
    ]


def test_the_papers_five_sweeps_name_each_artifact_once():
    artifacts = [word for file in LISTS for word in words_of(file) if word.isidentifier()]
    assert len(LISTS) == 5
    assert len(artifacts) == len({*artifacts})
    assert all((ROOT / "conf" / "paper" / f"{name}.yaml").exists() for name in artifacts)


@pytest.mark.long
@pytest.mark.parametrize("file", LISTS, ids=lambda path: path.stem)
def test_a_sweep_of_the_paper_can_be_submitted(file, tmp_path, capsys):
    assert main(["sweep", "--dry-run", *words_of(file), f"runs={tmp_path}"]) == 0
    assert "scale=paper" in capsys.readouterr().out


def test_apptainer_and_docker_install_the_same_package():
    docker = (ROOT / "Dockerfile").read_text()
    apptainer = (ROOT / "apptainer.def").read_text()
    copied = set(re.findall(r"^COPY (.*) \S+$", docker, re.MULTILINE))
    for name in " ".join(copied).split():
        assert re.search(rf"^    .*\b{re.escape(name)}\b", apptainer, re.MULTILINE), name
    for line in (r'"\.\[(.*)\]"', r"install -y --no-install-recommends (.*?)(?: \\)?\n"):
        assert re.findall(line, docker) == re.findall(line, apptainer)


@pytest.fixture
def sbatch(tmp_path, monkeypatch):
    """An sbatch that writes down its arguments and the lines of setup."""
    program = tmp_path / "bin" / "sbatch"
    program.parent.mkdir()
    program.write_text(
        f'#!/bin/bash\nprintf "%s\\n" "$@" > {tmp_path}/arguments\n'
        f'printf "%s\\n" "$TAPE_EXP_SETUP" > {tmp_path}/setup\necho 41\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    monkeypatch.setenv("TAPE_EXP_SETUP", "")
    monkeypatch.setattr(cluster, "CLUSTER", tmp_path / "cluster.yaml")
    return tmp_path


def test_submit_fills_in_what_neither_command_nor_file_says(sbatch, capsys):
    """The file has its own time; the command line names another partition."""
    (sbatch / "cluster.yaml").write_text((LAUNCH / "cluster.example.yaml").read_text())
    file = str(LAUNCH / "gpu-check.sbatch")
    assert submit_file.main(["--partition=a100", file, "check"]) == 0
    arguments = (sbatch / "arguments").read_text().splitlines()
    assert arguments == [
        "--parsable",
        "--partition=gpu",
        "--account=my_project",
        "--mem=64G",
        "--signal=USR1@120",
        "--mail-type=FAIL",
        "--partition=a100",
        file,
        "check",
    ]
    assert (sbatch / "setup").read_text().startswith("module load cuda/12.8\nexport HF_HOME=")
    assert capsys.readouterr().out.startswith("Submitted job 41.\n")


def test_submit_needs_a_file(sbatch, capsys):
    assert submit_file.main(["--time=5", "nowhere.sbatch"]) == 2
    assert "nowhere.sbatch is no file to submit" in capsys.readouterr().err
    assert submit_file.main(["--time=5"]) == 2
    assert "name a file to submit, as in tape-exp submit launch/run.sbatch." in (
        capsys.readouterr().err
    )


def test_settings_that_are_no_mapping_are_refused(sbatch, capsys):
    (sbatch / "cluster.yaml").write_text("- partition")
    assert submit_file.main([str(LAUNCH / "run.sbatch")]) == 2
    assert "cluster.yaml must hold <option>: <value>" in capsys.readouterr().err
