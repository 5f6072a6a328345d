"""What README says: its map is complete, its commands exist, its walk-through of a new encoding works as printed."""

import re
import shlex
import subprocess
import sys

import pytest
from omegaconf import OmegaConf

from launch.grid import jobs_of
from tape_exp.cli import compose_config
from tape_exp.config import CONF
from tape_exp.runs import ROOT

README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    found, inside, content = [], None, ""
    for line in README.splitlines(keepends=True):
        if line.startswith("```"):
            if inside == language:
                found.append(content)
            inside, content = (line[3:].strip() if inside is None else None), ""
        else:
            content += line
    return found


def test_map_names_every_source_file():
    listed = blocks("")[0]
    for path in (ROOT / "launch").glob("*.py"):
        assert path.name == "__init__.py" or f"\nlaunch/{path.name} " in listed, f"{path.name} is not in README's map"
    for path in (ROOT / "tape_exp").rglob("*.py"):
        name = str(path.relative_to(ROOT / "tape_exp"))
        if not name.endswith("__init__.py"):
            assert re.search(rf"^  {re.escape(name)} +\S", listed, re.MULTILINE), f"{name} is not in README's map"
    for line in listed.splitlines():
        name = line.split()[0]
        assert (ROOT / name).exists() or (ROOT / "tape_exp" / name).exists(), name


def test_pictures_and_links_exist():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / target).exists(), target


def test_make_targets_exist():
    help_text = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for target in re.findall(r"make ([a-z-]+)", README):
        assert target == "help" or f"make {target} " in help_text, target
    for target in ("setup", "demo", "test", "slurm-test", "lint", "tables", "gpu", "clean"):
        assert re.search(rf"make {target} +\S", help_text), f"{target} does not describe itself"


@pytest.mark.parametrize("line", [x for b in blocks("bash") for x in b.splitlines() if x.startswith("python train.py")])
def test_train_commands_compose(line):
    words = [w for w in shlex.split(line, comments=True)[2:] if w != "-m" and not w.startswith("hydra/")]
    cfg = compose_config([w if "[" in w else w.split(",")[0] for w in words])
    for word in words:
        group, choices = word.split("=")
        for choice in choices.split(","):
            assert (CONF / group / f"{choice}.yaml").exists() or OmegaConf.select(cfg, group) is not None


@pytest.mark.parametrize("line", [x for b in blocks("bash") for x in b.splitlines() if x.startswith("python -m launch.")])
def test_launch_commands_name_runs(line):
    words = [word for word in shlex.split(line, comments=True)[3:] if "=" in word or word.isidentifier()]
    first = [word if word.startswith("seeds") else word.split(",")[0] for word in words]
    assert jobs_of(first) or "_" in first[0]


def test_adding_an_encoding_as_described_works(tmp_path):
    """The Python and the YAML block, copied into a copy of the project, train."""
    copy = tmp_path / "project"
    copy.mkdir()
    for name in ("tape_exp", "conf", "train.py"):
        subprocess.run(["cp", "-r", str(ROOT / name), str(copy)], check=True)
    (copy / "tape_exp/models/positions/toy.py").write_text(blocks("python")[0])
    (copy / "conf/model/toy.yaml").write_text(blocks("yaml")[0])
    command = [sys.executable, "train.py", "model=toy", "debug=one_batch", "trainer=cpu", "logger=none", "task.arch.width=32"]
    done = subprocess.run(
        command, cwd=copy, capture_output=True, text=True, timeout=120, env={**ENVIRONMENT, "PYTHONPATH": str(copy)}
    )
    assert done.returncode == 0, done.stderr
    assert "arithmetic-smoke-toy-seed0" in done.stdout
    assert (copy / "runs").exists()


ENVIRONMENT = {"PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"}


def test_scale_table_is_true():
    from tape_exp.config import build
    from tests.conftest import make_decoder

    for scale in ("smoke", "small", "paper"):
        import torch

        task = build(compose_config([f"scale={scale}"]).task, "task", seed=0)
        with torch.device("meta"):
            millions = make_decoder("rope", task.arch).parameter_count() / 1e6
        row = next(line for line in README.splitlines() if line.startswith(f"| `{scale}`"))
        shown = float(re.search(r"([\d.]+) M parameters", row).group(1))
        assert shown == pytest.approx(millions, rel=0.02), scale
