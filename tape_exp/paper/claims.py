"""Whether a claim of the paper holds in our records: comparisons, and a verdict per artifact.

A claim says that one method is better than others at something. Seeds are compared in pairs, by
Student's paired t test over two or more that both methods have. A claim holds if every comparison
does, at 5 % each, which keeps the chance of a wrong "yes" at 5 % (an intersection-union test). It
is refuted by any rival that is ahead, so that there the p values are adjusted for the number of
comparisons (Holm), those that have not run included. One seed shows an order and nothing more.
Where no run is above what guessing reaches by more than its samples' error, the comparison says
nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tape_exp.results.statistics import Difference, Value, holm, paired
from tape_exp.results.tables import decimal, written
from tape_exp.settings.naming import display_name

YES, NO = "yes", "no"
UNCLEAR = "not distinguishable"
FLOOR = "at floor (cannot tell)"
ORDERED, REVERSED = "in this order, one seed", "no (one seed)"
UNTESTED = "not tested"
NO_CLAIM = "–"
# of several comparisons the first of these decides
PRIORITY = (NO, UNTESTED, FLOOR, UNCLEAR, REVERSED, ORDERED, YES)
ALPHA = 0.05


@dataclass(frozen=True)
class Verdict:
    """What the overview says of a claim."""

    paper: str = ""  # its figures
    ours: str = ""
    holds: str = NO_CLAIM
    seeds: str = ""  # how many
    short: str = ""  # our figures of the first comparison that decided
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

    def difference(self, rival: str) -> Difference | None:
        """Favourite minus rival over the seeds that both have; None where they share none."""
        if {self.favourite, rival} <= self.measured.keys():
            return paired(self.measured[self.favourite], self.measured[rival])
        return None

    def p_values(self) -> dict[str, float]:
        """Of the rivals with which it shares two seeds or more, not adjusted."""
        differences = {rival: self.difference(rival) for rival in self.rivals}
        return {rival: d.p for rival, d in differences.items() if d and d.p is not None}

    def outcomes(self, adjusted: Mapping[str, float]) -> dict[str, str]:
        """Rival -> one of :data:`PRIORITY`, by p values adjusted for all comparisons."""
        return {rival: self._against(rival, adjusted.get(rival, 1.0)) for rival in self.rivals}

    def _against(self, rival: str, adjusted: float) -> str:
        ours, theirs = self.measured.get(self.favourite), self.measured.get(rival)
        if ours is None or theirs is None:
            return UNTESTED
        if not ours.runs and not theirs.runs:
            return self._by_intervals(ours, theirs)
        difference = self.difference(rival)
        if difference is None:
            return UNTESTED
        runs = [*ours.runs.values(), *theirs.runs.values()]
        lows = [run.number if run.low is None else run.low for run in runs]
        if self.floor is not None and all(low <= self.floor for low in lows):
            return FLOOR
        if difference.p is None:
            (seed,) = ours.runs.keys() & theirs.runs.keys()
            return self._by_intervals(ours.runs[seed], theirs.runs[seed])
        ahead = (difference.value.number > 0) == self.higher
        if (difference.p if ahead else adjusted) >= ALPHA:
            return UNCLEAR
        return YES if ahead else NO

    def _by_intervals(self, ours: Value, theirs: Value) -> str:
        """Of single runs, or of the rounds of a timing."""
        ahead = ours.number > theirs.number if self.higher else ours.number < theirs.number
        if None not in (ours.low, ours.high, theirs.low, theirs.high):
            if not (ours.low > theirs.high or theirs.low > ours.high):  # type: ignore[operator]
                return UNCLEAR
            if min(ours.n, theirs.n) > 1:
                return YES if ahead else NO
        if ours.number == theirs.number:
            return UNCLEAR
        return ORDERED if ahead else REVERSED

    def numbers(self, rivals: Sequence[str]) -> str:
        """The favourite's figure and the best of these rivals': ``TAPE 25 ± 0.3, FIRE 34 ± 8
        (paired: -9 ± 8)``.
        """
        text = self.pair(self.measured, rivals)
        best = self._best(self.measured, rivals)
        if best and (difference := self.difference(best)):
            value, sign = difference.value, "+" if difference.value.number > 0 else ""
            seeds = {*self.measured[self.favourite].runs, *self.measured[best].runs}
            if value.high is not None:
                text += f" (paired: {written(value, self.digits, sign)})"
            elif value.n == 1 and len(seeds) > 1:
                text += f" (paired: {decimal(value.number, self.digits, sign)}, one pair)"
        missing = [name for name in (self.favourite, *self.rivals) if name not in self.measured]
        if text and missing:
            text += f" (not run: {', '.join(map(display_name, missing))})"
        return f"{self.where}: {text}" if self.where and text else text

    def papers(self) -> str:
        """The paper's figure of the favourite and that of the best rival."""
        text = self.pair({n: Value(v.number) for n, v in self.published.items()}, self.rivals)
        return f"{self.published_where}: {text}" if self.published_where and text else text

    def pair(self, values: Mapping[str, Value], rivals: Sequence[str]) -> str:
        """The favourite and the best of these rivals, each with its value."""
        names = [name for name in (self.favourite, self._best(values, rivals)) if name in values]
        figures = [f"{display_name(name)} {written(values[name], self.digits)}" for name in names]
        return ", ".join(figures)

    def _best(self, values: Mapping[str, Value], rivals: Sequence[str]) -> str:
        """The best of these rivals; empty where none has a value."""
        sign = 1 if self.higher else -1
        known = [name for name in rivals if name in values]
        return max(known, key=lambda name: sign * values[name].number) if known else ""


def decide(contests: Sequence[Contest], note: str = "") -> Verdict:
    """The verdict of several comparisons: all must hold, and one failure refutes the claim.

    The p values of all of them are adjusted together, for as many as there will be once every rival
    has run, so that a verdict does not weaken as runs come in. Our figures are those of the
    comparisons that decided, and the note follows them in brackets.
    """
    tests = {(i, name): p for i, c in enumerate(contests) for name, p in c.p_values().items()}
    planned = sum(len(contest.rivals) for contest in contests)
    adjusted = holm([*tests.values(), *[1.0] * (planned - len(tests))])
    p = dict(zip(tests, adjusted, strict=False))
    outcomes = [
        contest.outcomes({name: p[i, name] for k, name in tests if k == i})
        for i, contest in enumerate(contests)
    ]
    every = {outcome for each in outcomes for outcome in each.values()}
    holds = next((outcome for outcome in PRIORITY if outcome in every), UNTESTED)
    ours, short = [], ""
    for contest, each in zip(contests, outcomes, strict=True):
        if deciding := [name for name, outcome in each.items() if outcome == holds]:
            ours.append(contest.numbers(deciding))
            numbers = {name: Value(value.number) for name, value in contest.measured.items()}
            short = short or contest.pair(numbers, deciding)
    text = "; ".join(filter(None, ours))
    known = [c.measured.get(name) for c in contests for name in (c.favourite, *c.rivals)]
    runs = sorted({value.n for value in known if value})
    return Verdict(
        paper="; ".join(filter(None, dict.fromkeys(contest.papers() for contest in contests))),
        ours=f"{text} ({note})" if text and note else text,
        holds=holds,
        seeds=" to ".join(map(str, dict.fromkeys([runs[0], runs[-1]]))) if runs else "",
        short=short,
    )
