"""What a search is: models, task, space, seeds and budget, as the words of its command say.

A set of values is written as in Hydra's sweeps: ``interval(a,b)``, ``int(interval(a,b))``,
``range(a,b,step)``, ``choice(a,b)``, and ``tag(log, …)`` around an interval.
"""

import argparse
import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
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
    check_words,
    run_words,
    scale_and_seeds,
    take,
    without_places,
)
from tape_exp.runs.evaluation import check_metric
from tape_exp.runs.identity import identity_of
from tape_exp.runs.starting_weights import find
from tape_exp.settings import files
from tape_exp.settings.compose import compose_config
from tape_exp.settings.errors import CHOICES, ConfigError, one_of
from tape_exp.settings.naming import literal
from tape_exp.settings.plugins import names_in, yaml_of
from tape_exp.training.from_config import blank_parts

EXAMPLE = "task.optim.lr=tag(log,interval(0.0003,0.01)) or task.optim.warmup=choice(0.05,0.1)"
SETS = re.compile(r"[^=]+=\s*(interval|range|choice|tag|int|float)\(")  # words of the space


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
        """What Optuna samples each key from."""
        return {key: distribution_of(key, text) for key, text in self.space.items()}

    @cached_property
    def name(self) -> str:
        """``arithmetic-smoke-0123456789``: task, scale, and a hash of what makes trials comparable.

        Further models and trials belong to the same search.
        """
        overrides = without_places(self.overrides)
        parts = [self.space, overrides, list(self.seeds), self.metric, self.pruner]
        identity = identity_of(self.config(self.models[0], {}, self.seeds[0]))
        parts.append({key: identity[key] for key in identity if key not in ("model", "seed")})
        digits = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:10]
        return f"{self.task}-{self.scale}-{digits}"

    @cached_property
    def folder(self) -> Path:
        """``<runs>/.tune/<name>``, where the journal is."""
        runs = self.config(self.models[0], {}, self.seeds[0]).runs
        return Path(runs).expanduser().resolve() / ".tune" / self.name

    def words(self, model: str, values: dict[str, Any]) -> list[str]:
        """The overrides of the runs of a trial, all but the seed."""
        chosen = [f"model={model}", f"task={self.task}", f"scale={self.scale}", *self.overrides]
        return chosen + [f"{key}={literal(value)}" for key, value in values.items()]

    def config(self, model: str, values: dict[str, Any], seed: int) -> DictConfig:
        """The config of one run of a trial."""
        return compose_config([*self.words(model, values), f"seed={seed}"])

    def configured(self, model: str) -> dict[str, Any]:
        """The values of a model's config, where the space has them: those of its first trial."""
        cfg = self.config(model, {}, self.seeds[0])
        values = {key: OmegaConf.select(cfg, key.lstrip("+")) for key in self.space}
        return {k: value for k, value in values.items() if contains(self.distributions[k], value)}

    def check(self) -> None:
        """Raise :class:`ConfigError` where a model cannot run at an end of the space, or its task
        does not measure the metric.
        """
        sets: dict[str, Any] = self.distributions
        ends = {k: getattr(d, "choices", None) or (d.low, d.high) for k, d in sets.items()}
        for model, end in product(self.models, (0, -1)):
            values = {key: limits[end] for key, limits in ends.items()}
            cfg = self.config(model, values, self.seeds[0])
            _, task = blank_parts(cfg)
            check_metric(self.metric, task.announced())
            find(cfg)
            if cfg.trainer.devices * cfg.trainer.nodes > 1:
                raise ConfigError("a trial runs on one device: set trainer.devices=1.")


def search_from(asked: argparse.Namespace) -> Search:
    """The search that a command asks for.

    Args:
        asked: ``words``, as ``model=a,b task=<task> [scale=] [seed=0,1]`` and keys with a value or
            a set of values, where models may be given by their names alone; ``space``, a YAML with
            keys and sets of values; ``trials``, how many each model has; ``metric``, of validation,
            which decides; ``pruner``, ``median`` or ``none``.

    Raises:
        ConfigError: a word is wrong.
    """
    scale, seeds, further = scale_and_seeds(run_words(asked.words))
    options, rest = take(further, ("model", "task"))
    known = names_in("model")
    alone = [word for word in rest if word in known]
    rest = [word for word in rest if word not in alone]
    options["model"] = list(dict.fromkeys([*alone, *options.get("model", [])]))
    check_words("search", options, rest)
    for model in options["model"]:
        one_of("model", model, known, CHOICES)
    one_of("--pruner", asked.pruner, ("median", "none"))
    sets = read_space(asked.space) if asked.space else {}
    sets |= dict(word.split("=", 1) for word in rest if SETS.match(word))
    if not sets:
        names = ", ".join(names_in("space"))
        raise ConfigError(
            f"a search needs --space, one of {names} or a .yaml, or keys as {EXAMPLE}"
        )
    if not asked.metric.startswith("val/"):
        raise ConfigError(f"--metric={asked.metric} must be of validation, as val/loss is.")
    if not re.fullmatch(r"[1-9]\d*", asked.trials):
        raise ConfigError(f"--trials={asked.trials} must be a whole number above 0.")
    fixed = [word for word in rest if not SETS.match(word)]
    (task,) = options["task"]
    return Search(
        task,
        scale,
        options["model"],
        sets,
        fixed,
        seeds,
        asked.metric,
        int(asked.trials),
        asked.pruner,
    )


def read_space(choice: str) -> dict[str, str]:
    """The keys and sets of values of a YAML in ``conf/space``, or of a file of one's own."""
    path = yaml_of("space", choice) or Path(choice).expanduser()
    if path.suffix != ".yaml":
        one_of("--space", choice, names_in("space"))
    content = files.read(path, "name another space")
    return {str(key): str(text) for key, text in content.items()}


def distribution_of(key: str, text: str) -> BaseDistribution:
    """What Optuna samples a key from. Raises :class:`ConfigError` where it cannot be searched."""
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


def contains(one: BaseDistribution, value: Any) -> bool:
    """Whether a value is in a set."""
    if isinstance(one, CategoricalDistribution):
        return value in one.choices
    if isinstance(one, IntDistribution):
        return value in range(one.low, one.high + 1, one.step)
    return isinstance(one, FloatDistribution) and one.low <= value <= one.high
