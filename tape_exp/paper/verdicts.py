"""Whether a claim of the paper holds in our records: one verdict on all its comparisons.

A claim says that one method is better than others at something. It holds if every comparison does,
at 5 % each, which keeps the chance of a wrong "yes" at 5 % (an intersection-union test). It is
refuted by any rival that is ahead.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tape_exp.paper import wording
from tape_exp.paper.outcomes import NO, PRIORITY, UNTESTED, Comparison, Contest, compared

NO_CLAIM = "–"  # what a table says of an artifact without one


@dataclass(frozen=True)
class Verdict:
    """What the overview says of a claim."""

    paper: str = ""  # its figures
    ours: str = ""
    holds: str = NO_CLAIM
    extent: str = ""  # of a "no": which of several comparisons refute
    seeds: str = ""  # how many
    short: str = ""  # our figures of the comparison that decides, with its p
    short_paper: str = ""  # the paper's of that comparison
    size: str = ""  # of the models


def decide(contests: Sequence[Contest], note: str = "") -> Verdict:
    """Decide on several comparisons: all must hold, and one failure refutes the claim.

    Our numbers are those of the comparisons that decided, and the note follows them in brackets.

    Example: TAPE is said to be better than RoPE and FIRE, and each has run with seeds 0 and 1.

    >>> from tape_exp.results.statistics import Value, over_seeds
    >>> def scores(*numbers):
    ...     return over_seeds({seed: Value(number) for seed, number in enumerate(numbers)})
    >>> measured = {"tape": scores(5.0, 5.2), "rope": scores(1.0, 1.1), "fire": scores(9.0, 9.1)}
    >>> contest = Contest("512 tokens", "tape", ["rope", "fire"], measured, published={})
    >>> contest.test("rope")  # ahead by 4.00 and 4.10
    Test(ahead=True, p=0.00785...)
    >>> contest.test("fire")  # behind by 4.00 and 3.90
    Test(ahead=False, p=0.00805...)
    >>> [comparison.adjusted for comparison in compared([contest])]  # each times two
    [0.0157..., 0.0157...]
    >>> [comparison.outcome for comparison in compared([contest])]
    ['yes', 'no']
    >>> verdict = decide([contest])  # "no" comes first in PRIORITY
    >>> verdict.holds, verdict.extent
    ('no', '1 of 2 comparisons')
    """
    comparisons = compared(contests)
    holds = worst(comparisons)
    decisive = [comparison for comparison in comparisons if comparison.outcome == holds]
    ours = wording.our_numbers(contests, decisive)
    if ours and note:
        ours = f"{ours} ({note})"
    short = wording.short_of(decisive)
    return Verdict(
        paper=wording.papers_numbers(contests),
        ours=ours,
        holds=holds,
        extent=wording.extent(comparisons, decisive) if holds == NO else "",
        seeds=wording.seeds_of(contests),
        short=short.ours,
        short_paper=short.paper,
    )


def worst(comparisons: Sequence[Comparison]) -> str:
    """Return the outcome that decides: the one that comes first in :data:`PRIORITY`."""
    if not comparisons:
        return UNTESTED
    outcomes = [comparison.outcome for comparison in comparisons]
    return min(outcomes, key=PRIORITY.index)
