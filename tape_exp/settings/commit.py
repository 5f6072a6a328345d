"""Which state of the code made a record."""

import os
import subprocess
from typing import Any

from tape_exp.settings.folders import INSTALLED, ROOT


def git_state() -> dict[str, Any]:
    """The commit, and whether tracked files outside results/, or new ones of the code, differ.

    Neither a variable of the environment nor a ``core.fsmonitor`` makes git run a program. That the
    clone is another user's, as in a container that mounts it, does not matter: its code runs
    already. Outside a clone nothing is known: a repository around the working directory is another
    project's.
    """
    if INSTALLED:
        return {"commit": None, "dirty": None}
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}

    settings = ("-c", "core.fsmonitor=false", "-c", f"safe.directory={ROOT.resolve()}")

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", *settings, *arguments],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!results")
        added = git(
            "ls-files", "--others", "--exclude-standard", "--", "tape_exp", "conf", "launch"
        )
        return {"commit": git("rev-parse", "HEAD"), "dirty": bool(changed or added)}
    except (OSError, subprocess.CalledProcessError):
        return {"commit": None, "dirty": None}
