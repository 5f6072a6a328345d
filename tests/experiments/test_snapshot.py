"""The code of a sweep: a copy of the commit, which later edits of the clone do not change."""

import subprocess
from pathlib import Path

import pytest

from tape_exp.experiments import snapshot
from tape_exp.settings.errors import ConfigError


@pytest.fixture
def clone(tmp_path, monkeypatch) -> Path:
    """A clone with one commit; the package is in it."""
    folder = tmp_path / "clone"
    folder.mkdir()
    (folder / "train.py").write_text("first\n")
    git(folder, "init", "-q")
    commit(folder)
    monkeypatch.setattr(snapshot, "ROOT", folder)
    monkeypatch.setattr("tape_exp.runs.git.ROOT", folder)
    return folder


def git(folder: Path, *words: str) -> None:
    someone = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", *someone, *words], cwd=folder, check=True, capture_output=True)


def commit(folder: Path) -> None:
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "one")


def test_jobs_run_the_commit_of_their_submission(clone, tmp_path):
    first = snapshot.snapshot(tmp_path / "code")
    assert snapshot.snapshot(tmp_path / "code") == first
    (clone / "train.py").write_text("second\n")
    with pytest.raises(ConfigError, match=r"not committed.*--dirty"):
        snapshot.snapshot(tmp_path / "code")
    commit(clone)
    second = snapshot.snapshot(tmp_path / "code")
    assert (first / "train.py").read_text() == "first\n"
    assert (second / "train.py").read_text() == "second\n"


def test_a_copy_that_was_removed_is_made_again(clone, tmp_path):
    copy = snapshot.snapshot(tmp_path / "code")
    subprocess.run(["rm", "-r", copy], check=True)
    assert (snapshot.snapshot(tmp_path / "code") / "train.py").exists()


def test_what_is_no_clone_runs_where_it_is(tmp_path, monkeypatch):
    monkeypatch.setattr(snapshot, "git_state", lambda: {"commit": None, "dirty": None})
    assert snapshot.snapshot(tmp_path / "code") == snapshot.ROOT
    assert not (tmp_path / "code").exists()
