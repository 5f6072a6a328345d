"""What several seeds can tell: intervals, paired tests, and families of tests.

A :class:`Value` is a number with its interval: of a run by ``value_of_metric``. That of a cell is
made of the values of its runs, by seed: ``over_seeds``, ``over_samples``, ``over_trials``,
``with_error`` or ``over_counts``. Two of them are compared by ``paired``, over the seeds that both
have, and the p values of several such tests are adjusted by ``holm``.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import hypot, log, sqrt
from statistics import mean
from typing import Any

import numpy as np
from scipy.special import stdtr, stdtrit

# Standard errors to each side of a 95 % interval: the 97.5 % quantile of the normal distribution.
Z_95 = 1.959963984540054  # in Wilson's interval
Z = 1.96  # in intervals of standard errors: with more digits, those of recorded tables would change


@dataclass(frozen=True)
class Value:
    """A number with the ends of its 95 % interval, None where nothing tells them."""

    number: float  # in the unit of its column; a mean over ``runs`` where there are some
    low: float | None = None
    high: float | None = None
    runs: Mapping[int, "Value"] = field(default_factory=dict, repr=False)  # by seed
    error: bool = False  # the ends are one standard error away
    over_seeds: bool = False  # the ends have Student's interval over seeds in them
    n: int = 1  # how many runs, or rounds of a timing
    text: str = ""  # what is written in the place of the number

    @property
    def pair(self) -> list[float]:
        """Return the numbers of two seeds, which are written in the place of Student's interval,
        wide as it is; none of another number of seeds or where the interval is another.

        >>> runs = {0: Value(100.0), 1: Value(50.0)}
        >>> over_seeds(runs).pair, over_trials(runs, trials=10).pair
        ([100.0, 50.0], [])
        """
        if len(self.runs) != 2 or not self.over_seeds:
            return []
        return [run.number for run in self.runs.values()]

    def times(self, factor: float) -> "Value":
        """Convert it to another unit."""
        return replace(
            self,
            number=factor * self.number,
            low=None if self.low is None else factor * self.low,
            high=None if self.high is None else factor * self.high,
            runs={seed: run.times(factor) for seed, run in self.runs.items()},
        )


def value_of_metric(metrics: Mapping[str, float], metric: str) -> Value | None:
    """Return a metric of a run, with its interval over samples if it has one.

    >>> value = value_of_metric({"f1": 21.0, "f1_low": 20.5, "f1_high": 21.5}, "f1")
    >>> value.number, value.low, value.high
    (21.0, 20.5, 21.5)
    """
    if metric not in metrics:
        return None
    number = metrics[metric]
    error = metrics.get(f"{metric}_stderr")
    if error is not None:
        return Value(number, number - Z * error, number + Z * error)
    return Value(number, metrics.get(f"{metric}_low"), metrics.get(f"{metric}_high"))


def over_seeds(runs: Mapping[int, Value]) -> Value:
    """Average over seeds, with Student's 95 % interval, which a single seed does not have.

    >>> value = over_seeds({0: Value(1.0), 1: Value(2.0), 2: Value(3.0)})
    >>> value.number, round(value.low, 2), round(value.high, 2)
    (2.0, -0.48, 4.48)
    """
    numbers = [run.number for run in runs.values()]
    n = len(numbers)
    centre = float(np.mean(numbers))
    if n < 2:
        return Value(centre, runs=runs)
    half = float(stdtrit(n - 1, 0.975)) * float(np.std(numbers, ddof=1)) / n**0.5
    return Value(centre, centre - half, centre + half, runs, over_seeds=True, n=n)


def over_counts(runs: Mapping[int, Value]) -> Value:
    """Return what is counted, which no seed changes; where seeds differ all the same, their mean
    and its interval.

    >>> over_counts({0: Value(7.0), 1: Value(7.0)})
    Value(number=7.0, low=None, high=None, error=False, over_seeds=False, n=1, text='')
    """
    numbers = {run.number for run in runs.values()}
    return Value(numbers.pop()) if len(numbers) == 1 else over_seeds(runs)


def over_samples(runs: Mapping[int, Value]) -> Value:
    """Average over runs that are asked the same samples: to each side the half over seeds and the
    mean half over samples are added as independent errors are, √(a² + b²). A single run keeps its
    own interval.

    >>> value = over_samples({0: Value(50.0, 47.0, 53.0), 1: Value(50.0, 47.0, 53.0)})
    >>> value.low, value.high  # seeds do not differ, and samples that they share do not average out
    (47.0, 53.0)
    """
    average = over_seeds(runs)
    lows = [run.low for run in runs.values() if run.low is not None]
    highs = [run.high for run in runs.values() if run.high is not None]
    if len(lows) < len(runs) or len(highs) < len(runs):
        return average
    if average.high is None:
        (run,) = runs.values()
        return replace(run, runs=runs)
    half = average.high - average.number
    below = hypot(half, average.number - mean(lows))
    above = hypot(half, mean(highs) - average.number)
    return replace(average, low=average.number - below, high=average.number + above)


def over_trials(runs: Mapping[int, Value], trials: int) -> Value:
    """Return the share, in percent, of the trials of all runs together, each of so many, with
    Wilson's interval.

    >>> value = over_trials({0: Value(100.0), 1: Value(50.0)}, trials=10)
    >>> value.number, round(value.low), round(value.high)  # 15 of 20
    (75.0, 53, 89)
    """
    total = trials * len(runs)
    correct = round(sum(run.number * trials / 100 for run in runs.values()))
    return Value(100 * correct / total, *wilson(correct, total), runs, n=len(runs))


def wilson(correct: float, trials: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a share of successes, in percent.

    >>> low, high = wilson(9, 10)
    >>> round(low, 1), round(high, 1)
    (59.6, 98.2)
    """
    share = correct / trials
    centre = 2 * correct + Z_95**2
    half = Z_95 * sqrt(4 * correct * (1 - share) + Z_95**2)
    low = (centre - half) / (2 * (trials + Z_95**2))
    high = (centre + half) / (2 * (trials + Z_95**2))
    return 100 * max(low, 0.0), 100 * min(high, 1.0)


def with_error(runs: Mapping[int, Value]) -> Value:
    """Average over runs the number and the standard error over samples.

    >>> value = with_error({0: Value(50.0, 50 - 1.96 * 2, 50 + 1.96 * 2)})
    >>> value.low, value.high
    (48.0, 52.0)
    """
    number = mean(run.number for run in runs.values())
    if any(run.low is None for run in runs.values()):
        return Value(number, runs=runs, n=len(runs))
    error = mean(run.number - (run.low or 0.0) for run in runs.values()) / Z
    return Value(number, number - error, number + error, runs, error=True, n=len(runs))


def mean_log(values: Sequence[Value]) -> Value | None:
    """Average the logarithms of several positive numbers, over the seeds that all have; None where
    there is no such seed.

    >>> round(mean_log([Value(1.0), Value(100.0)]).number, 3)  # 10 is their geometric mean
    2.303
    """
    if not all(value.runs for value in values):
        return Value(mean(log(value.number) for value in values))
    means = {}
    for seed in shared_seeds(value.runs for value in values):
        logs = [log(value.runs[seed].number) for value in values]
        means[seed] = Value(mean(logs))
    return over_seeds(means) if means else None


def shared_seeds(runs: Iterable[Mapping[int, Any]]) -> list[int]:
    """List the seeds that all have, in order; none where there is nothing to compare.

    >>> shared_seeds([{0: 0.3, 1: 0.2}, {1: 0.4, 2: 0.1}])
    [1]
    """
    seeds = [set(by_seed) for by_seed in runs]
    return sorted(set.intersection(*seeds)) if seeds else []


@dataclass(frozen=True)
class Difference:
    """The mean difference of two methods over the seeds that both have, ours minus theirs."""

    value: Value  # with its 95 % interval, which differences that are all equal do not have
    p: float | None  # two-sided; None of a single pair

    @property
    def is_constant(self) -> bool:
        """Say whether several seeds have one and the same difference, and not 0: scores of 100
        against 0.
        """
        return self.value.n > 1 and self.value.high is None and self.value.number != 0


def paired(ours: Value, theirs: Value) -> Difference | None:
    """Test two methods over the seeds that both have, by Student's paired t test; None where they
    share none.

    A seed fixes the data, their order and the weights that the models share, so that a part of the
    spread over seeds is common to both and leaves their difference.

    Where all n differences are equal, as those of saturated scores, t is not defined. They then
    have no interval, and their p is that of the exact sign test, 2 · 0.5^n, which is below 0.05
    from six seeds on; where all are 0 it is 1.

    >>> solved = over_seeds({seed: Value(100.0) for seed in range(3)})
    >>> failed = over_seeds({seed: Value(0.0) for seed in range(3)})
    >>> difference = paired(solved, failed)
    >>> difference.value.number, difference.value.low, difference.p
    (100.0, None, 0.25)
    >>> paired(solved, solved).p
    1.0
    """
    seeds = shared_seeds([ours.runs, theirs.runs])
    if not seeds:
        return None
    differences = {}
    largest = 0.0
    for seed in seeds:
        number = ours.runs[seed].number
        other = theirs.runs[seed].number
        differences[seed] = Value(number - other)
        largest = max(largest, abs(number), abs(other))
    value = replace(over_seeds(differences), runs={})
    n = len(seeds)
    if value.high is None:
        return Difference(value, None)
    error = (value.high - value.number) / float(stdtrit(n - 1, 0.975))
    rounding = 1e-12 * largest  # what the last bits of a number may be off
    if error <= rounding and abs(value.number) <= rounding:
        return Difference(Value(0.0, n=n), 1.0)
    if error <= rounding:
        return Difference(Value(value.number, n=n), 2 * 0.5**n)
    return Difference(value, 2 * float(stdtr(n - 1, -abs(value.number) / error)))


def lead(ours: Value, theirs: Value) -> Value | None:
    """Return the paired difference, ours minus theirs; None where no seed is shared."""
    difference = paired(ours, theirs)
    return difference.value if difference else None


def holm(p: Sequence[float]) -> list[float]:
    """Adjust p values for their number (Holm, 1979), in the order given: the smallest of n is
    multiplied by n, the next by n - 1, and none becomes smaller than one before it.

    >>> holm([0.04, 0.01, 0.03])
    [0.06, 0.03, 0.06]
    """
    adjusted = [0.0] * len(p)
    largest = 0.0
    for rank, i in enumerate(sorted(range(len(p)), key=lambda i: p[i])):
        largest = max(largest, min(1.0, (len(p) - rank) * p[i]))
        adjusted[i] = largest
    return adjusted


def lowest(losses: Mapping[Any, Mapping[int, float]]) -> Any:
    """Return the choice with the lowest mean over the seeds that all ran; None where there is none.

    >>> lowest({"1e-3": {0: 0.5, 1: 0.1}, "3e-3": {0: 0.4}})  # by seed 0, which both have
    '3e-3'
    """
    seeds = shared_seeds(losses.values())
    if not seeds:
        return None
    return min(losses, key=lambda choice: mean(losses[choice][seed] for seed in seeds))
