"""Whether a claim of the paper holds in our records: comparisons, and a verdict per claim.

A claim says that one method is better than others at something. Seeds are compared in pairs, by
Student's paired t test over two or more that both methods have. A claim holds if every comparison
does, at 5 % each, which keeps the chance of a wrong "yes" at 5 % (an intersection-union test). It
is refuted by any rival that is ahead, so that there the p values are adjusted for the number of
comparisons (Holm), those that have not run included. One seed shows an order and nothing more.
Where no run is above what guessing reaches by more than its samples' error, the comparison says
nothing. Where a difference is the same in every seed the sign test takes the t test's place, which
tells nothing of fewer than six.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tape_exp.results.statistics import Difference, Value, holm, paired
from tape_exp.results.tables import decimal, span, written
from tape_exp.settings.naming import display_name

YES = "yes"
NO = "no"
UNCLEAR = "no difference shown"
FLOOR = "cannot tell (at floor)"
FEW_SEEDS = "cannot tell (few seeds)"  # one difference in all of them
ONE_SEED = "cannot tell (one seed)"
UNTESTED = "not tested"
NO_CLAIM = "–"
# of several comparisons the first of these decides
PRIORITY = (NO, UNTESTED, FLOOR, UNCLEAR, FEW_SEEDS, ONE_SEED, YES)
ALPHA = 0.05


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
            return self._outcome_of_intervals(ours, theirs)
        test = self.test(rival)
        if test is None:
            return UNTESTED
        if self._at_floor(ours) and self._at_floor(theirs):
            return FLOOR
        if test.p is None:  # a single pair
            (seed,) = ours.runs.keys() & theirs.runs.keys()
            return self._outcome_of_intervals(ours.runs[seed], theirs.runs[seed])
        if test.ahead and test.p < ALPHA:
            return YES
        if not test.ahead and adjusted < ALPHA:
            return NO
        return FEW_SEEDS if test.is_constant else UNCLEAR

    def _at_floor(self, value: Value) -> bool:
        """Say whether no run is above the floor by more than its samples' error."""
        if self.floor is None:
            return False
        for run in value.runs.values():
            lowest = run.number if run.low is None else run.low
            if lowest > self.floor:
                return False
        return True

    def _outcome_of_intervals(self, ours: Value, theirs: Value) -> str:
        """Compare single runs, or the rounds of a timing, which alone can decide: by whether their
        intervals overlap.
        """
        ours = shifted(ours, self.allowed)
        no_interval = None in (ours.low, ours.high, theirs.low, theirs.high)
        if not no_interval:
            if ours.low <= theirs.high and theirs.low <= ours.high:  # type: ignore[operator]
                return UNCLEAR
            if min(ours.n, theirs.n) > 1:
                is_higher = ours.number > theirs.number
                return YES if is_higher == self.higher else NO
        return UNCLEAR if ours.number == theirs.number else ONE_SEED

    def our_figures(self, rivals: Sequence[str]) -> str:
        """Write the favourite's figure and the best of these rivals': ``TAPE 25 ± 0.3, FIRE 34 ± 8
        (paired: -9 ± 8, p = 0.04)``.
        """
        text = self.figures(self.measured, rivals)
        if not text:
            return ""
        text += self._paired_figure(self._best(self.measured, rivals))
        missing = []
        for name in (self.favourite, *self.rivals):
            if name not in self.measured:
                missing.append(display_name(name))
        if missing:
            text += f" (not run: {', '.join(missing)})"
        return f"{self.where}: {text}" if self.where else text

    def _paired_figure(self, rival: str) -> str:
        """Write the difference from a rival in brackets; empty where there is none, or where it is
        that of the only seed.
        """
        difference = self.difference(rival)
        if difference is None:
            return ""
        value = difference.value
        sign = "+" if value.number > 0 else ""
        if value.high is not None:
            return f" (paired: {written(value, self.digits, sign)}, p = {difference.p:.2g})"
        if difference.is_constant:
            number = decimal(value.number, self.digits, sign)
            return f" (paired: {number} in each of {value.n} seeds, p = {difference.p:.2g})"
        seeds = {*self.measured[self.favourite].runs, *self.measured[rival].runs}
        if value.n == 1 and len(seeds) > 1:
            return f" (paired: {decimal(value.number, self.digits, sign)}, one pair)"
        return ""

    def papers_figures(self) -> str:
        """Write the paper's figure of the favourite and that of the best rival."""
        text = self.figures(self.published, self.rivals, plain=True)
        return f"{self.published_where}: {text}" if self.published_where and text else text

    def figures(
        self, values: Mapping[str, Value], rivals: Sequence[str], plain: bool = False
    ) -> str:
        """Write the favourite and the best of these rivals, each with its value, or ``plain``
        number.
        """
        texts = []
        for name in (self.favourite, self._best(values, rivals)):
            if name in values:
                value = Value(values[name].number) if plain else values[name]
                texts.append(f"{display_name(name)} {written(value, self.digits)}")
        return ", ".join(texts)

    def _best(self, values: Mapping[str, Value], rivals: Sequence[str]) -> str:
        """Find the best of these rivals; empty where none has a value."""
        known = [name for name in rivals if name in values]
        if not known:
            return ""
        best = max if self.higher else min
        return best(known, key=lambda name: values[name].number)


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


def decide(contests: Sequence[Contest], note: str = "") -> Verdict:
    """Decide on several comparisons: all must hold, and one failure refutes the claim.

    Our figures are those of the comparisons that decided, and the note follows them in brackets.

    Example: TAPE is said to be better than RoPE and FIRE, and each has run with seeds 0 and 1.

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
    holds = UNTESTED
    if comparisons:
        holds = min((comparison.outcome for comparison in comparisons), key=PRIORITY.index)
    decisive = [comparison for comparison in comparisons if comparison.outcome == holds]
    ours = our_figures(contests, decisive)
    if ours and note:
        ours = f"{ours} ({note})"
    papers = []
    for contest in contests:
        text = contest.papers_figures()
        if text and text not in papers:
            papers.append(text)
    short = shortened(decisive)
    return Verdict(
        paper="; ".join(papers),
        ours=ours,
        holds=holds,
        extent=extent(comparisons, decisive) if holds == NO else "",
        seeds=seeds_of(contests),
        short=short.ours,
        short_paper=short.paper,
    )


def our_figures(contests: Sequence[Contest], decisive: Sequence[Comparison]) -> str:
    """Write our figures of each contest, with the best of those rivals that decided."""
    texts = []
    for contest in contests:
        rivals = [comparison.rival for comparison in decisive if comparison.contest is contest]
        if rivals:
            texts.append(contest.our_figures(rivals))
    return "; ".join(filter(None, texts))


def seeds_of(contests: Sequence[Contest]) -> str:
    """Say how many seeds the methods have that are compared, ``2 to 3``; empty without any."""
    counts = set()
    for contest in contests:
        for name in (contest.favourite, *contest.rivals):
            if name in contest.measured:
                counts.add(contest.measured[name].n)
    return span(str(min(counts)), str(max(counts))) if counts else ""


def extent(comparisons: Sequence[Comparison], decisive: Sequence[Comparison]) -> str:
    """Say which comparisons decide, where not all do: the one place of several, or how many."""
    if len(decisive) == len(comparisons):
        return ""
    places = {comparison.contest.where for comparison in comparisons}
    deciding_places = {comparison.contest.where for comparison in decisive}
    if len(deciding_places) == 1 < len(places):
        return deciding_places.pop()
    return f"{len(decisive)} of {len(comparisons)} comparisons"


@dataclass(frozen=True)
class Short:
    """The figures of one comparison, ours and the paper's, for the overview."""

    ours: str = ""
    paper: str = ""


def shortened(decisive: Sequence[Comparison]) -> Short:
    """Write the figures of one of the comparisons that decided: of the rival that is ahead with
    the lowest p, or where none is, of the lead with the highest.
    """
    if not decisive:
        return Short()
    tested = [comparison for comparison in decisive if comparison.tested]
    candidates = tested or decisive
    behind = [comparison for comparison in candidates if not comparison.ahead]
    if behind:
        chosen = min(behind, key=lambda comparison: comparison.p)
    else:
        chosen = max(candidates, key=lambda comparison: comparison.p)
    contest = chosen.contest
    ours = contest.figures(contest.measured, [chosen.rival], plain=True)
    if ours and contest.where:
        ours = f"{contest.where}: {ours}"
    if chosen.tested:
        ours += f", p = {chosen.decisive:.2g}"
    papers_rivals = [chosen.rival] if chosen.rival in contest.published else contest.rivals
    return Short(ours, contest.figures(contest.published, papers_rivals, plain=True))
