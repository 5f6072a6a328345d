"""A search as a sweep of W&B: what ``wandb sweep`` reads, so that ``wandb agent`` runs it."""

from typing import Any

import yaml
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from tape_exp.settings.errors import ConfigError
from tape_exp.tune.plan import Search
from tape_exp.tune.space import distribution_of


def sweep_yaml(search: Search) -> str:
    """The sweep's configuration; each run is ``tape-exp train`` with the values that W&B gives.

    Raises:
        ConfigError: the search has several models, whose budgets one sweep of W&B cannot keep
            equal.
    """
    if len(search.models) > 1:
        names = ", ".join(search.models)
        raise ConfigError(f"a sweep of W&B is of one model; write one for each of {names}.")
    if len(search.seeds) > 1:
        raise ConfigError("a sweep of W&B has one seed, which seeds= names.")
    if search.config(search.models[0], {}, search.seeds[0]).logger.name != "wandb":
        raise ConfigError("a sweep of W&B needs logger=wandb, or it would see no metric.")
    words = search.words(search.models[0], {})
    goal = "minimize" if search.minimises else "maximize"
    sweep: dict[str, Any] = {
        "name": f"{search.models[0]} {search.name}",
        "method": "bayes",
        "metric": {"name": search.metric, "goal": goal},
        "run_cap": search.trials,
        "parameters": {key: _parameter(key, text) for key, text in search.space.items()},
        "command": ["tape-exp", "train", *words, "${args_no_hyphens}"],
    }
    sweep["parameters"]["seed"] = {"value": search.seeds[0]}
    return yaml.safe_dump(sweep, sort_keys=False, allow_unicode=True)


def _parameter(key: str, text: str) -> dict[str, Any]:
    """How W&B describes a set of values."""
    one = distribution_of(key, text)
    if isinstance(one, CategoricalDistribution):
        return {"values": list(one.choices)}
    assert isinstance(one, FloatDistribution | IntDistribution)
    if isinstance(one, IntDistribution) and one.step != 1:
        return {"values": list(range(one.low, one.high + 1, one.step))}
    kind = {
        (FloatDistribution, True): "log_uniform_values",
        (FloatDistribution, False): "uniform",
        (IntDistribution, True): "q_log_uniform_values",
        (IntDistribution, False): "int_uniform",
    }[type(one), one.log]
    return {"distribution": kind, "min": one.low, "max": one.high}
