"""The command ``tape-exp``, and the wheel: what it holds, and where it writes outside a clone."""

import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

from tape_exp import __main__ as command
from tape_exp import cli
from tape_exp.measure import gpu, soak
from tape_exp.runs.directory import RunDirectory
from tape_exp.settings import arguments, folders
from tape_exp.settings import help as help_
from tape_exp.settings.compose import compose_config
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.folders import ROOT
from tape_exp.training.__main__ import train

NAMED = ["train", "sweep", "status", "paper", "bench", "report", "export", "score", "theory"]
NAMED += ["plan", "check", "tune"]


def tape_exp(monkeypatch, *words):
    """Call the command; the module that it becomes, and the words that this is given."""
    became = []
    monkeypatch.setattr(sys, "argv", ["tape-exp", *words])
    monkeypatch.setattr(folders, "called_as", "")
    monkeypatch.setattr(command.runpy, "run_module", lambda name, **_: became.append(name))
    command.main()
    return became[0], sys.argv[1:]


@pytest.mark.parametrize("name", NAMED)
def test_every_command_is_a_module_with_a_main(name, monkeypatch):
    module, words = tape_exp(monkeypatch, name, "a", "b=1")
    package = importlib.util.find_spec(module).submodule_search_locations
    assert importlib.util.find_spec(f"{module}.__main__" if package else module)
    before, after = {"score": ["score"]}.get(name, []), {"plan": ["debug=plan"]}.get(name, [])
    assert words == [*before, "a", "b=1", *after]


def test_usage_names_the_command_as_it_was_called(monkeypatch):
    tape_exp(monkeypatch, "paper", "list")
    parser = arguments.Parser(prog="python -m tape_exp.paper")
    parser.add_subparsers().add_parser("run")
    assert parser.format_usage().startswith("usage: tape-exp paper ")
    tape_exp(monkeypatch, "score", "file")
    assert arguments.Parser(prog="python -m tape_exp.tasks.scrolls").prog == "tape-exp"


def test_plan_explains_itself(monkeypatch, capsys):
    tape_exp(monkeypatch, "plan", "--help")
    with pytest.raises(SystemExit):
        cli.with_clear_errors(train)
    told = capsys.readouterr().out
    assert told.startswith("Estimate what a run would need")
    assert "tape-exp plan -m model=rope,tape" in told
    monkeypatch.setattr(folders, "INSTALLED", True)
    assert "docs/" not in help_.footer()
    with pytest.raises(ConfigError, match="`tape-exp plan -m` plans one after the other"):
        compose_config(["model=rope,tape"])


def test_help_lists_every_command_and_a_mistake_the_nearest(monkeypatch, capsys):
    for words in ([], ["--help"]):
        with pytest.raises(SystemExit) as ended:
            tape_exp(monkeypatch, *words)
        assert not ended.value.code
        shown = re.findall(r"^  (\w+) +[a-z].*", capsys.readouterr().out, re.MULTILINE)
        assert sorted(shown) == sorted(NAMED)
    with pytest.raises(SystemExit) as ended:
        tape_exp(monkeypatch, "papr")
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert told == (
        "error: papr is not known. Did you mean 'paper'? `tape-exp --help` lists all.\n"
    )


def test_help_imports_neither_torch_nor_hydra():
    program = "import sys; from tape_exp import __main__; print(*sys.modules)"
    printed = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert not {"torch", "hydra", "omegaconf", "numpy"} & set(printed.stdout.split())


@pytest.mark.parametrize("main", [soak.main, gpu.main])
def test_what_needs_a_clone_says_so(main, monkeypatch, capsys):
    monkeypatch.setattr(folders, "INSTALLED", True)
    assert main([]) == 2
    assert "needs files that only a clone of the repository has" in capsys.readouterr().err


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The wheel of a copy of the project, unpacked as an installation is."""
    copy = tmp_path_factory.mktemp("clone")
    for name in ("tape_exp", "conf", "launch"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE", ".gitignore", "results/paper.yaml"):
        (copy / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, copy / name)
    shutil.copy(copy / "conf/local/example.yaml", copy / "conf/local/cluster.yaml")
    site = tmp_path_factory.mktemp("site")
    (wheel,) = WheelBuilder(str(copy)).build(directory=str(tmp_path_factory.mktemp("dist")))
    zipfile.ZipFile(wheel).extractall(site)
    return site


def test_the_wheel_holds_the_package_and_the_configs(installed):
    def files(folder):
        every = (path for path in folder.rglob("*") if path.is_file())
        return {path.relative_to(folder) for path in every if path.suffix != ".pyc"}

    (metadata,) = installed.glob("*.dist-info")
    assert [path for path in installed.iterdir() if path != metadata] == [installed / "tape_exp"]
    assert "tape-exp = tape_exp.__main__:main" in (metadata / "entry_points.txt").read_text()
    local = {path for path in files(ROOT / "conf") if path.match("local/cluster.yaml")}
    assert files(installed / "tape_exp" / "conf") == files(ROOT / "conf") - local
    assert files(installed / "tape_exp" / "results") == {Path("paper.yaml")}
    carried = files(installed / "tape_exp")
    assert files(ROOT / "tape_exp") == {
        path for path in carried if path.parts[0] not in ("conf", "results")
    }


def test_an_installation_is_of_the_working_directory(installed, tmp_path):
    """Its runs have the hashes of a clone's; results are those that are there."""
    words = ["model=tape", "task=arithmetic"]
    program = (
        "import json; from tape_exp.paper import artifacts, records\n"
        "from tape_exp.runs.directory import RunDirectory\n"
        "from tape_exp.settings import commit, compose, folders\n"
        f"path = RunDirectory(compose.compose_config({words})).path\n"
        "read = records.known_records()\n"
        "records.tell_where()\n"
        "numbers = artifacts.load('fig_addition').paper()\n"
        "found = [path, folders.RECORDS, artifacts.RESULTS, folders.TRAIN, commit.git_state()]\n"
        "print(json.dumps([*found, read, len(numbers)], default=str))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    path, records, results, train, state, read, numbers = json.loads(done.stdout)
    own = RunDirectory(compose_config([*words, f"runs={tmp_path}/runs"])).path
    assert (path, train) == (str(own), "tape-exp train")
    assert (records, results) == (f"{tmp_path}/results/records", f"{tmp_path}/results")
    assert state == {"commit": None, "dirty": None}
    assert read == []
    assert done.stderr.startswith(f"warning: nothing is recorded in {records}: outside a")
    assert numbers > 0


def test_a_reader_that_has_seen_enough_is_no_mistake(tmp_path):
    program = "from tape_exp.settings import arguments\n"
    program += "main = arguments.command(lambda: [print(n) for n in range(100_000)] and 0)\nmain()"
    piped = f"{shlex.quote(sys.executable)} -c {shlex.quote(program)} | head -1"
    done = subprocess.run(["bash", "-c", piped], cwd=ROOT, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("0\n", "")
