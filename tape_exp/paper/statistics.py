"""What several seeds can tell: paired differences, families of claims, resampled accuracies."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, stdev

import numpy as np
from scipy.special import stdtr, stdtrit

from tape_exp.paper.values import NOT_RUN, Cell, Missing, Value

DRAWS = 4000  # of a bootstrap; the ends of an interval move by about 2 % of its width


@dataclass(frozen=True)
class Difference:
    """The mean difference of two methods over the seeds that both have.

    Args:
        mean: ours minus theirs, in the unit of the metric.
        half: half of its 95 % interval: a smaller difference could not have been told from 0;
            None for a single seed.
        p: two-sided, of a paired t test; None for a single seed, or equal differences of all.
        n: how many seeds both have.
    """

    mean: float
    half: float | None
    p: float | None
    n: int


def paired(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Difference | None:
    """Student's paired t test over the seeds that both have; None where they share none.

    A seed fixes the data, their order and the weights that the models share, so that a part of the
    spread over seeds is common to both and leaves their difference. Differences that are the same
    for all seeds show no spread to judge them by: their p is None, and what decides, if anything,
    are the samples of :func:`resampled`.
    """
    seeds = sorted(ours.keys() & theirs.keys())
    if not seeds:
        return None
    differences = [ours[seed] - theirs[seed] for seed in seeds]
    centre, n = mean(differences), len(seeds)
    if n < 2:
        return Difference(centre, None, None, n)
    error = stdev(differences) / n**0.5
    half = float(stdtrit(n - 1, 0.975)) * error
    size = max(abs(number) for seed in seeds for number in (ours[seed], theirs[seed]))
    equal = error <= 1e-12 * size  # but for rounding
    return Difference(
        centre, half, None if equal else 2 * float(stdtr(n - 1, -abs(centre) / error)), n
    )


def lead(ours: Cell, theirs: Cell, digits: int = 2) -> Cell:
    """The paired difference of two means over seeds, written ``-0.51 ± 1.17``.

    A single seed in common has a difference and no interval, nor have differences that are the same
    for all seeds.
    """
    if not isinstance(ours, Value) or not isinstance(theirs, Value):
        return NOT_RUN
    numbers = ({seed: run.number for seed, run in each.runs.items()} for each in (ours, theirs))
    found = paired(*numbers)
    if found is None:
        return Missing("no seed in common")
    form = f"{{number:+.{digits}f}}"
    if found.half is None or found.p is None:
        return Value(found.mean, n=found.n, form=form)
    ends, form = (
        (found.mean - found.half, found.mean + found.half),
        form + f" ± {{half:.{digits}f}}",
    )
    return Value(found.mean, *ends, found.n, form, kind="95 % interval over pairs of seeds")


def holm(p: Sequence[float]) -> list[float]:
    """p values adjusted for their number, in the same order (Holm, 1979).

    With p sorted from the smallest, p_(1) <= … <= p_(m), the adjusted value of p_(i) is the largest
    of min(1, (m - k + 1) p_(k)) over k <= i: rejecting those below α, the chance of any wrong
    rejection is at most α, however the tests depend on each other.
    """
    order = sorted(range(len(p)), key=lambda i: p[i])
    adjusted, largest = [0.0] * len(p), 0.0
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, (len(p) - rank) * p[i]))
        adjusted[i] = largest
    return adjusted


def resampled(runs: Sequence[Sequence[Value]], *, fresh: bool = False) -> np.ndarray:
    """A hierarchical bootstrap over seeds and samples: (methods, :data:`DRAWS`) means over seeds.

    Each draw takes as many seeds as there are, with replacement and the same ones for all methods,
    and moves each of their numbers by the error of its samples: normal, with 1.96 deviations up to
    the upper end of its 95 % interval and as many down to the lower, so that 0 right answers of 20
    are not taken for certainty. Where all seeds are asked the same samples, one move is that of all
    seeds of a method: what these samples favour by chance is no smaller in a mean over seeds.
    Methods move independently, although they are asked the same samples too: that makes a
    difference no more certain than it is.

    Args:
        runs: of every method those of its seeds, in the same order; one without an interval does
            not move.
        fresh: whether each seed has samples of its own.
    """
    generator = np.random.default_rng(0)
    number = np.array([[run.number for run in each] for each in runs], dtype=float)
    low, high = number.copy(), number.copy()
    for i, each in enumerate(runs):
        for k, run in enumerate(each):
            if run.low is not None and run.high is not None:
                low[i, k], high[i, k] = run.low, run.high
    methods, seeds = number.shape
    taken = generator.integers(seeds, size=(DRAWS, seeds))
    moves = generator.standard_normal((methods, DRAWS, seeds if fresh else 1)) / 1.96
    reach = np.where(moves < 0, (number - low)[:, taken], (high - number)[:, taken])
    return (number[:, taken] + moves * reach).mean(-1)


def p_of(draws: np.ndarray) -> float:
    """The two-sided p value of a bootstrap's differences: how often they are on the other side of
    0, counting one draw more than there are, since none is not proof.
    """
    below, above = (draws <= 0).sum() + 1, (draws >= 0).sum() + 1
    return min(1.0, 2 * float(min(below, above)) / (len(draws) + 1))


def ends(draws: np.ndarray) -> tuple[float, float]:
    """The 95 % interval of a bootstrap: its 2.5 % and 97.5 % quantiles."""
    low, high = np.quantile(draws, (0.025, 0.975))
    return float(low), float(high)
