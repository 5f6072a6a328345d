"""What a crash, a disk or a careless hand leaves of a run: nothing is lost, nothing is made up."""

import errno
import json
import logging
import os
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest
import torch
from filelock import FileLock

from tape_exp import export
from tape_exp.results.store import commits
from tape_exp.runs import checkpoints, git, manifest
from tape_exp.runs.checkpoint_files import file_name, last_checkpoint, saved_checkpoints
from tape_exp.runs.directory import RunDirectory
from tape_exp.runs.metrics import read_metrics
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.schema import Optim
from tape_exp.training.module import LanguageModule
from tape_exp.training.not_finite import NotFiniteError
from tape_exp.training.outcome import check_finite


def checkpoint(folder: Path, step: int, **more) -> Path:
    """A checkpoint of the run ``abc``."""
    path = folder / file_name(step)
    content = {"config_hash": "abc", "global_step": step, "state_dict": {"x": torch.zeros(999)}}
    content |= more
    checkpoints.SafeCheckpointIO().save_checkpoint(content, path)
    return path


def cut(content: bytearray) -> bytes:
    return content[: len(content) // 2]


def flip_a_weight(content: bytearray) -> bytes:
    content[content.index(bytes(999)) + 500] ^= 1
    return content


@pytest.mark.parametrize("damage", [cut, flip_a_weight, lambda content: b"", lambda content: b"{"])
def test_a_damaged_checkpoint_is_put_aside_for_the_one_before(damage, tmp_path):
    before, last = checkpoint(tmp_path, 1), checkpoint(tmp_path, 2)
    assert checkpoints.newest(tmp_path, "abc") == (last, 2)
    last.write_bytes(damage(bytearray(last.read_bytes())))
    assert checkpoints.newest(tmp_path, "abc") == (before, 1)
    assert (tmp_path / "step00000002.damaged").exists()
    before.write_bytes(b"")
    assert checkpoints.newest(tmp_path, "abc") == (None, 0)


def test_only_checkpoints_that_a_run_has_named_are_its_own(tmp_path):
    """A user's copies are neither begun from nor counted nor removed."""
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    own = [checkpoint(folder, step) for step in (5, 99_999_999, 100_000_000)]
    copies = ("step_best.ckpt", "step00000020_copy.ckpt", "step5.ckpt", "last.ckpt", "step.ckpt")
    for name in copies:
        shutil.copy(own[0], folder / name)
    assert saved_checkpoints(folder) == own
    assert checkpoints.newest(folder, "abc") == (own[-1], 100_000_000)
    assert last_checkpoint(tmp_path) == own[-1]
    for path in own:
        path.unlink()
    assert checkpoints.newest(folder, "abc") == (None, 0)
    with pytest.raises(ConfigError, match="neither a Llama nor a run with checkpoints"):
        last_checkpoint(tmp_path)


def test_copies_of_checkpoints_are_kept_and_two_of_the_runs_own(tiny_run):
    words = ["model=rope", "trainer.checkpoint_every=2"]
    cfg, _ = tiny_run(*words, steps=4)
    directory = RunDirectory(cfg)
    copies = [directory.checkpoints / name for name in ("step_best.ckpt", "step00000002_copy.ckpt")]
    for copy in copies:
        shutil.copy(directory.checkpoints / file_name(2), copy)
    (directory.path / "DONE").unlink()
    (directory.checkpoints / file_name(4)).unlink()
    tiny_run(*words, steps=4)
    own = [directory.checkpoints / file_name(step) for step in (2, 4)]
    assert {*directory.checkpoints.iterdir()} == {*own, *copies}


def test_no_checkpoint_is_written_that_is_not_finite(tiny_run, tmp_path, monkeypatch):
    """Also where no report precedes it: the same command goes on from weights that are. A GPU is
    not asked for the gradient's norm at every step.
    """
    monkeypatch.setattr(LanguageModule, "_asks_for_norm", lambda _: False)
    words = ["model=rope", "task.optim.lr=1e30", "trainer.log_every=50"]
    for _ in range(2):
        with pytest.raises(NotFiniteError, match=r"not finite .* Lower task\.optim\.lr=1e\+30"):
            tiny_run(*words, "trainer.checkpoint_every=1", steps=60)
    written = [*tmp_path.rglob("*.ckpt")]
    assert written  # before the first update that is not finite
    for path in written:
        content = torch.load(path, weights_only=True)
        assert all(weights.isfinite().all() for weights in content["state_dict"].values())


@pytest.mark.parametrize("groups", [([0, 2], [1, 3]), ([0, 1], [2, 3])])
def test_fsdp_takes_no_moments_that_are_numbered_group_after_group(groups, tmp_path):
    """As those that decay and those that do not were once; it knows parameters by their place."""
    state = {"state": {}, "param_groups": [{"params": group} for group in groups]}
    path = checkpoint(tmp_path, 1, optimizer_states=[state])
    assert checkpoints.newest(tmp_path, "abc") == (path, 1)
    if groups[0] == [0, 2]:
        assert checkpoints.newest(tmp_path, "abc", sharded=True) == (path, 1)
    else:
        with pytest.raises(ConfigError, match=r"older version.*use trainer\.strategy=ddp"):
            checkpoints.newest(tmp_path, "abc", sharded=True)


def test_a_checkpoint_that_cannot_be_read_is_kept(tmp_path, monkeypatch):
    """It may be whole: the disk has failed, or its permissions are wrong."""
    path = checkpoint(tmp_path, 1)

    def unreadable(*_):
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    monkeypatch.setattr(zipfile, "ZipFile", unreadable)
    with pytest.raises(OSError, match="Input/output error"):
        checkpoints.newest(tmp_path, "abc")
    assert path.exists()


def test_a_bad_line_of_metrics_does_not_stop_the_run(tiny_run, caplog, monkeypatch):
    cfg, whole = tiny_run("model=rope", "trainer.checkpoint_every=2", steps=6)
    directory = RunDirectory(cfg)
    rows = directory.metrics.read_text().splitlines()
    directory.metrics.write_text("\n".join([*rows[:1], "\ufffd\x00", *rows[1:]]) + "\n")
    with monkeypatch.context() as patch:
        patch.setattr(logging.getLogger("tape_exp"), "propagate", True)  # a run switches it off
        assert [json.dumps(row) for row in read_metrics(directory.metrics)] == rows
    assert "metrics.jsonl, line 2 is damaged and left out" in caplog.text
    (directory.path / "DONE").unlink()
    _, again = tiny_run("model=rope", "trainer.checkpoint_every=2", steps=6)
    assert again["metrics"] == whole["metrics"]
    assert again["curves"] == whole["curves"]


def test_a_finished_run_without_its_files_is_evaluated_again(tiny_run, capsys):
    """What is left of the curves and the time is no whole run's."""
    cfg, whole = tiny_run("model=rope")
    directory = RunDirectory(cfg)
    for path in (directory.path / "record.json", directory.metrics):
        path.unlink()
    assert not directory.done
    _, again = tiny_run("model=rope")
    assert again["metrics"] == whole["metrics"]
    assert directory.record()["metrics"] == whole["metrics"]
    assert directory.done
    assert "metrics.jsonl is missing" in capsys.readouterr().out
    assert "train/loss" not in again["curves"]


def test_a_finished_run_on_a_read_only_disk_is_done(tiny_run, monkeypatch, capsys):
    _, record = tiny_run("model=rope")

    def read_only(self, *_, **__):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), self.lock_file)

    monkeypatch.setattr(FileLock, "acquire", read_only)
    assert tiny_run("model=rope")[1] == record
    assert "is DONE" in capsys.readouterr().out


def test_the_rows_of_a_step_are_on_the_disk_before_its_checkpoint(tiny_run, monkeypatch):
    order = []
    fsync = os.fsync

    def noted(handle):
        order.append(Path(os.readlink(f"/proc/self/fd/{handle}")).name)
        fsync(handle)

    monkeypatch.setattr(os, "fsync", noted)
    tiny_run("model=rope", "trainer.checkpoint_every=2")
    first = next(i for i, name in enumerate(order) if name.startswith(".step"))
    assert "metrics.jsonl" in order[:first]


def commit_all(folder):
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@t", "-C", str(folder)]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "all"]):
        subprocess.run([*git, *words], check=True)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder to another user")
def test_a_clone_of_another_user_names_its_commit(tmp_path, monkeypatch):
    (tmp_path / "kept.py").write_text("")
    commit_all(tmp_path)
    for path in (tmp_path, *tmp_path.rglob("*")):
        os.chown(path, 4242, 4242)
    monkeypatch.setattr(git, "ROOT", tmp_path)
    assert git.git_state()["commit"]


def test_a_new_file_among_the_code_counts_as_a_change(tmp_path, monkeypatch):
    for folder in ("tape_exp", "conf", "results"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "kept.py").write_text("")
    commit_all(tmp_path)
    monkeypatch.setattr(git, "ROOT", tmp_path)
    (tmp_path / "results" / "new.json").write_text("")
    assert git.git_state()["dirty"] is False
    for folder in ("tape_exp", "conf"):
        (tmp_path / folder / "mine.py").write_text("")
        assert git.git_state()["dirty"] is True
        (tmp_path / folder / "mine.py").unlink()
    monkeypatch.setattr(git, "INSTALLED", True)  # then the repository is another project's
    assert git.git_state() == {"commit": None, "dirty": None}
    monkeypatch.setattr(git, "INSTALLED", False)
    shutil.rmtree(tmp_path / ".git")
    assert git.git_state() == {"commit": None, "dirty": None}


def test_the_commit_is_that_of_the_clone_whatever_a_hook_or_a_config_says(tmp_path, monkeypatch):
    """git gives hooks and `git rebase --exec` GIT_DIR and GIT_INDEX_FILE of another repository."""
    for name in ("clone", "other"):
        (tmp_path / name / "tape_exp").mkdir(parents=True)
        (tmp_path / name / "tape_exp" / "kept.py").write_text(name)
        commit_all(tmp_path / name)
    monkeypatch.setattr(git, "ROOT", tmp_path / "clone")
    asked = ["git", "-C", str(tmp_path / "clone"), "rev-parse", "HEAD"]
    commit = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other" / ".git"))
    assert git.git_state() == {"commit": commit, "dirty": False}
    monkeypatch.setenv("GIT_WORK_TREE", str(tmp_path / "other"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "other" / ".git" / "index"))
    assert git.git_state() == {"commit": commit, "dirty": False}
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".gitconfig").write_text("[status]\nshowUntrackedFiles = no\n")
    (tmp_path / "clone" / "tape_exp" / "mine.py").write_text("")
    assert git.git_state() == {"commit": commit, "dirty": True}


def test_a_metric_that_is_no_number_fails_the_run():
    with pytest.raises(NotFiniteError, match=r"val/loss is nan .*Lower task\.optim\.lr=0\.1"):
        check_finite({"test/exact_match": 3.0, "val/loss": float("nan")}, Optim(1, 1, lr=0.1))


def test_a_run_that_goes_on_names_the_commit_with_which_it_began(tiny_run, monkeypatch):
    states = [{"commit": "a" * 40, "dirty": True}, {"commit": "b" * 40, "dirty": False}]
    monkeypatch.setattr(manifest, "git_state", lambda: states[0])
    cfg, first = tiny_run("model=rope", "trainer.checkpoint_every=2", steps=6)
    directory = RunDirectory(cfg)
    for name in ("DONE", "record.json"):
        (directory.path / name).unlink()
    monkeypatch.setattr(manifest, "git_state", lambda: states[1])
    for _ in range(2):
        _, again = tiny_run("model=rope", "trainer.checkpoint_every=2", steps=6)
        git = states[0] | {"later": [states[1]["commit"]]}
        assert (again["git"], again["started"]) == (git, first["started"])
        for name in ("DONE", "record.json"):
            (directory.path / name).unlink()
    assert commits([again]) == "aaaaaaa+ bbbbbbb+"
    assert ", then ".join(("a" * 40, "b" * 40)) in export.model_card("", again, 1, "")
