"""A contest of methods: the paired test against each rival, and its outcome.

Seeds are compared in pairs, by Student's paired t test over two or more that both methods have. One
seed shows an order and nothing more. Where no run is above what guessing reaches by more than its
samples' error, the comparison says nothing. Where a difference is the same in every seed the sign
test takes the t test's place, which tells nothing of fewer than six. Where a rival is ahead, its p
is adjusted for the number of comparisons (Holm), those that have not run included.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tape_exp.results.statistics import Difference, Value, holm, paired

YES = "yes"
NO = "no"
UNCLEAR = "no difference shown"
FLOOR = "cannot tell (at floor)"
FEW_SEEDS = "cannot tell (few seeds)"  # one difference in all of them
ONE_SEED = "cannot tell (one seed)"
UNTESTED = "not tested"
# of several comparisons the first of these decides
PRIORITY = (NO, UNTESTED, FLOOR, UNCLEAR, FEW_SEEDS, ONE_SEED, YES)
ALPHA = 0.05


@dataclass(frozen=True)
class Test:
    """A paired test of a favourite against a rival."""

    __test__ = False  # pytest does not collect it

    ahead: bool  # whether the favourite is, the margin granted
    p: float | None  # None of a single pair
    is_constant: bool = field(default=False, repr=False)  # one difference in every seed


@dataclass(frozen=True)
class Contest:
    """The statement that ``favourite`` is better than every rival at something."""

    where: str  # at what, ``512 tokens``
    favourite: str
    rivals: Sequence[str]
    measured: Mapping[str, Value]  # our numbers by method, as far as there are some
    published: Mapping[str, Value]  # the paper's
    published_where: str = ""  # at what these are
    higher: bool = True  # whether higher numbers are better
    floor: float | None = None  # what a method reaches that solves nothing, or guesses
    digits: int = 2  # decimals that are written
    margin: float = 0.0  # what it may be behind by, in the unit of the numbers

    @property
    def allowed(self) -> float:
        """What is added to the favourite's numbers before they are compared."""
        return self.margin if self.higher else -self.margin

    def difference(self, rival: str, allowed: float = 0.0) -> Difference | None:
        """Return favourite minus rival over the seeds that both have, with so much added to the
        favourite's numbers; None where they share no seed.
        """
        if self.favourite not in self.measured or rival not in self.measured:
            return None
        return paired(shifted(self.measured[self.favourite], allowed), self.measured[rival])

    def test(self, rival: str) -> Test | None:
        """Make the paired test against a rival; None where the two share no seed."""
        difference = self.difference(rival, self.allowed)
        if difference is None:
            return None
        is_higher = difference.value.number > 0
        return Test(is_higher == self.higher, difference.p, difference.is_constant)

    def outcome(self, rival: str, adjusted: float) -> str:
        """Return the outcome against a rival, one of :data:`PRIORITY`, where the p of their test,
        adjusted for all comparisons, is as given.
        """
        ours = self.measured.get(self.favourite)
        theirs = self.measured.get(rival)
        if ours is None or theirs is None:
            return UNTESTED
        if not ours.runs and not theirs.runs:  # timings, which have rounds in the place of seeds
            return self.outcome_of_intervals(ours, theirs)
        test = self.test(rival)
        if test is None:
            return UNTESTED
        if self.is_at_floor(ours) and self.is_at_floor(theirs):
            return FLOOR
        if test.p is None:  # a single pair
            (seed,) = ours.runs.keys() & theirs.runs.keys()
            return self.outcome_of_intervals(ours.runs[seed], theirs.runs[seed])
        if test.ahead and test.p < ALPHA:
            return YES
        if not test.ahead and adjusted < ALPHA:
            return NO
        return FEW_SEEDS if test.is_constant else UNCLEAR

    def is_at_floor(self, value: Value) -> bool:
        """Say whether no run is above the floor by more than its samples' error."""
        if self.floor is None:
            return False
        for run in value.runs.values():
            lowest = run.number if run.low is None else run.low
            if lowest > self.floor:
                return False
        return True

    def outcome_of_intervals(self, ours: Value, theirs: Value) -> str:
        """Compare single runs, or the rounds of a timing, which alone can decide: by whether their
        intervals overlap.
        """
        ours = shifted(ours, self.allowed)
        if None in (ours.low, ours.high, theirs.low, theirs.high):
            return UNCLEAR if ours.number == theirs.number else ONE_SEED
        if ours.low <= theirs.high and theirs.low <= ours.high:  # type: ignore[operator]
            return UNCLEAR
        if min(ours.n, theirs.n) == 1:
            return ONE_SEED
        is_higher = ours.number > theirs.number
        return YES if is_higher == self.higher else NO


def shifted(value: Value, by: float) -> Value:
    """Shift a value with its ends and runs by the same amount."""
    return replace(
        value,
        number=value.number + by,
        low=None if value.low is None else value.low + by,
        high=None if value.high is None else value.high + by,
        runs={seed: shifted(run, by) for seed, run in value.runs.items()},
    )


@dataclass
class Comparison:
    """A contest against one of its rivals."""

    contest: Contest
    rival: str
    test: Test | None  # None where the two share no seed
    adjusted: float = 1.0  # its p, for all comparisons of the claim
    outcome: str = UNTESTED

    @property
    def tested(self) -> bool:
        """Whether the two share several seeds; one pair, or none, has no p."""
        return self.test is not None and self.test.p is not None

    @property
    def p(self) -> float:
        """Of the paired test; 1 where there is none."""
        if self.test is None or self.test.p is None:
            return 1.0
        return self.test.p

    @property
    def ahead(self) -> bool:
        """Whether the favourite is ahead of the rival."""
        return self.test is not None and self.test.ahead

    @property
    def decisive(self) -> float:
        """The p that is compared with 5 %: the adjusted one where the rival is ahead."""
        return self.p if self.ahead else self.adjusted


def compared(contests: Sequence[Contest]) -> list[Comparison]:
    """List every comparison with its outcome."""
    comparisons = []
    for contest in contests:
        for rival in contest.rivals:
            comparisons.append(Comparison(contest, rival, contest.test(rival)))
    # A comparison that has not run counts as p = 1: the family has the size that it will have when
    # every rival has run, so that a verdict does not weaken as runs come in.
    adjusted_p = holm([comparison.p for comparison in comparisons])
    for comparison, adjusted in zip(comparisons, adjusted_p, strict=True):
        comparison.adjusted = adjusted
        comparison.outcome = comparison.contest.outcome(comparison.rival, adjusted)
    return comparisons
