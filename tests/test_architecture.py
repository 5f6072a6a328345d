"""What `make lint` checks of imports and statements holds, and each fault is refused."""

import ast
import re
import runpy
import shutil

import pytest

from tape_exp.settings.folders import ROOT
from tests.processes import python

LAYERS = "A room imports only rooms below it"
SCRIPTS = "Nothing imports a script"
CIRCLES = "No circle of imports"
RUN = "from importlinter.cli import lint_imports; raise SystemExit(lint_imports(no_cache=True))"


ONE_THOUGHT = runpy.run_path(str(ROOT / ".ci" / "one_thought.py"))


def contracts(folder):
    """The exit status and what import-linter prints of the packages in ``folder``."""
    done = python("-c", RUN, folder=folder, path=str(folder))
    return done.returncode, done.stdout


def test_the_contracts_hold():
    status, printed = contracts(ROOT)
    assert status == 0, printed
    for name in (LAYERS, SCRIPTS, CIRCLES):
        assert f"{name} KEPT" in printed


@pytest.mark.parametrize("room", ["models", "models/positions", "runs", "results"])
def test_the_map_of_a_room_names_each_of_its_files(room):
    folder = ROOT / "tape_exp" / room
    words = set(
        re.findall(r"\w+", ast.get_docstring(ast.parse((folder / "__init__.py").read_text())))
    )
    files = {path.stem for path in folder.iterdir() if path.name[0] != "_"}
    assert files <= words, files - words


@pytest.mark.parametrize(
    ("contract", "file", "line"),
    [
        (LAYERS, "tape_exp/machine/files.py", "from tape_exp.settings import errors"),
        (LAYERS, "tape_exp/models/decoder.py", "def late(): import tape_exp.results.tables"),
        (LAYERS, "tape_exp/results/store.py", "from tape_exp.experiments import local"),
        (LAYERS, "tape_exp/experiments/grid.py", "from tape_exp.artifacts import runs"),
        (LAYERS, "tape_exp/attic/__init__.py", ""),
        (SCRIPTS, "tape_exp/training/run.py", "from tape_exp.export import push"),
        (SCRIPTS, "tape_exp/artifacts/view.py", "import tape_exp.paper.__main__"),
        (SCRIPTS, "tape_exp/runs/record.py", "import tape_exp.sweep"),
        (CIRCLES, "tape_exp/models/attention.py", "import tape_exp.models.block"),
    ],
)
def test_an_import_that_a_contract_forbids_breaks_it(contract, file, line, tmp_path):
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "tape_exp", tmp_path / "tape_exp", ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / file).parent.mkdir(exist_ok=True)
    with (tmp_path / file).open("a") as source:
        source.write(f"\n{line}\n")
    status, printed = contracts(tmp_path)
    assert status == 1
    assert f"{contract} BROKEN" in printed


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("a, b = x, y", "several values are assigned at once"),
        ("self.a, self.b = a, b", "several values are assigned at once"),
        ("[sum(x for x in row) for row in rows]", "a comprehension is in this one"),
        ("{k: v for k, v in (word.split() for word in words)}", "a comprehension is in this one"),
        ("a[i], a[j] = a[j], a[i]", ""),
        ("a, b = pair", ""),
        ("[sum(row) for row in rows]", ""),
    ],
)
def test_a_statement_with_two_thoughts_is_refused(line, fault, tmp_path, capsys):
    (tmp_path / "here.py").write_text(f"\n{line}\n")
    assert ONE_THOUGHT["main"](str(tmp_path)) == bool(fault)
    printed = capsys.readouterr().out
    assert fault in printed
    assert printed.startswith(f"{tmp_path}/here.py:2: ") == bool(fault)
