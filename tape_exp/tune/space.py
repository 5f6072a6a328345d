"""What a search may vary: keys of the config and their sets of values, in the grammar of Hydra's
sweeps: ``interval(a,b)``, ``int(interval(a,b))``, ``range(a,b,step)``, ``choice(a,b)``, and
``tag(log, …)`` around an interval.
"""

import re
from collections.abc import Sequence
from itertools import product
from math import prod
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, IntervalSweep, RangeSweep, Sweep
from hydra.errors import HydraException
from omegaconf import DictConfig
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from tape_exp.settings.errors import ConfigError, did_you_mean
from tape_exp.settings.files import read_yaml
from tape_exp.settings.folders import path_of
from tape_exp.settings.overrides import literal
from tape_exp.settings.plugins import names_in, yaml_of

HOW = "as in task.optim.lr=tag(log,interval(0.0003,0.01)) or task.optim.warmup=choice(0.05,0.1)"
DIGITS = 4  # that a sampled number keeps
MOST = 10_000  # combinations of values that are counted


def is_searched(word: str) -> bool:
    """Whether a word of the command line gives a key a set of values to search."""
    return bool(re.match(r"[^=]+=\s*(interval|range|choice|tag|int|float)\(", word))


def read_space(choice: str) -> dict[str, str]:
    """The keys and sets of a YAML of ``conf/space``, or of a file of one's own.

    Raises:
        ConfigError: there is no such YAML, or it does not hold keys with sets of values.
    """
    path = yaml_of("space", choice)
    if path is None:
        path = path_of("space", choice)
        if path.suffix != ".yaml" or not path.is_file():
            known = names_in("space")
            raise ConfigError(
                f"space={choice}{did_you_mean(choice, known)} Name one of {', '.join(known)}, or a "
                ".yaml of your own."
            )
    content = read_yaml(path, "name another space")
    if not isinstance(content, DictConfig) or not content:
        raise ConfigError(f"{path} must hold keys with sets of values, {HOW}.")
    space = {str(key): str(value) for key, value in content.items()}
    for key, text in space.items():
        distribution_of(key, text)
    return space


def distribution_of(key: str, text: str) -> BaseDistribution:
    """What Optuna samples the values of a key from.

    Raises:
        ConfigError: the text is no set of values.
    """
    try:
        (override,) = OverridesParser.create().parse_overrides([f"{key}={text}"])
        value = override.value()
        if isinstance(value, Sweep):
            return _of_sweep(value)
    except (HydraException, ValueError, TypeError, ArithmeticError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{key}={text} cannot be searched ({reason}); write it {HOW}.") from error
    raise ConfigError(f"{key}={text} is no set of values; write it {HOW}.")


def _of_sweep(sweep: Sweep) -> BaseDistribution:
    if unknown := sweep.tags - {"log"}:
        raise ValueError(f"the only tag is log, not {', '.join(sorted(unknown))}")
    log = "log" in sweep.tags
    if isinstance(sweep, ChoiceSweep) and not log:
        values: Any = [getattr(value, "text", value) for value in sweep.list]
        if twice := [value for value in values if values.count(value) > 1]:
            raise ValueError(f"{twice[0]} is named twice")
        return CategoricalDistribution(values)
    if isinstance(sweep, IntervalSweep):
        low, high = sweep.start, sweep.end
        assert low is not None
        assert high is not None
        if type(low) is int and type(high) is int:
            return IntDistribution(low, high, log=log)
        return FloatDistribution(low, high, log=log)
    if isinstance(sweep, RangeSweep) and not log:
        start, stop, step = sweep.start or 0, sweep.stop, sweep.step
        if type(start) is int and type(stop) is int and type(step) is int:
            return IntDistribution(start, stop - 1 - (stop - 1 - start) % step, step=step)
        raise ValueError("a range is of whole numbers")
    raise ValueError("log goes with an interval only")


def ends(distribution: BaseDistribution) -> Sequence[Any]:
    """Values that no other lies beyond: the ends of an interval, or every choice."""
    if isinstance(distribution, CategoricalDistribution):
        return distribution.choices
    assert isinstance(distribution, FloatDistribution | IntDistribution)
    return distribution.low, distribution.high


def combinations(space: dict[str, BaseDistribution]) -> list[dict[str, Any]] | None:
    """Every combination of values, where there are no more than :data:`MOST`; None: there are."""
    choices: list[Sequence[Any]] = []
    for one in space.values():
        if isinstance(one, CategoricalDistribution):
            choices.append(one.choices)
        elif isinstance(one, IntDistribution):
            choices.append(range(one.low, one.high + 1, one.step))
        else:
            return None
    if prod(map(len, choices)) > MOST:
        return None
    return [dict(zip(space, values, strict=True)) for values in product(*choices)]


def rounded(value: Any, distribution: BaseDistribution) -> Any:
    """A sampled number with as many digits as one would write, if that is still in the set."""
    if not isinstance(distribution, FloatDistribution):
        return value
    short = float(f"{value:.{DIGITS}g}")
    return short if distribution.low <= short <= distribution.high else value


def words_of(values: dict[str, Any]) -> list[str]:
    """Overrides that set the keys of a trial."""
    return [f"{key}={literal(value)}" for key, value in values.items()]
