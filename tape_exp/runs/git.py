"""The commit of the clone, and whether its files differ from it."""

import os
import subprocess
from shutil import which
from typing import Any

from tape_exp.settings.folders import INSTALLED, ROOT


def git_state() -> dict[str, Any]:
    """Return the commit, and whether tracked files outside results/, or new ones of the code,
    differ. Outside a clone nothing is known: a repository around the working directory is
    another's.

    The answer is about this clone, whatever repository a hook or ``git rebase --exec`` has named in
    the environment, and the same under every user's config of git.
    """
    # The clone may be another user's, as in a container that mounts it: its code runs already.
    words = ["git", "--no-optional-locks", "-c", f"safe.directory={ROOT}", "status", "--branch"]
    words += ["--porcelain=v2", "--untracked-files=normal", "--", ".", ":!results"]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    lines: list[str] = []
    if not INSTALLED and which("git"):
        status = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True)
        lines = status.stdout.decode(errors="replace").splitlines()
    commit = next((line.split()[2] for line in lines if line.startswith("# branch.oid")), None)
    code = ("? tape_exp/", "? conf/", "1", "2", "u")
    return {"commit": commit, "dirty": commit and any(line.startswith(code) for line in lines)}
