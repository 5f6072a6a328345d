"""Records of runs that never ran, and runs without a process of their own."""

from types import SimpleNamespace
from typing import Any

from tape_exp.experiments.local import Running
from tape_exp.experiments.run_spec import RunSpec
from tape_exp.paper.artifact import Artifact
from tape_exp.paper.view import View
from tape_exp.results.record import Record
from tape_exp.training.run import run

ADDITION = {"_target_": "tape_exp.tasks.arithmetic.Arithmetic", "name": "arithmetic"}
ADDITION |= {"train_digits": 5, "test_digits": 10, "samples_per_cell": 100}


def record(model: str, seed: int, metrics: dict[str, float], **parts: Any) -> Record:
    """A record of addition at scale smoke, with other parts of its config or of itself."""
    task = ADDITION | parts.pop("task", {})
    config = {"model": {"name": model}, "task": task, "peft": {"name": "none"}}
    config |= {"scale": parts.pop("scale", "smoke"), "precision": "auto", "checkpoint": None}
    known = {"run": f"{task['name']}-{model}-{seed}-{len(metrics)}", "started": f"2026-0{seed + 1}"}
    known |= {"config": config, "seed": seed, "metrics": metrics, "precision": "32-true"}
    known |= {"git": {"commit": "0123456789", "dirty": False}, "words": [f"model={model}"]}
    return Record(known | parts)


def addition(**further: Any) -> Artifact:
    """Three models by their mean over the grid."""
    given: dict[str, Any] = {
        "name": "fig_addition",
        "title": "Sums",
        "rows": {"model": ["rope", "fire", "tape"]},
        "overrides": ["task=arithmetic"],
        "columns": {"{who}": {"metric": "test/exact_match", "paper": "values.{model}"}},
        "claim": {"text": "TAPE is best.", "at": {"{who}": ""}, "floor": 25},
    }
    return Artifact(**given | further)


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
