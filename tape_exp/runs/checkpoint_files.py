"""The checkpoint files in a run's folder: one for each step that was saved."""

import re
from pathlib import Path

from tape_exp.settings.errors import ConfigError


def file_name(step: int) -> str:
    """Name the checkpoint of a step.

    >>> file_name(250)
    'step00000250.ckpt'
    """
    return f"step{step:08d}.ckpt"


def saved_checkpoints(folder: Path) -> list[Path]:
    """List the run's own checkpoints in a folder, the oldest first. Any other file there is its
    user's, as ``step_best.ckpt``: neither begun from nor counted nor removed.
    """
    steps: dict[int, Path] = {}
    for path in folder.glob("*.ckpt"):
        match = re.fullmatch(r"step(\d{8,})\.ckpt", path.name)
        if match:
            steps[int(match[1])] = path
    return [steps[step] for step in sorted(steps)]


def last_checkpoint(run: Path) -> Path:
    """Find the newest checkpoint in the folder of a run; raise :class:`ConfigError` without one."""
    checkpoints = saved_checkpoints(run / "checkpoints")
    if not checkpoints:
        raise ConfigError(f"checkpoint={run} is neither a Llama nor a run with checkpoints.")
    return checkpoints[-1]
