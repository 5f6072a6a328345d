"""What a search is: models, task, space, seeds and budget, as its command says.

A set of values is written as in Hydra's sweeps: ``interval(a,b)``, ``int(interval(a,b))``,
``range(a,b,step)``, ``choice(a,b)``, and ``tag(log, …)`` around an interval.
"""

import argparse
import json
import re
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from tape_exp.experiments.grid import (
    check_task_and_models,
    run_overrides,
    scale_and_seeds,
    take,
    without_places,
)
from tape_exp.machine.files import short_hash
from tape_exp.results.metric_names import check_metric
from tape_exp.runs.identity import identity_of
from tape_exp.runs.starting_weights import starting_checkpoint
from tape_exp.settings import files
from tape_exp.settings.choices import SECTIONS
from tape_exp.settings.compose import compose_config
from tape_exp.settings.construct import arguments_model, locate
from tape_exp.settings.errors import CHOICES, ConfigError, one_of
from tape_exp.settings.naming import literal
from tape_exp.settings.plugins import names_in, yaml_of
from tape_exp.training.from_config import blank_parts

EXAMPLE = "task.optim.lr=tag(log,interval(0.0003,0.01)) or task.optim.warmup=choice(0.05,0.1)"
SETS = re.compile(r"[^=]+=\s*(interval|range|choice|tag|int|float)\(")  # with a set of values


@dataclass(frozen=True)
class Search:
    """An Optuna study for each model; all have the same space, seeds and number of trials."""

    task: str
    scale: str
    models: Sequence[str]
    space: dict[str, str]  # key -> its set of values
    overrides: Sequence[str]  # of every run
    seeds: Sequence[int]  # of the runs of a trial, whose mean metric is its score
    metric: str  # of validation
    trials: int  # of each model
    pruner: str  # median or none

    @cached_property
    def distributions(self) -> dict[str, BaseDistribution]:
        """Return what Optuna samples each key from."""
        return {key: distribution_of(key, text) for key, text in self.space.items()}

    @cached_property
    def name(self) -> str:
        """Name it by task, scale, and a hash of what makes trials comparable:
        ``arithmetic-smoke-0123456789``.

        Further models and trials belong to the same search.
        """
        overrides = without_places(self.overrides)
        parts = [self.space, overrides, list(self.seeds), self.metric, self.pruner]
        identity = identity_of(self.config(self.models[0], {}, self.seeds[0]))
        del identity["model"]
        del identity["seed"]
        parts.append(identity)
        digits = short_hash([json.dumps(parts, sort_keys=True)])[:10]
        return f"{self.task}-{self.scale}-{digits}"

    @cached_property
    def folder(self) -> Path:
        """Return ``<runs>/.tune/<name>``, where the journal is."""
        runs = self.config(self.models[0], {}, self.seeds[0]).runs
        return Path(runs).expanduser().resolve() / ".tune" / self.name

    def overrides_of(self, model: str, values: dict[str, Any]) -> list[str]:
        """Return the overrides of the runs of a trial, all but the seed."""
        overrides = [f"model={model}", f"task={self.task}", f"scale={self.scale}", *self.overrides]
        for key, value in values.items():
            overrides.append(f"{key}={literal(value)}")
        return overrides

    def config(self, model: str, values: dict[str, Any], seed: int) -> DictConfig:
        """Compose the config of one run of a trial."""
        return compose_config([*self.overrides_of(model, values), f"seed={seed}"])

    def default_values(self, model: str) -> dict[str, Any]:
        """Return the values with which a model runs where nothing is searched, as far as the space
        has them: those of its first trial.
        """
        cfg = self.config(model, {}, self.seeds[0])
        values = {}
        for key, distribution in self.distributions.items():
            value = value_or_default(cfg, key.lstrip("+"))
            if contains(distribution, value):
                values[key] = value
        return values

    def check(self) -> None:
        """Raise :class:`ConfigError` where a model cannot run at an end of the space, or its task
        does not measure the metric.
        """
        ends = {key: ends_of(distribution) for key, distribution in self.distributions.items()}
        lowest = {key: low for key, (low, _) in ends.items()}
        highest = {key: high for key, (_, high) in ends.items()}
        for model, values in product(self.models, (lowest, highest)):
            cfg = self.config(model, values, self.seeds[0])
            _, task = blank_parts(cfg)
            check_metric(self.metric, task.announced())
            starting_checkpoint(cfg)
            if cfg.trainer.devices * cfg.trainer.nodes > 1:
                raise ConfigError("a trial runs on one device: set trainer.devices=1.")


def search_from(options: argparse.Namespace) -> Search:
    """Make the search that a command asks for.

    Args:
        options: ``words``, as ``model=a,b task=<task> [scale=] [seed=0,1]`` and keys with a value
            or a set of values, where models may be given by their names alone; ``space``, a YAML
            with keys and sets of values; ``trials``, how many each model has; ``metric``, of
            validation, which decides; ``pruner``, ``median`` or ``none``.

    Raises:
        ConfigError: an argument is wrong.
    """
    scale, seeds, others = scale_and_seeds(run_overrides(options.words))
    choices, others = take(others, ("model", "task"))
    known = names_in("model")
    by_name = [argument for argument in others if argument in known]
    overrides = [argument for argument in others if argument not in known]
    models = list(dict.fromkeys([*by_name, *choices.get("model", [])]))
    check_task_and_models("search", {**choices, "model": models}, overrides)
    for model in models:
        one_of("model", model, known, CHOICES)
    one_of("--pruner", options.pruner, ("median", "none"))
    if not options.metric.startswith("val/"):
        raise ConfigError(f"--metric={options.metric} must be of validation, as val/loss is.")
    if not re.fullmatch(r"[1-9]\d*", options.trials):
        raise ConfigError(f"--trials={options.trials} must be a whole number above 0.")
    return Search(
        task=choices["task"][0],
        scale=scale,
        models=models,
        space=space_of(options.space, overrides),
        overrides=[override for override in overrides if not SETS.match(override)],
        seeds=seeds,
        metric=options.metric,
        trials=int(options.trials),
        pruner=options.pruner,
    )


def space_of(choice: str, overrides: Sequence[str]) -> dict[str, str]:
    """Return the keys that are searched and their sets: those of a YAML, and those of overrides,
    which are on top. Raises :class:`ConfigError` where there are none.

    >>> space_of("", ["task.optim.warmup=choice(0.02,0.05)", "task.optim.batch=8"])
    {'task.optim.warmup': 'choice(0.02,0.05)'}
    """
    space = read_space(choice) if choice else {}
    for override in overrides:
        if SETS.match(override):
            key, _, text = override.partition("=")
            space[key] = text
    if not space:
        names = ", ".join(names_in("space"))
        raise ConfigError(
            f"a search needs --space, one of {names} or a .yaml, or keys as {EXAMPLE}"
        )
    return space


def read_space(choice: str) -> dict[str, str]:
    """Read the keys and sets of values of a YAML in ``conf/space``, or of a file of one's own."""
    path = yaml_of("space", choice) or Path(choice).expanduser()
    if path.suffix != ".yaml":
        one_of("--space", choice, names_in("space"))
    content = files.read(path, "name another space")
    return {str(key): str(text) for key, text in content.items()}


def value_or_default(cfg: DictConfig, key: str) -> Any:
    """Return the value of a key in a config or, where its YAMLs leave it out, the default of the
    schema or the constructor that reads it; None without one.

    >>> cfg = compose_config(["model=rope", "task=arithmetic"])
    >>> value_or_default(cfg, "task.optim.warmup")
    0.05
    >>> value_or_default(cfg, "task.optim.position_lr")  # in no YAML of this run
    1.0
    """
    section, _, name = key.rpartition(".")
    values = OmegaConf.select(cfg, section)
    if values is None:
        return None
    if name in values:
        return values[name]
    if section in SECTIONS:
        for field in fields(SECTIONS[section]):
            if field.name == name and field.default is not MISSING:
                return field.default
    target = values.get("_target_")
    if target is None:
        return None
    argument = arguments_model(locate(target, section)).model_fields.get(name)
    return None if argument is None or argument.is_required() else argument.default


def distribution_of(key: str, text: str) -> BaseDistribution:
    """Turn a set of values into what Optuna samples a key from.

    >>> distribution_of("task.optim.lr", "tag(log,interval(0.001,0.1))")
    FloatDistribution(high=0.1, log=True, low=0.001, step=None)

    Raises:
        ConfigError: the key cannot be searched, or the text is no set of values.
    """
    if not re.match(r"\+*(task|model|peft)\.\w", key):
        raise ConfigError(f"{key} cannot be searched; keys of task, model and peft can.")
    try:
        sweep: Any = OverridesParser.create().parse_override(f"{key}={text}").value()
        kind = type(sweep).__name__
        if kind == "ChoiceSweep":
            choices = [getattr(value, "text", value) for value in sweep.list]
            return CategoricalDistribution(list(dict.fromkeys(choices)))
        if kind == "RangeSweep":
            values = range(sweep.start, sweep.stop, sweep.step)
            return IntDistribution(values[0], values[-1], step=values.step)
        if kind != "IntervalSweep" or sweep.tags - {"log"}:
            raise ValueError("it is no set of values, or has another tag than log")
        whole = type(sweep.start) is type(sweep.end) is int
        interval: Any = IntDistribution if whole else FloatDistribution
        return interval(sweep.start, sweep.end, log="log" in sweep.tags)
    except (HydraException, ValueError, TypeError, IndexError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{key}={text} cannot be searched ({reason}); write {EXAMPLE}") from error


def contains(distribution: BaseDistribution, value: Any) -> bool:
    """Say whether a value is in a set.

    >>> contains(FloatDistribution(0.1, 0.5), 0.3), contains(FloatDistribution(0.1, 0.5), None)
    (True, False)
    """
    if isinstance(distribution, CategoricalDistribution):
        return value in distribution.choices
    if isinstance(distribution, IntDistribution):
        return value in range(distribution.low, distribution.high + 1, distribution.step)
    if isinstance(distribution, FloatDistribution) and isinstance(value, int | float):
        return distribution.low <= value <= distribution.high
    return False


def ends_of(distribution: BaseDistribution) -> tuple[Any, Any]:
    """Return the first and the last value of a set.

    >>> ends_of(FloatDistribution(0.1, 0.5)), ends_of(CategoricalDistribution(["a", "b", "c"]))
    ((0.1, 0.5), ('a', 'c'))
    """
    if isinstance(distribution, CategoricalDistribution):
        return distribution.choices[0], distribution.choices[-1]
    assert isinstance(distribution, FloatDistribution | IntDistribution)
    return distribution.low, distribution.high
