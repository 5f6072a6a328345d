"""The checkpoints in a run's folder: one for each step that was saved."""

import re
from pathlib import Path


def file_name(step: int) -> str:
    """Name the checkpoint of a step."""
    return f"step{step:08d}.ckpt"


def saved(folder: Path) -> list[Path]:
    """List the run's own checkpoints in a folder, the oldest first. Any other file there is its
    user's, as ``step_best.ckpt``: neither begun from nor counted nor removed.
    """
    steps: dict[int, Path] = {}
    for path in folder.glob("*.ckpt"):
        match = re.fullmatch(r"step(\d{8,})\.ckpt", path.name)
        if match:
            steps[int(match[1])] = path
    return [steps[step] for step in sorted(steps)]
