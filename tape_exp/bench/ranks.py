"""Ranks of methods over tasks: their mean, a bootstrap of it, Friedman's test and Nemenyi's.

Scores are arrays (methods, tasks, seeds), of which more is better.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import chdtrc, ndtr, ndtri, stdtrit

from tape_exp.paper.statistics import DRAWS, ends

FEWEST = {"methods": 3, "tasks": 5, "seeds": 2}  # below these a test of ranks says nothing


def ranked(scores: np.ndarray) -> np.ndarray:
    """Ranks along the first axis: 1 is the highest, and equals share the mean of theirs."""
    above = (scores[None] > scores[:, None]).sum(1)
    equal = (scores[None] == scores[:, None]).sum(1)
    return above + (equal + 1) / 2


def mean_ranks(scores: np.ndarray) -> np.ndarray:
    """(methods,): the mean over tasks of the rank of the mean over seeds."""
    return ranked(scores.mean(-1)).mean(-1)


@dataclass(frozen=True)
class Draws:
    """A bootstrap: (methods, :data:`DRAWS`) mean ranks, and mean differences to one method."""

    ranks: np.ndarray
    leads: np.ndarray


def bootstrap(scores: np.ndarray, rival: int = 0) -> Draws:
    """Each draw takes as many tasks as there are with replacement, and of each its seeds likewise.

    All methods get the same tasks and seeds, so that what makes a task hard is common to them.

    Args:
        scores: (methods, tasks, seeds).
        rival: number of the method that the others are compared with.
    """
    generator = np.random.default_rng(0)
    methods, tasks, seeds = scores.shape
    ranks, leads = np.zeros((methods, DRAWS)), np.zeros((methods, DRAWS))
    for _ in range(tasks):
        task = generator.integers(tasks, size=(DRAWS, 1))
        drawn = scores[:, task, generator.integers(seeds, size=(DRAWS, seeds))].mean(-1)
        ranks += ranked(drawn) / tasks
        leads += (drawn - drawn[rival]) / tasks
    return Draws(ranks, leads)


def interval(draws: np.ndarray, tasks: int) -> tuple[float, float]:
    """The 95 % interval of a mean over n tasks, from its bootstrap.

    Draws from n tasks are spread by only √((n - 1) / n) of what means of n tasks differ by, and the
    quantiles of a normal are too near for so few: those of the draws would hold the truth in 85 of
    100 cases where n is 6. So they move away from the draws' mean by t / (z √((n - 1) / n)), with
    the quantiles of Student's t of n - 1 degrees of freedom and of a normal.
    """
    wider = stdtrit(tasks - 1, 0.975) / (ndtri(0.975) * ((tasks - 1) / tasks) ** 0.5)
    middle = float(draws.mean())
    low, high = (middle + wider * (end - middle) for end in ends(draws))
    return float(low), float(high)


def friedman(ranks: np.ndarray) -> tuple[float, float]:
    """Friedman's χ² with its correction for equals, and its p value.

    With r the ranks (k methods, n tasks) and R_j the sum of a method's:
    χ² = (k - 1) Σ_j (R_j - n (k + 1) / 2)² / (Σ r² - n k (k + 1)² / 4), of k - 1 degrees of
    freedom. Where all methods are equal on every task it is 0.
    """
    k, n = ranks.shape
    spread = (ranks**2).sum() - n * k * (k + 1) ** 2 / 4
    if spread <= 1e-9:
        return 0.0, 1.0
    statistic = (k - 1) * ((ranks.sum(1) - n * (k + 1) / 2) ** 2).sum() / spread
    return float(statistic), float(chdtrc(k - 1, statistic))


def p_words(p: float) -> str:
    """``p = 0.032``; of one that is very small only that it is."""
    return f"p = {p:.2g}" if p >= 1e-4 else "p < 0.0001"


def critical_difference(methods: int, tasks: int, level: float = 0.05) -> float:
    """Nemenyi's: mean ranks that differ by less cannot be told apart at this level.

    CD = q √(k (k + 1) / (6 n)), with q the upper quantile of the range of k standard normal
    numbers, over √2 (Demšar, 2006).
    """
    low, high = 0.0, 20.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _range_below(middle, methods) < 1 - level else (low, middle)
    return low / 2**0.5 * (methods * (methods + 1) / (6 * tasks)) ** 0.5


def _range_below(width: float, k: int) -> float:
    """The probability k ∫ φ(z) (Φ(z) - Φ(z - width))^(k - 1) dz that a range is below a width.

    ``scipy.stats`` has it too, and takes a second to import.
    """
    z = np.linspace(-9, 9, 1801)
    density = np.exp(-(z**2) / 2) / (2 * np.pi) ** 0.5
    return float(np.trapezoid(k * density * (ndtr(z) - ndtr(z - width)) ** (k - 1), z))


def cliques(ranks: Sequence[float], difference: float) -> list[tuple[int, int]]:
    """The largest runs of sorted ranks, first and last, whose ends differ by less than that."""
    found: list[tuple[int, int]] = []
    for first in range(len(ranks)):
        last = max(i for i in range(first, len(ranks)) if ranks[i] - ranks[first] < difference)
        if last > first and (not found or last > found[-1][1]):
            found.append((first, last))
    return found


def too_few(scores: np.ndarray) -> str:
    """Why ranks are not tested, in a sentence; empty where they are."""
    sizes = dict(zip(FEWEST, scores.shape, strict=True))
    short = [f"{least} {key} ({sizes[key]})" for key, least in FEWEST.items() if sizes[key] < least]
    if not short:
        return ""
    return f"Ranks are not tested (Friedman, Nemenyi): that takes {' and '.join(short)}."
