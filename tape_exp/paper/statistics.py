"""What several seeds can tell: paired differences, families of claims, resampled accuracies."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, stdev

import numpy as np
from scipy.special import stdtr, stdtrit

DRAWS = 4000  # of a bootstrap; the ends of an interval move by about 2 % of its width


@dataclass(frozen=True)
class Difference:
    """The mean difference of two methods over the seeds that both have.

    Args:
        mean: ours minus theirs, in the unit of the metric.
        half: half of its 95 % interval, which is also the smallest difference that seeds with this
            spread could have shown; None for a single seed.
        p: two-sided, of a paired t test; None for a single seed.
        n: how many seeds both have.
    """

    mean: float
    half: float | None
    p: float | None
    n: int


def paired(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Difference | None:
    """Student's paired t test over the seeds that both have; None where they share none.

    A seed fixes the data, their order and the weights that the models share, so that a part of the
    spread over seeds is common to both and leaves their difference. Equal differences of all seeds
    have p = 0, or 1 where they are zero: the spread of so few seeds is not known better, and
    :func:`resampled` tells what the test's samples can decide.
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
    if error == 0:
        return Difference(centre, half, float(centre == 0), n)
    return Difference(centre, half, 2 * float(stdtr(n - 1, -abs(centre) / error)), n)


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


def resampled(
    accuracies: Sequence[Sequence[float]],
    trials: int,
    of: Callable[[np.ndarray], np.ndarray] = np.asarray,
) -> np.ndarray:
    """A hierarchical bootstrap of accuracies: (methods, :data:`DRAWS`) means over seeds.

    Each draw takes as many seeds as there are, with replacement and the same ones for all methods,
    and for each of them an accuracy that its samples leave possible: Beta(k + ½, n - k + ½) for k
    right answers of n (the Jeffreys posterior), so that 0 of 20 is not taken for certainty.

    Args:
        accuracies: of every method those of its seeds, from 0 to 1.
        trials: samples that each accuracy was measured with.
        of: what is averaged over seeds, a function of an accuracy.
    """
    measured = np.asarray(accuracies, dtype=float)
    generator = np.random.default_rng(0)
    seeds = measured.shape[1]
    taken = measured[:, generator.integers(seeds, size=(DRAWS, seeds))]
    return of(generator.beta(taken * trials + 0.5, (1 - taken) * trials + 0.5)).mean(-1)


def ends(draws: np.ndarray) -> tuple[float, float]:
    """The 95 % interval of a bootstrap: its 2.5 % and 97.5 % quantiles."""
    low, high = np.quantile(draws, (0.025, 0.975))
    return float(low), float(high)
