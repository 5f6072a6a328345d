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

from tape_exp import __main__ as entry
from tape_exp.paper import __main__ as paper
from tape_exp.runs.directory import RunDirectory
from tape_exp.settings.compose import compose_config
from tape_exp.settings.folders import ROOT
from tests.conftest import SMALL
from tests.processes import python


def tape_exp(monkeypatch, *words):
    """Call the command; the module that it becomes, and the words that this is given."""
    became = []
    monkeypatch.setattr(sys, "argv", ["tape-exp", *words])
    monkeypatch.setattr(entry.runpy, "run_module", lambda name, **_: became.append(name))
    status = entry.main()
    return (became[0], sys.argv[1:]) if became else status


@pytest.mark.parametrize("name", entry.COMMANDS)
def test_every_command_is_a_module_with_a_main(name, monkeypatch):
    module, words = tape_exp(monkeypatch, name, "a", "b=1")
    package = importlib.util.find_spec(module).submodule_search_locations
    assert importlib.util.find_spec(f"{module}.__main__" if package else module)
    verb = [name] if name in entry.VERBS else []
    assert words == [*verb, "a", "b=1", *(["debug=plan"] if name == "plan" else [])]


def test_help_lists_every_command_and_a_mistake_names_the_nearest(monkeypatch, capsys):
    for words in ([], ["--help"]):
        assert tape_exp(monkeypatch, *words) == 0
        listed = re.findall(r"^  (\w+) +[a-z].*", capsys.readouterr().out, re.MULTILINE)
        assert listed == list(entry.COMMANDS)
    assert tape_exp(monkeypatch, "papr") == 2
    assert "Did you mean 'paper'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["rnu"], "tape-exp paper rnu is not known. Did you mean 'run'? Choose one of: list, run"),
        (
            [],
            "tape-exp paper needs list | run | render | cost; `tape-exp paper --help` explains it",
        ),
        (["list", "--fromats=tex"], "--fromats is not known. `tape-exp paper list --help`"),
        (["render", "--fromats=tex"], "--fromats is not known. Did you mean '--formats'?"),
        (["run", "fig_addition", "--cors", "2"], "--cors is not known. Did you mean '--cores'?"),
    ],
)
def test_a_mistake_in_options_is_a_sentence(words, told, capsys):
    assert paper.main(words) == 2
    assert capsys.readouterr().err.startswith(f"error: {told}")


def test_a_closed_pipe_and_a_full_disk_end_without_a_traceback():
    program = "from tape_exp.settings.commands import command\n"
    program += "main = command(lambda: [print(n) for n in range(100_000)] and 0)\nexit(main())"
    piped = f"{shlex.quote(sys.executable)} -c {shlex.quote(program)}"
    done = subprocess.run(
        ["bash", "-c", f"{piped} | head -1"], cwd=ROOT, capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("0\n", "")
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run(
            ["bash", "-c", piped], cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.returncode != 0


@pytest.mark.parametrize("closed", [">&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_the_status_tells_of_the_command_where_its_console_is_closed(closed, tmp_path):
    """And a file that it opens does not become its console."""
    program = (
        "import os, sys\nfrom tape_exp.settings.commands import command\n"
        "def main():\n"
        "    with open('written', 'w', encoding='utf-8') as file:\n"
        "        file.write('rows')\n"
        "        print('a line', flush=True)\n"
        "        os.write(1, b'of a library in C')\n"
        "    return 0\n"
        "sys.exit(command(main)())"
    )
    line = f"{shlex.quote(sys.executable)} -c {shlex.quote(program)} {closed}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(["bash", "-c", line], cwd=tmp_path, env=environment)
    assert done.returncode == 0
    assert (tmp_path / "written").read_text() == "rows"


def test_a_letter_that_the_terminal_lacks_ends_no_command():
    program = "import sys\nfrom tape_exp.settings.commands import command\n"
    program += "sys.exit(command(lambda: print('3 \\u00d7 2') or 0)())"
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "3 ? 2\n")


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The wheel of a copy of the project, unpacked as an installation is."""
    copy = tmp_path_factory.mktemp("clone")
    for name in ("tape_exp", "conf", "launch"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE", ".gitignore", "results/paper.yaml"):
        (copy / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, copy / name)
    shutil.copy(copy / "launch/cluster.example.yaml", copy / "launch/cluster.yaml")
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
    assert files(installed / "tape_exp" / "conf") == files(ROOT / "conf")
    scripts = files(ROOT / "launch") - {Path("cluster.yaml")}
    assert files(installed / "tape_exp" / "launch") == scripts
    assert Path("paper.yaml") in files(installed / "tape_exp" / "results")
    carried = files(installed / "tape_exp") - {Path("launch", path) for path in scripts}
    assert files(ROOT / "tape_exp") == {
        path for path in carried if path.parts[0] != "conf" and path != Path("results/paper.yaml")
    }


@pytest.mark.slow
def test_an_installation_is_of_the_working_directory(installed, tmp_path):
    """Its runs have the hashes of a clone's; results are those that are there."""
    words = ["model=tape", "task=arithmetic"]
    program = (
        "import json; from tape_exp.artifacts import artifact\nfrom tape_exp.results import store\n"
        "from tape_exp.runs.directory import RunDirectory\n"
        "from tape_exp.runs.git import git_state\n"
        "from tape_exp.settings import compose, folders\n"
        f"path = RunDirectory(compose.compose_config({words})).path\n"
        "read = store.known_records()\n"
        "numbers = artifact.load('fig_addition').paper\n"
        "found = [path, folders.RECORDS, artifact.load('fig_addition').results, git_state()]\n"
        "print(json.dumps([*found, read, len(numbers)], default=str))"
    )
    done = python("-c", program, folder=tmp_path, path=str(installed))
    assert done.returncode == 0, done.stderr
    path, records, results, state, read, numbers = json.loads(done.stdout)
    own = RunDirectory(compose_config([*words, f"runs={tmp_path}/runs"])).path
    assert path == str(own)
    assert (records, results) == (f"{tmp_path}/results/records", f"{tmp_path}/results")
    assert state == {"commit": None, "dirty": None}
    assert read == []
    assert numbers > 0


EVERY = """
import json, runpy, sys, warnings
warnings.filterwarnings("error", category=EncodingWarning, module="tape_exp")
for words in json.loads(sys.argv[1]):
    sys.argv = words
    try:
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        print("status", ended.code)
"""


@pytest.mark.long
def test_no_command_depends_on_the_encoding_of_the_locale(tmp_path):
    """Python itself tells of every text file that is opened without one."""
    words = [*SMALL, "trainer=cpu", "logger=none", f"runs={tmp_path}", "task.optim.max_steps=2"]
    words += ["task.train_digits=2", "task.test_digits=3", "task.samples_per_cell=4"]
    layers = [*words, "task=arithmetic", "model=[rope,rope]", "seed=0"]
    commands = [
        ["tape_exp.training", *words, "model=rope", "task=arithmetic"],
        ["tape_exp.training", *layers, f"runs={tmp_path}/layers"],
        ["tape_exp.artifacts", *words, "model=rope", "task=arithmetic"],
        ["tape_exp.paper", "list"],
        ["tape_exp.sweep", "status", *words, "model=rope", "task=arithmetic"],
    ]
    locale = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    done = subprocess.run(
        [sys.executable, "-X", "warn_default_encoding", "-c", EVERY, json.dumps(commands)],
        cwd=ROOT,
        env={**os.environ, **locale, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    ended = re.findall(r"^status (\d+)$", done.stdout, re.MULTILINE)
    assert ended == ["0", "2", "0", "0", "0"], done.stdout + done.stderr
    assert "no names of files with ?, as in" in done.stderr  # ×, of a pattern of layers
    assert "set PYTHONUTF8=1" in done.stderr
    assert "| RoPE " in done.stdout
