"""What several seeds can tell: intervals, paired tests, and families of tests."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import hypot, log
from statistics import mean
from typing import Any

import numpy as np
from scipy.special import stdtr, stdtrit

from tape_exp.runs.evaluation import wilson

Z = 1.96  # standard errors to each side of a 95 % interval over samples


@dataclass(frozen=True)
class Value:
    """A number with the ends of its 95 % interval, None where nothing tells them."""

    number: float  # in the unit of its column; a mean over ``runs`` where there are some
    low: float | None = None
    high: float | None = None
    runs: Mapping[int, "Value"] = field(default_factory=dict, repr=False)  # by seed
    error: bool = False  # the ends are one standard error away
    n: int = 1  # how many runs, or rounds of a timing
    text: str = ""  # what is written in the place of the number

    @property
    def pair(self) -> list[float]:
        """The numbers of two seeds, which are written in the place of their wide interval."""
        return [run.number for run in self.runs.values()] if len(self.runs) == 2 else []

    def times(self, factor: float) -> "Value":
        """In another unit."""
        low, high = (None if end is None else factor * end for end in (self.low, self.high))
        runs = {seed: run.times(factor) for seed, run in self.runs.items()}
        return replace(self, number=factor * self.number, low=low, high=high, runs=runs)


def over_seeds(runs: Mapping[int, Value]) -> Value:
    """The mean over seeds with Student's 95 % interval, which a single seed does not have."""
    numbers = [run.number for run in runs.values()]
    n = len(numbers)
    centre = float(np.mean(numbers))
    if n < 2:
        return Value(centre, runs=runs)
    half = float(stdtrit(n - 1, 0.975)) * float(np.std(numbers, ddof=1)) / n**0.5
    return Value(centre, centre - half, centre + half, runs, n=n)


def over_counts(runs: Mapping[int, Value]) -> Value:
    """What is counted, which no seed changes; where seeds differ all the same, their mean and its
    interval.
    """
    numbers = {run.number for run in runs.values()}
    return Value(numbers.pop()) if len(numbers) == 1 else over_seeds(runs)


def over_samples(runs: Mapping[int, Value]) -> Value:
    """The mean over runs that are asked the same samples: to each side the half over seeds and the
    mean half over samples are added as independent errors are, √(a² + b²). A single run keeps its
    own interval.
    """
    spread = over_seeds(runs)
    values = [*runs.values()]
    if any(value.low is None or value.high is None for value in values):
        return spread
    if spread.low is None or spread.high is None:
        return replace(values[0], runs=runs)
    half = spread.high - spread.number
    centre = spread.number
    below = hypot(half, centre - mean(v.low for v in values if v.low is not None))
    above = hypot(half, mean(v.high for v in values if v.high is not None) - centre)
    return replace(spread, low=centre - below, high=centre + above)


def over_trials(runs: Mapping[int, Value], trials: int) -> Value:
    """The share, in percent, of the trials of all runs together, each of so many, with Wilson's
    interval.
    """
    total = trials * len(runs)
    correct = round(sum(run.number * trials / 100 for run in runs.values()))
    return Value(100 * correct / total, *wilson(correct, total), runs, n=len(runs))


def with_error(runs: Mapping[int, Value]) -> Value:
    """The means over runs of the number and of the standard error over samples."""
    number = mean(run.number for run in runs.values())
    if any(run.low is None for run in runs.values()):
        return Value(number, runs=runs, n=len(runs))
    error = mean(run.number - (run.low or 0.0) for run in runs.values()) / Z
    return Value(number, number - error, number + error, runs, error=True, n=len(runs))


def mean_log(values: Sequence[Value]) -> Value | None:
    """The mean of the logarithms of several positive numbers, over the seeds that all have; None
    where there is no such seed.
    """
    if not all(value.runs for value in values):
        return Value(mean(log(value.number) for value in values))
    seeds = sorted(set.intersection(*(set(value.runs) for value in values)))
    logs = {seed: mean(log(value.runs[seed].number) for value in values) for seed in seeds}
    return over_seeds({seed: Value(number) for seed, number in logs.items()}) if logs else None


@dataclass(frozen=True)
class Difference:
    """The mean difference of two methods over the seeds that both have, ours minus theirs."""

    value: Value  # with its 95 % interval, of differences that are not all equal
    p: float | None  # two-sided, of a paired t test; 1 where all are equal, which is no evidence


def paired(ours: Value, theirs: Value) -> Difference | None:
    """Student's paired t test over the seeds that both have; None where they share none.

    A seed fixes the data, their order and the weights that the models share, so that a part of the
    spread over seeds is common to both and leaves their difference.
    """
    seeds = sorted(ours.runs.keys() & theirs.runs.keys())
    if not seeds:
        return None
    pairs = [(ours.runs[seed].number, theirs.runs[seed].number) for seed in seeds]
    value = over_seeds({seed: Value(a - b) for seed, (a, b) in zip(seeds, pairs, strict=True)})
    value = replace(value, runs={})
    n = len(seeds)
    if value.high is None:
        return Difference(value, None)
    error = (value.high - value.number) / float(stdtrit(n - 1, 0.975))
    if error <= 1e-12 * max(abs(number) for pair in pairs for number in pair):  # but rounding
        return Difference(Value(value.number, n=n), 1.0)
    return Difference(value, 2 * float(stdtr(n - 1, -abs(value.number) / error)))


def lead(ours: Value, theirs: Value) -> Value | None:
    """The paired difference; None where no seed is shared."""
    found = paired(ours, theirs)
    return found.value if found else None


def holm(p: Sequence[float]) -> list[float]:
    """p values adjusted for their number (Holm, 1979), in the order given."""
    adjusted = [0.0] * len(p)
    largest = 0.0
    for rank, i in enumerate(sorted(range(len(p)), key=lambda i: p[i])):
        adjusted[i] = largest = max(largest, min(1.0, (len(p) - rank) * p[i]))
    return adjusted


def lowest(losses: Mapping[Any, Mapping[int, float]]) -> Any:
    """The choice with the lowest mean over the seeds that all ran; None where there is none."""
    seeds = set.intersection(*map(set, losses.values())) if losses else None
    if not seeds:
        return None
    return min(losses, key=lambda choice: mean(losses[choice][seed] for seed in seeds))
