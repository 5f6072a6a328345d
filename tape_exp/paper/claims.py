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
from tape_exp.results.tables import decimal, written
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

    def test(self, rival: str) -> tuple[bool, float | None] | None:
        """Whether it is ahead, the margin granted, and the p of that; None without a pair."""
        if not {self.favourite, rival} <= self.measured.keys():
            return None
        found = paired(shifted(self.measured[self.favourite], self.allowed), self.measured[rival])
        return ((found.value.number > 0) == self.higher, found.p) if found else None

    def against(self, rival: str, adjusted: float) -> str:
        """One of :data:`PRIORITY`, where p adjusted for all comparisons is as given."""
        ours = self.measured.get(self.favourite)
        theirs = self.measured.get(rival)
        if ours is None or theirs is None:
            return UNTESTED
        if not ours.runs and not theirs.runs:
            return self._by_intervals(ours, theirs)
        test = self.test(rival)
        if test is None:
            return UNTESTED
        ahead, p = test
        runs = [*ours.runs.values(), *theirs.runs.values()]
        lows = [run.number if run.low is None else run.low for run in runs]
        if self.floor is not None and all(low <= self.floor for low in lows):
            return FLOOR
        if p is None:
            (seed,) = ours.runs.keys() & theirs.runs.keys()
            return self._by_intervals(ours.runs[seed], theirs.runs[seed])
        if (p if ahead else adjusted) >= ALPHA:
            return UNCLEAR
        return YES if ahead else NO

    def _by_intervals(self, ours: Value, theirs: Value) -> str:
        """Of single runs, or of the rounds of a timing."""
        ours = shifted(ours, self.allowed)
        ahead = ours.number > theirs.number if self.higher else ours.number < theirs.number
        if None not in (ours.low, ours.high, theirs.low, theirs.high):
            if not (ours.low > theirs.high or theirs.low > ours.high):  # type: ignore[operator]
                return UNCLEAR
            if min(ours.n, theirs.n) > 1:
                return YES if ahead else NO
        return UNCLEAR if ours.number == theirs.number else ONE_SEED

    def numbers(self, rivals: Sequence[str]) -> str:
        """The favourite's figure and the best of these rivals': ``TAPE 25 ± 0.3, FIRE 34 ± 8
        (paired: -9 ± 8, p = 0.04)``.
        """
        text = self.pair(self.measured, rivals)
        best = self._best(self.measured, rivals)
        if best and (difference := self.difference(best)):
            value = difference.value
            sign = "+" if difference.value.number > 0 else ""
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
        """The paper's figure of the favourite and that of the best rival."""
        text = self.pair(self.published, self.rivals, plain=True)
        return f"{self.published_where}: {text}" if self.published_where and text else text

    def pair(self, values: Mapping[str, Value], rivals: Sequence[str], plain: bool = False) -> str:
        """The favourite and the best of these rivals, each with its value, or ``plain`` number."""
        names = [name for name in (self.favourite, self._best(values, rivals)) if name in values]
        shown = {name: Value(values[name].number) if plain else values[name] for name in names}
        return ", ".join(f"{display_name(n)} {written(v, self.digits)}" for n, v in shown.items())

    def _best(self, values: Mapping[str, Value], rivals: Sequence[str]) -> str:
        """The best of these rivals; empty where none has a value."""
        sign = 1 if self.higher else -1
        known = [name for name in rivals if name in values]
        return max(known, key=lambda name: sign * values[name].number) if known else ""


def shifted(value: Value, by: float) -> Value:
    """A value with its ends and runs, all changed by the same amount."""
    low, high = (None if end is None else end + by for end in (value.low, value.high))
    runs = {seed: shifted(run, by) for seed, run in value.runs.items()}
    return replace(value, number=value.number + by, low=low, high=high, runs=runs)


@dataclass
class Comparison:
    """A contest against one of its rivals."""

    contest: Contest
    rival: str
    ahead: bool = False  # of the rival
    p: float | None = None  # of the paired test
    adjusted: float = 1.0  # for all comparisons
    outcome: str = UNTESTED

    @property
    def decisive(self) -> float:
        """The p that is compared with 5 %: the adjusted one where the rival is ahead."""
        return 1.0 if self.p is None else self.p if self.ahead else self.adjusted


def compared(contests: Sequence[Contest]) -> list[Comparison]:
    """Every comparison with its outcome.

    The p values of all of them are adjusted together, for as many as there will be once every rival
    has run, so that a verdict does not weaken as runs come in.
    """
    found = [Comparison(contest, rival) for contest in contests for rival in contest.rivals]
    tests = [one.contest.test(one.rival) or (False, None) for one in found]
    every = holm([1.0 if p is None else p for _, p in tests])
    for one, (ahead, p), adjusted in zip(found, tests, every, strict=True):
        one.ahead = ahead
        one.p = p
        one.adjusted = adjusted
        one.outcome = one.contest.against(one.rival, adjusted)
    return found


def decide(contests: Sequence[Contest], note: str = "") -> Verdict:
    """The verdict of several comparisons: all must hold, and one failure refutes the claim.

    Our figures are those of the comparisons that decided, and the note follows them in brackets.
    """
    comparisons = compared(contests)
    every = {one.outcome for one in comparisons}
    holds = next((outcome for outcome in PRIORITY if outcome in every), UNTESTED)
    decisive = [one for one in comparisons if one.outcome == holds]
    ours = []
    for contest in contests:
        if rivals := [one.rival for one in decisive if one.contest is contest]:
            ours.append(contest.numbers(rivals))
    text = "; ".join(filter(None, ours))
    known = [c.measured.get(name) for c in contests for name in (c.favourite, *c.rivals)]
    runs = sorted({value.n for value in known if value})
    found = Verdict(
        paper="; ".join(filter(None, dict.fromkeys(contest.papers() for contest in contests))),
        ours=f"{text} ({note})" if text and note else text,
        holds=holds,
        extent=extent(comparisons, decisive) if holds == NO else "",
        seeds=" to ".join(map(str, dict.fromkeys([runs[0], runs[-1]]))) if runs else "",
    )
    return replace(found, **shortened(decisive))


def extent(comparisons: Sequence[Comparison], decisive: Sequence[Comparison]) -> str:
    """Which comparisons decide, where not all do: the one place of several, or how many."""
    if len(decisive) == len(comparisons):
        return ""
    places = {one.contest.where for one in decisive}
    if len(places) == 1 < len({one.contest.where for one in comparisons}):
        return places.pop()
    return f"{len(decisive)} of {len(comparisons)} comparisons"


def shortened(decisive: Sequence[Comparison]) -> dict[str, str]:
    """The figures of one of the comparisons that decided, ours and the paper's: of the rival that
    is ahead with the lowest p, or where none is, of the lead with the highest.
    """
    if not decisive:
        return {}
    tested = [one for one in decisive if one.p is not None] or decisive
    behind = [one for one in tested if not one.ahead]
    if behind:
        one = min(behind, key=lambda one: 1.0 if one.p is None else one.p)
    else:
        one = max(tested, key=lambda one: one.p or 0.0)
    ours = one.contest.measured
    paper = one.contest.published
    rivals = [one.rival]
    told = rivals if one.rival in paper else one.contest.rivals
    short = one.contest.pair(ours, rivals, plain=True)
    if short and one.contest.where:
        short = f"{one.contest.where}: {short}"
    return {
        "short": f"{short}, p = {one.decisive:.2g}" if one.p is not None else short,
        "short_paper": one.contest.pair(paper, told, plain=True),
    }
