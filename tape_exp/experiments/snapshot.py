"""The code that the jobs of a sweep run: a copy of the commit that the clone had at submission."""

import os
import subprocess
import sys
from pathlib import Path

from filelock import FileLock

from tape_exp.runs.git import git_state
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.folders import ROOT

LOCK_SECONDS = 60.0  # that a command waits for another one that submits


def snapshot(folder: Path) -> Path:
    """Make ``<folder>/<commit>``, a worktree of the clone that later edits and pulls do not change;
    what is not a clone runs where it is.

    Raises:
        ConfigError: the clone has changes that are not committed, or git cannot copy it.
    """
    copy = copy_of_commit(folder)
    if copy == ROOT:
        return ROOT
    check_committed()
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / ".lock", timeout=LOCK_SECONDS):
        if not (copy / "train.py").exists():  # the last file that git writes
            _git("worktree", "prune")
            _git("worktree", "add", "--detach", "--force", str(copy), copy.name)
    return copy


def check_committed() -> None:
    """Raise :class:`ConfigError` where the clone has changes, which a copy would lack."""
    if git_state()["dirty"]:
        raise ConfigError(
            f"{ROOT} has changes that are not committed, and jobs run a copy of the last commit: "
            "commit them, or add --dirty, with which each job runs the files that it finds."
        )


def copy_of_commit(folder: Path) -> Path:
    """Say where the copy of today's commit is or will be."""
    commit = git_state()["commit"]
    return folder / commit[:10] if commit else ROOT


def _git(*words: str) -> None:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    command = ["git", "-c", f"safe.directory={ROOT}", *words]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode:
        print(done.stderr.strip(), file=sys.stderr)
        raise ConfigError(
            "git cannot copy the code for the jobs, as it says above: --dirty needs no copy."
        )
