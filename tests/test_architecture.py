"""Who imports whom: the contracts of pyproject.toml hold, and each breaks where it should."""

import shutil

import pytest

from tape_exp.settings.folders import ROOT
from tests.processes import python

LAYERS = "A room imports only rooms below it"
SCRIPTS = "Nothing imports a script or the report"
CIRCLES = "No circle of imports"
RUN = "from importlinter.cli import lint_imports; raise SystemExit(lint_imports(no_cache=True))"


def contracts(folder):
    """The exit status and what import-linter prints of the packages in ``folder``."""
    done = python("-c", RUN, folder=folder, path=str(folder))
    return done.returncode, done.stdout


def test_the_contracts_hold():
    status, printed = contracts(ROOT)
    assert status == 0, printed
    for name in (LAYERS, SCRIPTS, CIRCLES):
        assert f"{name} KEPT" in printed


@pytest.mark.parametrize(
    ("contract", "file", "line"),
    [
        (LAYERS, "tape_exp/machine/files.py", "from tape_exp.settings import errors"),
        (LAYERS, "tape_exp/models/decoder.py", "def late(): import tape_exp.results.tables"),
        (LAYERS, "tape_exp/results/store.py", "from tape_exp.experiments import local"),
        (LAYERS, "tape_exp/experiments/grid.py", "from tape_exp.paper import runs"),
        (LAYERS, "tape_exp/attic/__init__.py", ""),
        (SCRIPTS, "tape_exp/training/run.py", "from tape_exp.export import push"),
        (SCRIPTS, "tape_exp/paper/view.py", "import tape_exp.paper.__main__"),
        (SCRIPTS, "tape_exp/runs/record.py", "import tape_exp.experiments.__main__"),
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
