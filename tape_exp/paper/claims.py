"""Whether a claim of the paper holds in our records: comparisons, and a verdict per artifact.

A claim says that one method is better than others at something. Seeds are compared in pairs, by
Student's paired t test over two or more that both methods have. Seeds that agree by chance do not
hide that a score is of few samples: where runs have intervals over their samples, a bootstrap over
seeds and samples is asked too, and the larger p counts. Most test sets are the same for all seeds,
so that more seeds do not make up for few samples. A claim holds if every comparison does, at
5 % each, which keeps the chance of a wrong "yes" at 5 % (an intersection-union test). It is refuted
by any rival that is ahead, so that there the p values are adjusted for the number of comparisons
(Holm). One seed shows an order and nothing more. Where no method is above what guessing reaches,
the comparison says nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from tape_exp.paper.statistics import Difference, holm, p_of, paired, resampled
from tape_exp.paper.values import Value, with_seeds
from tape_exp.settings.naming import display_name

YES, NO = "yes", "no"
UNCLEAR = "not distinguishable"
FLOOR = "at floor (cannot tell)"
ORDERED, REVERSED = "in this order, one seed", "no (one seed)"
UNTESTED = "not tested"
NO_CLAIM = "–"
# of several comparisons the first of these decides
GRAVITY = (NO, UNTESTED, FLOOR, UNCLEAR, REVERSED, ORDERED, YES)
ALPHA = 0.05


@dataclass(frozen=True)
class Contest:
    """The statement that ``favourite`` is better than every rival at something.

    Args:
        where: at what, ``quality`` or ``512 tokens``; empty where the artifact measures one thing.
        favourite, rivals: names of methods or models.
        measured: our values, of those that have run.
        published: the paper's, as far as it gives numbers.
        published_where: ``where`` in the paper, if it differs.
        higher: whether more is better.
        floor: what a method reaches that solves nothing, or guesses.
        digits: decimals shown.
        fresh: whether each seed is asked samples of its own, and not the same as the others.
        adjusted: p values of the rivals, adjusted for all comparisons of the claim; by default for
            those of this one.
    """

    where: str
    favourite: str
    rivals: Sequence[str]
    measured: Mapping[str, Value]
    published: Mapping[str, Value]
    published_where: str = ""
    higher: bool = True
    floor: float | None = None
    digits: int = 2
    fresh: bool = False
    adjusted: Mapping[str, float] = field(default_factory=dict)

    def difference(self, rival: str) -> Difference | None:
        """Favourite minus rival over the seeds that both have; None where they share none."""
        if not {self.favourite, rival} <= self.measured.keys():
            return None
        ours, theirs = (
            {seed: run.number for seed, run in self.measured[name].runs.items()}
            for name in (self.favourite, rival)
        )
        return paired(ours, theirs)

    @cached_property
    def tests(self) -> dict[str, float]:
        """The p values of the rivals with which it shares two seeds or more, not adjusted.

        Where all differences are equal and no samples are known, nothing tells how far chance
        reaches: p is 1.
        """
        found: dict[str, float] = {}
        for rival in self.rivals:
            difference = self.difference(rival)
            if difference is None or difference.half is None:
                continue
            by_samples = self._p_of_samples(rival)
            known = [p for p in (difference.p, by_samples) if p is not None]
            found[rival] = max(known, default=1.0)
        return found

    def _p_of_samples(self, rival: str) -> float | None:
        """Of a bootstrap over seeds and samples; None where a run has no interval."""
        ours, theirs = (self.measured[name].runs for name in (self.favourite, rival))
        seeds = sorted(ours.keys() & theirs.keys())
        pairs = [[runs[seed] for seed in seeds] for runs in (ours, theirs)]
        if any(run.low is None for runs in pairs for run in runs):
            return None
        mine, others = resampled(pairs, fresh=self.fresh)
        return p_of(mine - others)

    def outcome(self) -> str:
        """One of :data:`GRAVITY`."""
        if self.favourite not in self.measured:
            return UNTESTED
        outcomes = {self._against(rival) for rival in self.rivals}
        return next((outcome for outcome in GRAVITY if outcome in outcomes), UNTESTED)

    def _against(self, rival: str) -> str:
        ours, theirs = self.measured[self.favourite], self.measured.get(rival)
        if theirs is None:
            return UNTESTED
        if not ours.runs and not theirs.runs:
            return self._by_intervals(ours, theirs)
        difference = self.difference(rival)
        if difference is None:
            return UNTESTED
        if self._at_floor(ours, theirs):
            return FLOOR
        if difference.half is None:
            (seed,) = ours.runs.keys() & theirs.runs.keys()
            return self._by_intervals(ours.runs[seed], theirs.runs[seed])
        ahead, tests = (difference.mean > 0) == self.higher, self.tests
        p = tests if ahead else {**holm_of(tests, len(self.rivals)), **self.adjusted}
        if p[rival] >= ALPHA:
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

    def _at_floor(self, ours: Value, theirs: Value) -> bool:
        """Whether no run of the two is above the floor by more than its samples' error."""
        runs = [*ours.runs.values(), *theirs.runs.values()]
        lows = (run.number if run.low is None else run.low for run in runs)
        return self.floor is not None and all(low <= self.floor for low in lows)

    def ours(self) -> str:
        """The favourite's figure and the best deciding rival's: ``TAPE 25 ± 0.3, FIRE 34 ± 8``,
        with their paired difference.
        """
        outcome = self.outcome()
        deciding = [
            name for name in self.rivals if outcome == UNTESTED or self._against(name) == outcome
        ]
        missing = [name for name in (self.favourite, *self.rivals) if name not in self.measured]
        figures = self._figures(self.measured, deciding)
        text = ", ".join(figures) + self._lead(deciding)
        if figures and missing:
            text += f" (not run: {', '.join(map(display_name, missing))})"
        return _at(self.where, text)

    def _lead(self, deciding: Sequence[str]) -> str:
        """`` (paired: +1.0 ± 0.4)`` for the best of the deciding rivals; ``+1.0, one pair`` where
        the verdict is that of one seed, and the figures are means over more.
        """
        best = self._best(self.measured, deciding)
        difference = self.difference(best) if best else None
        if difference is None:
            return ""
        mean = ("+" if difference.mean > 0 else "") + _number(difference.mean, self.digits)
        if difference.half is None:
            seeds = {*self.measured[self.favourite].runs, *self.measured[best].runs}
            return f" (paired: {mean}, one pair)" if len(seeds) > 1 else ""
        if difference.p is None:
            return ""
        return f" (paired: {mean} ± {_number(difference.half, self.digits)})"

    def papers(self) -> str:
        """The paper's figure of the favourite and that of the best rival."""
        numbers = {name: Value(value.number) for name, value in self.published.items()}
        figures = self._figures(numbers, self.rivals)
        return _at(self.published_where or self.where, ", ".join(figures))

    def _figures(self, values: Mapping[str, Value], rivals: Sequence[str]) -> list[str]:
        """The favourite and the best of these rivals, each with its value."""
        names = [name for name in (self.favourite, self._best(values, rivals)) if name in values]
        return [f"{display_name(name)} {written(values[name], self.digits)}" for name in names]

    def _best(self, values: Mapping[str, Value], rivals: Sequence[str]) -> str:
        """The best of these rivals; empty where none has a value."""
        sign = 1 if self.higher else -1
        known = [name for name in rivals if name in values]
        return max(known, key=lambda name: sign * values[name].number) if known else ""


def holm_of(p: Mapping[Any, float], number: int) -> dict[Any, float]:
    """The p values, adjusted for a number of comparisons, of which some have none yet."""
    return dict(zip(p, holm([*p.values(), *[1.0] * (number - len(p))]), strict=False))


@dataclass(frozen=True)
class Verdict:
    """What results/README.md says of a claim: figures, whether it holds, and how many seeds."""

    paper: str = ""
    ours: str = ""
    holds: str = NO_CLAIM
    seeds: str = ""


def decide(contests: Sequence[Contest], planned: int = 0) -> Verdict:
    """The verdict of several comparisons: all must hold, and one failure refutes the claim.

    The p values of all of them are adjusted together, for as many as there will be once every rival
    has run, so that a verdict does not weaken as runs come in. Our figures are those of the
    comparisons that decided it.

    Args:
        planned: how many comparisons the claim has once everything has run, where further contests
            than these are to come; before that none is a yes.
    """
    number = max(planned, sum(len(each.rivals) for each in contests))
    family = {(i, rival): p for i, each in enumerate(contests) for rival, p in each.tests.items()}
    adjusted = holm_of(family, number)
    contests = [
        replace(each, adjusted={rival: p for (k, rival), p in adjusted.items() if k == i})
        for i, each in enumerate(contests)
    ]
    outcomes = [contest.outcome() for contest in contests]
    holds = next((outcome for outcome in GRAVITY if outcome in outcomes), UNTESTED)
    deciding = [
        contest for contest, outcome in zip(contests, outcomes, strict=True) if outcome == holds
    ]
    judged = zip(contests, outcomes, strict=True)
    compared = sum(len(each.rivals) for each, outcome in judged if outcome != UNTESTED)
    if holds in (YES, ORDERED) and compared < planned:
        holds = UNTESTED  # what has not run may refute it
    runs = {
        contest.measured[name].n
        for contest in contests
        for name in (contest.favourite, *contest.rivals)
        if name in contest.measured
    }
    return Verdict(
        paper="; ".join(filter(None, dict.fromkeys(contest.papers() for contest in contests))),
        ours="; ".join(filter(None, (contest.ours() for contest in deciding))),
        holds=holds,
        seeds=" to ".join(str(n) for n in sorted({min(runs), max(runs)})) if runs else "",
    )


def _at(where: str, figures: str) -> str:
    return f"{where}: {figures}" if where and figures else figures


def written(value: Value, digits: int) -> str:
    """``26.32 ± 0.41`` of several runs; ``26.32 [20.10, 41.00]`` if the interval is asymmetric, or
    that of a single run over its samples; else as :func:`~tape_exp.paper.values.over_seeds` does.
    """
    centre = _number(value.number, digits)
    if value.low is None or value.high is None or value.seeds:
        return with_seeds(centre, [_number(number, digits) for number in value.seeds])
    half = (value.high - value.low) / 2
    if value.n > 1 and abs(value.high - half - value.number) < 1e-9 * max(1.0, abs(value.number)):
        return f"{centre} ± {_number(half, digits)}"
    return f"{centre} [{_number(value.low, digits)}, {_number(value.high, digits)}]"


def _number(value: float, digits: int) -> str:
    """With that many decimals; a smaller number by its power of ten."""
    return f"{value:.0e}" if 0 < abs(value) < 0.5 * 10.0**-digits else f"{value:.{digits}f}"
