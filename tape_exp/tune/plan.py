"""What a search is: models, task, space and budget, as its command names them."""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from tape_exp.paper.compare import check_words, deciding
from tape_exp.paper.words import settings_of, split_words
from tape_exp.runs import weights
from tape_exp.runs.identity import identity_of
from tape_exp.settings.compose import compose_config
from tape_exp.settings.errors import ConfigError, one_of
from tape_exp.settings.folders import path_of
from tape_exp.settings.plugins import names_in
from tape_exp.settings.schema import check
from tape_exp.training.assembly import check_parts
from tape_exp.tune.space import (
    MOST,
    combinations,
    distribution_of,
    ends,
    is_searched,
    read_space,
    words_of,
)

PRUNERS = ("median", "none")
OWN = ("model", "task", "space", "trials", "metric", "pruner")
LAUNCHER = "hydra.launcher."  # of --slurm


@dataclass(frozen=True)
class Search:
    """A study for each model; all have the same space, seeds and number of trials.

    Args:
        space: the set of values of each key, as text.
        overrides: that hold for every run.
        seeds: of the runs of a trial, whose mean is its score.
        metric: of validation, which the search sees.
        trials: for each model.
        pruner: ``median`` gives up a trial whose validation is worse than the median of the other
            trials at that step of that seed; ``none`` gives up none.
    """

    task: str
    scale: str
    models: Sequence[str]
    space: dict[str, str]
    overrides: Sequence[str]
    seeds: Sequence[int]
    metric: str
    trials: int
    pruner: str

    @property
    def name(self) -> str:
        """``arithmetic-smoke-0123456789``: the task, the scale, and a hash of what makes trials
        comparable. Further models and trials belong to the same search.
        """
        parts = [self.space, deciding(self.overrides), list(self.seeds), self.metric, self.pruner]
        identity = identity_of(self.config(self.models[0], {}, self.seeds[0]))
        parts.append({key: identity[key] for key in identity if key not in ("model", "seed")})
        digits = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:10]
        return f"{self.task}-{self.scale}-{digits}"

    @property
    def minimises(self) -> bool:
        """Whether a lower score is better."""
        return self.metric.endswith(("loss", "perplexity"))

    def words(self, model: str, values: dict[str, Any]) -> list[str]:
        """The overrides of the run of a trial, all but its seed."""
        chosen = [f"model={model}", f"task={self.task}", f"scale={self.scale}"]
        return [*chosen, *self.overrides, *words_of(values)]

    def config(self, model: str, values: dict[str, Any], seed: int) -> DictConfig:
        """The config of one run of a trial."""
        return compose_config([*self.words(model, values), f"seed={seed}"])

    def folder(self) -> Path:
        """Where the journal is: ``<runs>/.tune/<name>``."""
        runs = self.config(self.models[0], {}, self.seeds[0]).runs
        return path_of("runs", runs).resolve() / ".tune" / self.name

    def check(self) -> None:
        """Raise :class:`ConfigError` where a model cannot run at the ends of the space."""
        sets = {key: ends(distribution_of(key, text)) for key, text in self.space.items()}
        if len(self.seeds) > 1 and "task.optim.max_steps" in self.space:
            raise ConfigError(
                "task.optim.max_steps can be searched with one seed only: steps of a second one "
                "would not be comparable between trials."
            )
        for model in self.models:
            for number in range(max(map(len, sets.values()))):
                values = {key: choices[number % len(choices)] for key, choices in sets.items()}
                cfg = self.config(model, values, self.seeds[0])
                check(cfg)
                check_parts(cfg)
                if spec := weights.wanted(cfg):
                    weights.find(spec, cfg)
                if cfg.trainer.devices * cfg.trainer.nodes > 1:
                    raise ConfigError(
                        "a run of a search has one device; leave trainer.devices and trainer.nodes "
                        "out, and start more workers, on machines or with --slurm."
                    )
                if "optim" not in cfg.task:
                    raise ConfigError(f"task={self.task} trains nothing that could be searched.")


def requested(words: Sequence[str]) -> Search:
    """The search that the words of the command ask for.

    Raises:
        ConfigError: a word is missing or wrong.
    """
    scale, seeds, further = settings_of(words)
    given, further = split_words(further, OWN)
    rest = [word for word in further if not word.startswith(LAUNCHER)]
    check_words("search", given, rest)
    models = given["model"].split(",")
    for model in models:
        if models.count(model) > 1:
            raise ConfigError(f"model={given['model']} names {model} twice; name each once.")
        one_of("model", model, names_in("model"))
    searched: dict[str, str] = {}
    for key, _, text in (word.partition("=") for word in rest if is_searched(word)):
        if key in searched:
            raise ConfigError(f"{key} is given twice: give one set of values.")
        searched[key] = text
    for key, text in searched.items():
        distribution_of(key, text)
    space = {**(read_space(given["space"]) if "space" in given else {}), **searched}
    _check_keys(space, rest)
    if not space:
        raise ConfigError(
            f"a search needs space=, one of {', '.join(names_in('space'))} or a .yaml of your own, "
            "or keys with sets of values, as in task.optim.lr=interval(0.001,0.01)."
        )
    metric = given.get("metric", "val/loss")
    if not metric.startswith("val/"):
        raise ConfigError(f"metric={metric} is not of validation; the test stays unseen: val/loss.")
    one_of("pruner", pruner := given.get("pruner", "median"), PRUNERS)
    overrides = [word for word in rest if not is_searched(word)]
    return Search(
        given["task"],
        scale,
        models,
        space,
        overrides,
        seeds,
        metric,
        _trials(given.get("trials"), space),
        pruner,
    )


def _check_keys(space: dict[str, str], words: Sequence[str]) -> None:
    """Raise where a key of the space is none that a trial may set, or is set besides."""
    names = [key.lstrip("+") for key in space]
    fixed = {w.partition("=")[0].lstrip("+~") for w in words if not is_searched(w)}
    for name in names:
        if not re.match(r"(task|model|peft)\.\w", name):
            raise ConfigError(
                f"{name} cannot be searched; keys of task, model and peft can, as task.optim.lr. "
                "Models are listed in model=, seeds in seeds=."
            )
        if names.count(name) > 1 or name in fixed:
            raise ConfigError(f"{name} is given twice: give a set of values, or one value.")


def _trials(asked: str | None, space: dict[str, str]) -> int:
    """The trials of each model: as asked, or 12, or as many as there are combinations of values."""
    every = combinations({key: distribution_of(key, text) for key, text in space.items()})
    if asked is None:
        return min(12, len(every or range(12)))
    if not asked.isdecimal() or not 1 <= int(asked) <= MOST:
        raise ConfigError(f"trials={asked} must be a whole number from 1 to {MOST:,}.")
    if every is not None and int(asked) > len(every):
        raise ConfigError(
            f"trials={asked} are more than the combinations of values that the space has; set "
            f"trials={len(every)}."
        )
    return int(asked)
