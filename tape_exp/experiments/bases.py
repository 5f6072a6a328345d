"""What runs need: the runs that they begin from, a folder, and parts that can be built."""

import json
import re
import sys
from collections.abc import Sequence
from contextlib import suppress

from omegaconf import DictConfig

from tape_exp.experiments.run_spec import RunSpec
from tape_exp.results.derived import DERIVED, as_shown
from tape_exp.runs import starting_weights
from tape_exp.runs.directory import RunDirectory
from tape_exp.runs.evaluation import check_metric
from tape_exp.runs.identity import identity_of
from tape_exp.settings.compose import compose_config
from tape_exp.settings.errors import ConfigError


def key_of(spec: RunSpec) -> str:
    """Identify a run and the place of its folder: two specs of one key are one run."""
    return json.dumps([identity_of(spec.config), spec.config.runs], sort_keys=True)


def locate(spec: RunSpec) -> None:
    """Find the folder of a run. Raises :class:`ConfigError` where the run that it starts from is
    not finished.
    """
    spec.folder = RunDirectory(spec.config).path


def add(specs: dict[str, RunSpec], spec: RunSpec) -> RunSpec:
    """Add a run unless it is among the specs, and return the one that is; it needs to run where
    one of the two does.
    """
    same = specs.setdefault(key_of(spec), spec)
    same.recorded &= spec.recorded
    same.metrics |= spec.metrics
    return same


def locate_all(specs: Sequence[RunSpec]) -> None:
    """Find the folders of runs; that of one which starts from an unfinished run is not known."""
    for spec in specs:
        if spec.folder is None:
            with suppress(ConfigError):
                locate(spec)


def with_bases(specs: dict[str, RunSpec], spec: RunSpec) -> None:
    """Add a run, after the runs that it begins from."""
    for overrides, config in bases(spec.config, spec.overrides):
        title = f"{config.task.name} of {config.model.name}, for {spec.title}"
        base = RunSpec(overrides, config, title, spec.needs, spec.recorded, results=spec.results)
        spec.needs = add(specs, base)
    add(specs, spec)


def bases(cfg: DictConfig, words: Sequence[str]) -> list[tuple[list[str], DictConfig]]:
    """Yield overrides and config of all bases of a run (``checkpoint=<task>``), the first to run
    first. The run's words that are not of its task or checkpoint, or stretch its positions, hold
    for what it begins from too.
    """
    task = cfg.checkpoint
    if task is None or not starting_weights.is_task(task):
        return []
    own = r"(task|text@task[.\w]*|model|peft|checkpoint|scale|seed|rerun)[.=](?!text)"
    shared = [word for word in words if not re.match(own, word.lstrip("+~"))]
    shared += [f"task={task}", f"scale={cfg.scale.name}", f"seed={cfg.seed}"]
    same = [word for word in words if re.match(r"(model\.(?!scaling)|peft\.)", word.lstrip("+~"))]
    named = [word for word in words if word.startswith("model=")]
    model = named[-1] if named else f"model={cfg.model.name}"
    chosen = [model, f"peft={cfg.peft.name}", *same, *shared]
    before = compose_config(chosen)
    if cfg.peft.name != "none" and before.checkpoint is None:
        # what is adapted was itself trained from nothing
        model = f"model={cfg.peft.base}"
        chosen = [model, *shared]
        before = compose_config(chosen)
    return [*bases(before, [model, *shared]), (chosen, before)]


def runnable(specs: Sequence[RunSpec], all_of_them: bool = False) -> list[RunSpec]:
    """List the runs that can run, or have a record.

    Why others cannot is said, each reason once; where none can, or all of them should, the reason
    is a ConfigError, and so is a metric that no run measures.
    """
    if not specs:
        return []
    from tape_exp.training.from_config import blank_parts  # imports torch

    reasons: dict[str, list[str]] = {}
    fit = []
    measured = set[str]()
    unknown: dict[str, ConfigError] = {}
    for spec in specs:
        if spec.recorded:
            fit.append(spec)
            measured.update(spec.metrics)
            continue
        try:
            _, task = blank_parts(spec.config)
            fit.append(spec)
        except ConfigError as error:
            reasons.setdefault(str(error), []).append(spec.title)
            continue
        announced = [*map(as_shown, task.announced())]
        for asked, metric in spec.metrics.items():
            try:
                check_metric(metric, announced, DERIVED)
                measured.add(asked)
            except ConfigError as error:
                unknown[asked] = error
    if wrong := next((asked for asked in unknown if asked not in measured), None):
        raise unknown[wrong]
    if reasons and (all_of_them or not fit):
        raise ConfigError(next(iter(reasons)))
    for reason, titles in reasons.items():
        print(f"left out: {', '.join(titles)}: {reason}", file=sys.stderr)
    return fit
