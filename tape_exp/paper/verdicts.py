"""Whether a claim of the paper holds in our records: comparisons, and a verdict per claim.

A claim says that one method is better than others at something. Seeds are compared in pairs, by
Student's paired t test over two or more that both methods have. A claim holds if every comparison
does, at 5 % each, which keeps the chance of a wrong "yes" at 5 % (an intersection-union test). It
is refuted by any rival that is ahead, so that there the p values are adjusted for the number of
comparisons (Holm), those that have not run included. One seed shows an order and nothing more.
Where no run is above what guessing reaches by more than its samples' error, the comparison says
nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tape_exp.results.statistics import Difference, Value, holm, paired
from tape_exp.results.tables import decimal, span, written
from tape_exp.settings.naming import display_name

YES = "yes"
NO = "no"
UNCLEAR = "no difference shown"
FLOOR = "cannot tell (at floor)"
ONE_SEED = "cannot tell (one seed)"
UNTESTED = "not tested"
NO_CLAIM = "–"
# of several comparisons the first of these decides
PRIORITY = (NO, UNTESTED, FLOOR, UNCLEAR, ONE_SEED, YES)
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


@dataclass
class Contest:
    """The statement that ``favourite`` is better than every rival at something."""

    where: str  # at what, ``512 tokens``
    favourite: str
    rivals: Sequence[str]
    measured: Mapping[str, Value]  # by the label of their row, as far as there are some
    published: Mapping[str, Value]
    published_where: str = ""
    higher: bool = True  # is better
    floor: float | None = None  # what a method reaches that solves nothing, or guesses
    digits: int = 2
    margin: float = 0.0  # what it may be behind by, in the unit of the numbers

    def difference(self, rival: str) -> Difference | None:
        """Favourite minus rival over the seeds that both have; None where they share none."""
        if {self.favourite, rival} <= self.measured.keys():
            return paired(self.measured[self.favourite], self.measured[rival])
        return None

    @property
    def allowed(self) -> float:
        """What is added to the favourite's numbers before they are compared."""
        return self.margin if self.higher else -self.margin

    def test(self, rival: str) -> Test | None:
        """Make the paired test against a rival; None where the two share no seed."""
        if not {self.favourite, rival} <= self.measured.keys():
            return None
        favourite = shifted(self.measured[self.favourite], self.allowed)
        difference = paired(favourite, self.measured[rival])
        if difference is None:
            return None
        return Test((difference.value.number > 0) == self.higher, difference.p)

    def against(self, rival: str, adjusted: float) -> str:
        """Find the outcome, one of :data:`PRIORITY`, where p adjusted for all comparisons is as
        given.
        """
        ours = self.measured.get(self.favourite)
        theirs = self.measured.get(rival)
        if ours is None or theirs is None:
            return UNTESTED
        if not ours.runs and not theirs.runs:
            return self._by_intervals(ours, theirs)
        test = self.test(rival)
        if test is None:
            return UNTESTED
        runs = [*ours.runs.values(), *theirs.runs.values()]
        lows = [run.number if run.low is None else run.low for run in runs]
        if self.floor is not None and all(low <= self.floor for low in lows):
            return FLOOR
        if test.p is None:
            (seed,) = ours.runs.keys() & theirs.runs.keys()
            return self._by_intervals(ours.runs[seed], theirs.runs[seed])
        if test.ahead:
            return YES if test.p < ALPHA else UNCLEAR
        return NO if adjusted < ALPHA else UNCLEAR

    def _by_intervals(self, ours: Value, theirs: Value) -> str:
        """Compare single runs, or the rounds of a timing."""
        ours = shifted(ours, self.allowed)
        ahead = ours.number > theirs.number if self.higher else ours.number < theirs.number
        if None not in (ours.low, ours.high, theirs.low, theirs.high):
            if not (ours.low > theirs.high or theirs.low > ours.high):  # type: ignore[operator]
                return UNCLEAR
            if min(ours.n, theirs.n) > 1:
                return YES if ahead else NO
        return UNCLEAR if ours.number == theirs.number else ONE_SEED

    def numbers(self, rivals: Sequence[str]) -> str:
        """Write the favourite's figure and the best of these rivals': ``TAPE 25 ± 0.3, FIRE 34 ± 8
        (paired: -9 ± 8, p = 0.04)``.
        """
        text = self.pair(self.measured, rivals)
        best = self._best(self.measured, rivals)
        difference = self.difference(best)
        if difference is not None:
            value = difference.value
            sign = "+" if value.number > 0 else ""
            seeds = {*self.measured[self.favourite].runs, *self.measured[best].runs}
            if value.high is not None:
                text += f" (paired: {written(value, self.digits, sign)}, p = {difference.p:.2g})"
            elif value.n == 1 and len(seeds) > 1:
                text += f" (paired: {decimal(value.number, self.digits, sign)}, one pair)"
        missing = [name for name in (self.favourite, *self.rivals) if name not in self.measured]
        if text and missing:
            text += f" (not run: {', '.join(map(display_name, missing))})"
        return f"{self.where}: {text}" if self.where and text else text

    def papers(self) -> str:
        """Write the paper's figure of the favourite and that of the best rival."""
        text = self.pair(self.published, self.rivals, plain=True)
        return f"{self.published_where}: {text}" if self.published_where and text else text

    def pair(self, values: Mapping[str, Value], rivals: Sequence[str], plain: bool = False) -> str:
        """Pair the favourite with the best of these rivals, each with its value, or ``plain``
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
        sign = 1 if self.higher else -1
        numbers = {name: sign * values[name].number for name in rivals if name in values}
        return max(numbers, key=numbers.__getitem__) if numbers else ""


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
    def p(self) -> float | None:
        """Of the paired test; None where one pair, or none, tells nothing."""
        return None if self.test is None else self.test.p

    @property
    def ahead(self) -> bool:
        """Whether the favourite is ahead of the rival."""
        return self.test is not None and self.test.ahead

    @property
    def decisive(self) -> float:
        """The p that is compared with 5 %: the adjusted one where the rival is ahead."""
        if self.p is None:
            return 1.0
        return self.p if self.ahead else self.adjusted


def compared(contests: Sequence[Contest]) -> list[Comparison]:
    """List every comparison with its outcome."""
    comparisons = []
    for contest in contests:
        for rival in contest.rivals:
            comparisons.append(Comparison(contest, rival, contest.test(rival)))
    # A comparison that has not run counts as p = 1: the family has the size that it will have when
    # every rival has run, so that a verdict does not weaken as runs come in.
    p_values = [1.0 if comparison.p is None else comparison.p for comparison in comparisons]
    for comparison, adjusted in zip(comparisons, holm(p_values), strict=True):
        comparison.adjusted = adjusted
        comparison.outcome = comparison.contest.against(comparison.rival, adjusted)
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
    outcomes = {comparison.outcome for comparison in comparisons}
    for outcome in PRIORITY:
        if outcome in outcomes:
            holds = outcome
            break
    decisive = [comparison for comparison in comparisons if comparison.outcome == holds]
    ours = numbers_of(contests, decisive)
    if ours and note:
        ours = f"{ours} ({note})"
    papers = dict.fromkeys(contest.papers() for contest in contests)
    short = shortened(decisive)
    return Verdict(
        paper="; ".join(filter(None, papers)),
        ours=ours,
        holds=holds,
        extent=extent(comparisons, decisive) if holds == NO else "",
        seeds=seeds_of(contests),
        short=short.ours,
        short_paper=short.paper,
    )


def numbers_of(contests: Sequence[Contest], decisive: Sequence[Comparison]) -> str:
    """Write our figures of each contest, with the best of those rivals that decided."""
    texts = []
    for contest in contests:
        rivals = [comparison.rival for comparison in decisive if comparison.contest is contest]
        if rivals:
            texts.append(contest.numbers(rivals))
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
    tested = [comparison for comparison in decisive if comparison.p is not None] or decisive
    behind = [comparison for comparison in tested if not comparison.ahead]
    if behind:
        chosen = min(behind, key=lambda one: 1.0 if one.p is None else one.p)
    else:
        chosen = max(tested, key=lambda one: one.p or 0.0)
    contest = chosen.contest
    ours = contest.pair(contest.measured, [chosen.rival], plain=True)
    if ours and contest.where:
        ours = f"{contest.where}: {ours}"
    if chosen.p is not None:
        ours += f", p = {chosen.decisive:.2g}"
    papers_rivals = [chosen.rival] if chosen.rival in contest.published else contest.rivals
    return Short(ours, contest.pair(contest.published, papers_rivals, plain=True))
