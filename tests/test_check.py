"""``tape-exp check``, and the package of examples/, installed as pip does it and used outside the
clone.
"""

import os
import subprocess
import sys

import pytest

from tape_exp import check
from tape_exp.models import conformance
from tape_exp.settings.folders import ROOT


@pytest.mark.parametrize("name", ["nope", "model=nope"])
def test_every_check_has_a_line(name, capsys):
    assert check.main([name]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "nope: tape_exp.models.positions.nope.NoPE"
    told = [line.split("  ")[1] for line in lines[2:-1]]
    assert told == [name.replace("_", " ") for name in conformance.SITUATIONS]
    assert "logits depend on distances only" in lines[-2]
    assert lines[-1] == "No situation failed."


@pytest.fixture
def outside(tmp_path_factory):
    """A folder outside the clone, and an environment with examples/my_pe installed."""
    site = tmp_path_factory.mktemp("site")
    install = ["pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    source = str(ROOT / "examples" / "my_pe")
    subprocess.run([sys.executable, "-m", *install, "--target", str(site), source], check=True)
    environment = {**os.environ, "PYTHONPATH": f"{site}{os.pathsep}{ROOT}"}
    return tmp_path_factory.mktemp("outside"), environment


@pytest.mark.long
def test_the_example_is_found_and_trained(outside):
    folder, environment = outside
    small = ["task.optim.max_steps=2", "task.samples_per_cell=1", "task.arch.layers=1"]
    words = ["train", "model=soft_window", "logger=none", "trainer=cpu", *small]
    command = [sys.executable, "-m", "tape_exp", *words]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (manifest,) = folder.glob("runs/arithmetic/smoke/soft_window/*/manifest.json")
    assert '"my_pe": {' in manifest.read_text()
