"""Hydra's launchers of other processes keep what a sweep promises: one folder and record for each
run, a failed run costs no other, the status says so, and the same command goes on.
"""

from importlib.util import find_spec
from pathlib import Path

import pytest

from tape_exp.settings.explain import explain
from tests.conftest import SMALL
from tests.processes import train

WORDS = ["trainer=cpu", "logger=none", *SMALL, "task.train_digits=2", "task.test_digits=3"]
WORDS += ["task.samples_per_cell=4", "task.optim.max_steps=4", "model=nope"]
LAUNCHERS = {
    "local": ("hydra_plugins.hydra_joblib_launcher", []),
    "submitit_local": ("hydra_plugins.hydra_submitit_launcher", []),
    "ray": ("hydra_plugins.hydra_ray_launcher", ["num_cpus=2", "include_dashboard=false"]),
}


def installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:
        return False


@pytest.mark.long
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_launcher_keeps_the_promises_of_a_sweep(launcher, tmp_path):
    package, options = LAUNCHERS[launcher]
    if not installed(package):
        pytest.skip(f"{package} is not installed")
    words = ["-m", f"hydra/launcher={launcher}", *WORDS, f"runs={tmp_path}"]
    words += [f"hydra.launcher.ray.init.{option}" for option in options]
    done = train(*words, "task.optim.lr=1e30,1e-3")
    if "node timed out during startup" in done.stderr:
        pytest.skip("Ray gives itself 30 seconds to start, and this machine has other work")
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert len([*runs(tmp_path, "FAILED")]) == 1
    (finished,) = runs(tmp_path, "DONE")
    assert (finished.parent / "record.json").exists()
    before = finished.stat().st_mtime_ns
    assert train(*words, "task.optim.lr=1e-3,2e-3").returncode == 0
    assert len([*runs(tmp_path, "DONE")]) == 2
    assert finished.stat().st_mtime_ns == before, "it ran again"


def runs(folder: Path, name: str) -> list[Path]:
    return [*folder.glob(f"arithmetic/smoke/nope/*/{name}")]


@pytest.mark.hosts
@pytest.mark.skipif(not installed(LAUNCHERS["submitit_local"][0]), reason="not installed")
def test_a_run_of_a_worker_may_have_two_devices(tmp_path):
    words = [*WORDS, "trainer.devices=2"]
    assert not train(*words, f"runs={tmp_path}/here").returncode
    done = train("-m", "hydra/launcher=submitit_local", *words, f"runs={tmp_path}/there")
    assert not done.returncode, done.stderr
    (here,) = runs(tmp_path / "here", "DONE")
    (there,) = runs(tmp_path / "there", "DONE")
    assert here.read_text() == there.read_text()


@pytest.mark.parametrize("launcher", ["joblib", "submitit_local", "submitit_slurm"])
def test_a_launcher_that_is_not_installed_is_named_with_its_extra(launcher):
    error = ValueError(f"Could not find 'hydra/launcher/{launcher}'")
    assert "pip install 'tape_exp[launchers]'" in explain(error, [])
