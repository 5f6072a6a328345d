"""Whether what the paper claims holds in our records: comparisons of measured values, and one
verdict an artifact.

A claim says that one method is better than others at something. With two seeds or more it holds
where the 95 % intervals of the means lie apart in the claimed order, and does not where they lie
apart in the other; where they overlap, the records do not tell. One seed shows an order and nothing
more.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tape_exp.paper import tables

YES, NO = "yes", "no"
UNCLEAR = "not distinguishable"
ORDERED, REVERSED = "in this order, one seed", "no (one seed)"
UNTESTED = "not tested"
NO_CLAIM = "–"
# of several comparisons the first of these decides
GRAVITY = (NO, REVERSED, UNTESTED, UNCLEAR, ORDERED, YES)


@dataclass(frozen=True)
class Measured:
    """A mean with the ends of its 95 % interval, None where a single seed leaves no interval."""

    mean: float
    low: float | None
    high: float | None
    seeds: int

    @classmethod
    def over_seeds(cls, values: Sequence[float]) -> "Measured":
        """Mean and interval over seeds."""
        mean, half = tables.interval(values)
        return cls(
            mean,
            None if half is None else mean - half,
            None if half is None else mean + half,
            len(values),
        )

    @classmethod
    def of_runs(cls, found: Sequence[tuple[float, float | None, float | None]]) -> "Measured":
        """Over seeds; a single run's own interval, over its samples, where it is alone. Each:
        value, low, high.
        """
        if len(found) > 1:
            return cls.over_seeds([value for value, _, _ in found])
        return cls(*found[0], seeds=1)

    def text(self, digits: int) -> str:
        """``26.32 ± 0.41``, ``26.32 [20.10, 41.00]`` where the interval is not symmetric, or the
        mean alone.
        """
        centre = _number(self.mean, digits)
        if self.low is None or self.high is None:
            return centre
        if abs(self.high + self.low - 2 * self.mean) < 1e-9 * max(1.0, abs(self.mean)):
            return f"{centre} ± {_number(self.high - self.mean, digits)}"
        return f"{centre} [{_number(self.low, digits)}, {_number(self.high, digits)}]"


def over_seeds(records: Mapping[str, Sequence[dict[str, Any]]], metric: str) -> dict[str, Measured]:
    """A metric of each model that has run and has it."""
    found = {
        name: [r["metrics"][metric] for r in mine if metric in r["metrics"]]
        for name, mine in records.items()
    }
    return {name: Measured.over_seeds(values) for name, values in found.items() if values}


@dataclass(frozen=True)
class Contest:
    """The statement that ``favourite`` is better than every rival at something.

    Args:
        where: at what, ``quality`` or ``512 tokens``; empty where the artifact measures one thing.
        favourite, rivals: names of methods or models.
        measured: ours, of those that have run.
        published: the paper's, as far as it gives numbers.
        published_where: ``where`` in the paper, if it differs.
        higher: whether more is better.
        digits: decimals shown.
    """

    where: str
    favourite: str
    rivals: Sequence[str]
    measured: dict[str, Measured]
    published: dict[str, float] = field(default_factory=dict)
    published_where: str = ""
    higher: bool = True
    digits: int = 2

    def outcome(self) -> str:
        """One of :data:`GRAVITY`."""
        if self.favourite not in self.measured:
            return UNTESTED
        told = {self._against(rival) for rival in self.rivals}
        return next(outcome for outcome in GRAVITY if outcome in told)

    def _against(self, rival: str) -> str:
        ours, theirs = self.measured[self.favourite], self.measured.get(rival)
        if theirs is None:
            return UNTESTED
        ahead = ours.mean > theirs.mean if self.higher else ours.mean < theirs.mean
        if None not in (ours.low, ours.high, theirs.low, theirs.high):
            if not (ours.low > theirs.high or theirs.low > ours.high):  # type: ignore[operator]
                return UNCLEAR
            if min(ours.seeds, theirs.seeds) > 1:
                return YES if ahead else NO
        if ours.mean == theirs.mean:
            return UNCLEAR
        return ORDERED if ahead else REVERSED

    def ours(self) -> str:
        """The favourite's figure and that of the best rival of those that decide, ``tape 25.04 ±
        0.25, fire 33.89 ± 7.81``.
        """
        outcome = self.outcome()
        deciding = [
            name for name in self.rivals if outcome == UNTESTED or self._against(name) == outcome
        ]
        missing = [name for name in (self.favourite, *self.rivals) if name not in self.measured]
        shown = self._shown({name: value.mean for name, value in self.measured.items()}, deciding)
        told = [f"{name} {self.measured[name].text(self.digits)}" for name in shown]
        told += [f"{' '.join(missing)} not run"] if told and missing else []
        return _at(self.where, ", ".join(told))

    def papers(self) -> str:
        """The paper's figure of the favourite and that of the best rival."""
        shown = self._shown(self.published, self.rivals)
        told = [f"{name} {_number(self.published[name], self.digits)}" for name in shown]
        return _at(self.published_where or self.where, ", ".join(told))

    def _shown(self, values: dict[str, float], rivals: Sequence[str]) -> list[str]:
        best = sorted(
            (name for name in rivals if name in values),
            key=lambda name: values[name],
            reverse=self.higher,
        )[:1]
        return [name for name in (self.favourite, *best) if name in values]


@dataclass(frozen=True)
class Verdict:
    """What results/README.md says of a claim: figures, whether it holds, and on what that rests.
    Empty: nothing to say.
    """

    paper: str = ""
    ours: str = ""
    holds: str = NO_CLAIM
    seeds: str = ""


def decide(contests: Sequence[Contest]) -> Verdict:
    """The verdict of several comparisons: all must hold, and one that does not refutes the
    claim.
    """
    outcomes = {contest.outcome() for contest in contests}
    runs = {value.seeds for contest in contests for value in contest.measured.values()}
    return Verdict(
        paper="; ".join(filter(None, (contest.papers() for contest in contests))),
        ours="; ".join(filter(None, (contest.ours() for contest in contests))),
        holds=next((outcome for outcome in GRAVITY if outcome in outcomes), UNTESTED),
        seeds=" to ".join(str(n) for n in sorted({min(runs), max(runs)})) if runs else "",
    )


def _at(where: str, figures: str) -> str:
    return f"{where}: {figures}" if where and figures else figures


def _number(value: float, digits: int) -> str:
    """With that many decimals; a smaller number by its power of ten."""
    return f"{value:.0e}" if 0 < abs(value) < 0.5 * 10.0**-digits else f"{value:.{digits}f}"
