"""Whether a claim of the paper holds in our records: comparisons, and a verdict per artifact.

A claim says that one method is better than others at something. With two seeds or more it holds
where the 95 % intervals of the means do not overlap and are in the claimed order, and does not hold
where they are in the other order; where they overlap, the records cannot decide. One seed shows an
order and nothing more. Seeds that agree by chance do not hide that a score is of few samples: where
a run has an interval over its samples, the interval over seeds is at least as wide.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tape_exp.paper.values import Value, with_seeds

YES, NO = "yes", "no"
UNCLEAR = "not distinguishable"
ORDERED, REVERSED = "in this order, one seed", "no (one seed)"
UNTESTED = "not tested"
NO_CLAIM = "–"
# of several comparisons the first of these decides
GRAVITY = (NO, REVERSED, UNTESTED, UNCLEAR, ORDERED, YES)


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
        digits: decimals shown.
    """

    where: str
    favourite: str
    rivals: Sequence[str]
    measured: Mapping[str, Value]
    published: Mapping[str, Value]
    published_where: str = ""
    higher: bool = True
    digits: int = 2

    def outcome(self) -> str:
        """One of :data:`GRAVITY`."""
        if self.favourite not in self.measured:
            return UNTESTED
        outcomes = {self._against(rival) for rival in self.rivals}
        return next(outcome for outcome in GRAVITY if outcome in outcomes)

    def _against(self, rival: str) -> str:
        ours, theirs = self.measured[self.favourite], self.measured.get(rival)
        if theirs is None:
            return UNTESTED
        ahead = ours.number > theirs.number if self.higher else ours.number < theirs.number
        if None not in (ours.low, ours.high, theirs.low, theirs.high):
            if not (ours.low > theirs.high or theirs.low > ours.high):  # type: ignore[operator]
                return UNCLEAR
            if min(ours.n, theirs.n) > 1:
                return YES if ahead else NO
        if ours.number == theirs.number:
            return UNCLEAR
        return ORDERED if ahead else REVERSED

    def ours(self) -> str:
        """The favourite's figure and the best deciding rival's: ``tape 25 ± 0.3, fire 34 ± 8``."""
        outcome = self.outcome()
        deciding = [
            name for name in self.rivals if outcome == UNTESTED or self._against(name) == outcome
        ]
        missing = [name for name in (self.favourite, *self.rivals) if name not in self.measured]
        figures = self._figures(self.measured, deciding)
        figures += [f"{' '.join(missing)} not run"] if figures and missing else []
        return _at(self.where, ", ".join(figures))

    def papers(self) -> str:
        """The paper's figure of the favourite and that of the best rival."""
        numbers = {name: Value(value.number) for name, value in self.published.items()}
        figures = self._figures(numbers, self.rivals)
        return _at(self.published_where or self.where, ", ".join(figures))

    def _figures(self, values: Mapping[str, Value], rivals: Sequence[str]) -> list[str]:
        """The favourite and the best of these rivals, each with its value."""
        sign = 1 if self.higher else -1
        known = [name for name in rivals if name in values]
        best = [max(known, key=lambda name: sign * values[name].number)] if known else []
        names = [name for name in (self.favourite, *best) if name in values]
        return [f"{name} {written(values[name], self.digits)}" for name in names]


@dataclass(frozen=True)
class Verdict:
    """What results/README.md says of a claim: figures, whether it holds, and how many seeds."""

    paper: str = ""
    ours: str = ""
    holds: str = NO_CLAIM
    seeds: str = ""


def decide(contests: Sequence[Contest]) -> Verdict:
    """The verdict of several comparisons: all must hold, and one failure refutes the claim.

    Our figures are those of the comparisons that decided it.
    """
    outcomes = [contest.outcome() for contest in contests]
    holds = next((outcome for outcome in GRAVITY if outcome in outcomes), UNTESTED)
    deciding = [
        contest for contest, outcome in zip(contests, outcomes, strict=True) if outcome == holds
    ]
    runs = {
        contest.measured[name].n
        for contest in contests
        for name in (contest.favourite, *contest.rivals)
        if name in contest.measured
    }
    return Verdict(
        paper="; ".join(filter(None, (contest.papers() for contest in contests))),
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
