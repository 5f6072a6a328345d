"""The cost of the paper's scale: GPU-hours to train each artifact's runs and their bases.

``python -m tape_exp.paper cost`` writes results/costs.json, which the page of results reads:
composing every config of that scale and building its model, without storage, takes a minute or two.
"""

import json
from collections.abc import Iterable
from itertools import chain
from math import isfinite
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from tape_exp.machine.files import write_atomically
from tape_exp.paper.artifacts import Artifact
from tape_exp.paper.runner import bases
from tape_exp.runs.identity import identity_of
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.files import read_json

SEEDS = 3
FILE = "costs.json"


def write(artifacts: Iterable[Artifact], folder: Path) -> Path:
    """Write ``<folder>/costs.json``: runs, tokens and GPU-hours of each artifact and of all."""
    from tape_exp.training import plan

    known: dict[str, dict[str, float]] = {}
    needed = {artifact.name: cost(artifact, known) for artifact in artifacts}
    content = {
        "gpu": plan.ASSUMED,
        "utilisation": plan.UTILISATION,
        "seeds": SEEDS,
        "artifacts": needed,
        "all": _sum(known),
    }
    write_atomically(folder / FILE, json.dumps(content, indent=1) + "\n")
    return folder / FILE


def read(folder: Path) -> dict[str, Any]:
    """The content of costs.json; of a folder without one, no artifacts."""
    path = folder / FILE
    if not path.exists():
        return {"artifacts": {}}
    known = read_json(path)
    try:
        sums = [(each["runs"] + 0, each["gpu_hours"] + 0.0) for each in known["artifacts"].values()]
        if not all(map(isfinite, (*chain(*sums), known["utilisation"]))):
            raise ValueError("a number is not finite")
        known["gpu"] + ""
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise ConfigError(
            f"{path} is not what `python -m tape_exp.paper cost` writes ({error}); give that "
            "command, or remove the file."
        ) from error
    return known


def cost(artifact: Artifact, known: dict[str, dict[str, float]] | None = None) -> dict[str, float]:
    """Runs, trained tokens and GPU-hours at scale paper, all seeds together, without evaluation.

    Args:
        known: what each run needs, by its identity; runs of this artifact that it lacks are added.
    """
    known = {} if known is None else known
    runs: dict[str, dict[str, float]] = {}
    for _, cfg in artifact.configs("paper", [0]):
        for one in (*bases(cfg, artifact.words("paper")), cfg):
            key = json.dumps(identity_of(one), sort_keys=True)
            if key not in known:
                known[key] = _needed(one)
            runs[key] = known[key]
    return _sum(runs)


def _needed(cfg: DictConfig) -> dict[str, float]:
    """What one run needs, however it is spread: memory and devices change no operations."""
    from tape_exp.machine.hardware import PEAK_FLOPS
    from tape_exp.training import plan

    decoder, task = plan.model_and_task(cfg)
    if not task.trains:
        return {"runs": 1, "tokens": 0, "gpu_hours": 0.0}
    tokens = plan.tokens(task)
    flops = tokens * plan.flops_per_token(decoder, task, recompute=False)
    hours = plan.hours(flops, PEAK_FLOPS[plan.ASSUMED])
    return {"runs": 1, "tokens": tokens, "gpu_hours": hours}


def _sum(needed: dict[str, dict[str, float]]) -> dict[str, float]:
    total = {
        key: SEEDS * sum(one[key] for one in needed.values())
        for key in ("runs", "tokens", "gpu_hours")
    }
    return total | {"gpu_hours": round(total["gpu_hours"], 1)}
