"""Records of runs that never ran, and runs without a process of their own."""

import copy
from collections.abc import Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any

from tape_exp.artifacts.artifact import Artifact, artifact_of
from tape_exp.artifacts.view import View
from tape_exp.experiments.grid import run_overrides
from tape_exp.experiments.local import Running
from tape_exp.experiments.run_spec import RunSpec
from tape_exp.results.record import Record
from tape_exp.runs.identity import recorded_config
from tape_exp.settings.compose import compose_config
from tape_exp.training.run import run

CLAIM: dict[str, Any] = {"text": "TAPE is best.", "at": {"{who}": ""}, "floor": 25}


@cache
def _composed(words: tuple[str, ...]) -> dict[str, Any]:
    return recorded_config(compose_config(words))


def record(
    model: str, seed: int, metrics: dict[str, float], words: Sequence[str] = (), **parts: Any
) -> Record:
    """A record of addition at scale smoke, or of what further words say, with other keys of its
    task or parts of itself.
    """
    overrides = run_overrides([f"model={model}", "task=arithmetic", "scale=smoke", *words])
    config = copy.deepcopy(_composed(tuple(overrides)))
    config["task"] |= parts.pop("task", {})
    name = f"{config['task']['name']}-{model}-{seed}-{len(metrics)}"
    known = {"run": name, "started": f"2026-0{seed + 1}", "seed": seed, "precision": "32-true"}
    known |= {"config": config, "metrics": metrics, "overrides": overrides}
    known |= {"git": {"commit": "0123456789", "dirty": False}}
    return Record(known | parts)


def addition(**further: Any) -> Artifact:
    """Three models by their mean over the grid."""
    given: dict[str, Any] = {
        "title": "Sums",
        "rows": {"model": ["rope", "fire", "tape"]},
        "overrides": ["task=arithmetic"],
        "columns": {"{who}": {"metric": "test/exact_match", "paper": "values.{model}"}},
        "claim": CLAIM,
    }
    keys = given | further
    return artifact_of(keys.pop("name", "fig_addition"), keys)


def view(records: list[Record], **further: Any) -> View:
    """That artifact at scale smoke."""
    return View(addition(**further), "smoke", records)


def runs(model: str, values: list[float], **parts: Any) -> list[Record]:
    """A record for each seed, with this mean over the grid."""
    return [record(model, seed, {"test/exact_match": v}, **parts) for seed, v in enumerate(values)]


def train_here(spec: RunSpec, one_thread: bool) -> Running:
    """In place of :func:`tape_exp.experiments.local.start`: train here, and end well."""
    run(spec.config)
    return Running(SimpleNamespace(returncode=0, poll=lambda: 0))
