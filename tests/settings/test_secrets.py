"""Secrets of the environment appear nowhere in a run, and foreign files are read, never run."""

import json
import logging
import os
import pickle
import re
import sys

import pytest
import torch
from omegaconf import OmegaConf

from tape_exp.runs.directory import RunDirectory
from tape_exp.settings.compose import compose_config
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.redact import MASK, RedactingFormatter, redact, redact_tree
from tape_exp.training.run import run
from tests.conftest import SMALL
from tests.processes import train

SECRETS = {
    "WANDB_API_KEY": "0123456789abcdef0123456789abcdef01234567",
    "HF_TOKEN": "hf_PlantedPlantedPlantedPlanted0001",
    "AWS_SECRET_ACCESS_KEY": "planted/aws+secret=value0002",
    "MY_PASSWORD": "planted-password-0003",
}
SLURM_JWT = "planted-slurm-jwt-0007"  # which W&B would store with its metadata


@pytest.fixture
def secrets(monkeypatch):
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    return list(SECRETS.values())


def test_values_are_masked_wherever_they_stand(secrets):
    text = redact(f"refused {secrets}")
    assert text.count(MASK) == len(secrets)
    assert not any(value in text for value in secrets)
    assert redact_tree({"a": [f"x={secrets[0]}", 3], "b": None}) == {
        "a": [f"x={MASK}", 3],
        "b": None,
    }
    assert redact("a tokenizer with 12 keys") == "a tokenizer with 12 keys"


AWKWARD = {
    "A_TOKEN": 'abc"def-ghi',
    "B_TOKEN": 'it\'s "both"',
    "C_TOKEN": "back\\slash\\",
    "D_TOKEN": "ünïcode-漢字",
    "E_TOKEN": "two\nlines",
    "F_TOKEN": 'abc"def-ghi-longer',
    "G_TOKEN": "20240101",
    "H_TOKEN": "${seed} and {}",
}


@pytest.mark.parametrize("name", AWKWARD)
def test_secrets_are_masked_in_texts_only_whatever_is_in_them(name, monkeypatch):
    for each, value in AWKWARD.items():
        monkeypatch.setenv(each, value)
    secret = AWKWARD[name]
    tree = {"note": f"x={secret}!", "seed": 20240101, "all": [{"secret": secret}, None, 0.5]}
    masked = {"note": f"x={MASK}!", "seed": 20240101, "all": [{"secret": MASK}, None, 0.5]}
    assert redact_tree(tree) == masked
    for written in (repr(secret), json.dumps(secret), json.dumps(secret, ensure_ascii=False)):
        assert redact(written)[1:-1] == MASK


def test_a_log_line_and_its_traceback_are_masked(secrets):
    try:
        raise RuntimeError(f"refused {secrets[0]}")
    except RuntimeError:
        record = logging.LogRecord(
            "x", logging.ERROR, "", 0, "sent %s", (secrets[1],), sys.exc_info()
        )
    line = RedactingFormatter("%(message)s").format(record)
    assert "RuntimeError" in line
    assert not any(value in line for value in secrets)


@pytest.mark.long
def test_planted_secrets_appear_nowhere(tmp_path, monkeypatch):
    """Neither in a run that W&B sees, nor in what it leaves where it failed."""
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    words = [*SMALL, "task.train_digits=2", "task.test_digits=3", "task.samples_per_cell=2"]
    words += ["task.optim.max_steps=2", "model=rope", "trainer=cpu", f"runs={tmp_path}/runs"]
    words += ["logger=wandb", "logger.mode=offline", f"scale.text={SECRETS['MY_PASSWORD']}"]
    done = train(*words, environment={"SLURM_JOB_ID": "12", "SLURM_JWT": SLURM_JWT})
    (run,) = (path.parent for path in (tmp_path / "runs").rglob("DONE"))
    RunDirectory(compose_config(words)).fail(OSError(f"refused {SECRETS['HF_TOKEN']}"))
    assert MASK in (run / "FAILED").read_text()
    assert list(run.rglob("*.wandb"))
    written = {"stdout": done.stdout.encode(), "stderr": done.stderr.encode()}
    written |= {str(p): p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    for value in (*SECRETS.values(), SLURM_JWT):
        assert not [name for name, content in written.items() if value.encode() in content]
    assert MASK in (run / "manifest.json").read_text()
    assert MASK in (run / "config.yaml").read_text()


class Trap:
    """A pickle that makes a folder when it is loaded."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_a_checkpoint_is_never_unpickled_nor_a_yaml_constructed(tmp_path):
    planted, sprung = tmp_path / "planted.ckpt", tmp_path / "sprung"
    torch.save({"state_dict": Trap(sprung)}, planted)
    with pytest.raises(ConfigError, match=re.escape(str(planted))):
        run(compose_config(["model=rope", f"runs={tmp_path}/runs", f"checkpoint={planted}"]))
    (tmp_path / "config.yaml").write_text(f"a: !!python/object/apply:os.mkdir ['{sprung}']\n")
    with pytest.raises(Exception, match="could not determine a constructor"):
        OmegaConf.load(tmp_path / "config.yaml")
    assert not sprung.exists()
    pickle.loads(pickle.dumps(Trap(sprung)))  # the trap works
    assert sprung.exists()
