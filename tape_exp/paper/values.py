"""The values of a table: numbers with their intervals, and what is missing and why."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import hypot
from statistics import mean, stdev
from typing import Any

from scipy.special import stdtrit


@dataclass(frozen=True)
class Value:
    """A number, the ends of its interval, and how both are written.

    Args:
        number: in the unit of its column; a mean where ``n`` is more than 1.
        low, high: the ends of its interval; None where a single seed leaves none.
        n: over how many seeds, or rounds of a timing, it was taken.
        kind: what the ends are of.
        runs: of a mean over runs, each by its seed, with its interval over samples if it has one.
        form: a format string that may name ``number``, ``low``, ``high`` and ``half``, which is
            half the width of a symmetric interval.
    """

    number: float
    low: float | None = None
    high: float | None = None
    n: int = 1
    form: str = "{number:.2f}"
    kind: str = "95 % interval over seeds"
    runs: Mapping[int, "Value"] = field(default_factory=dict, compare=False, repr=False)

    @property
    def seeds(self) -> list[float]:
        """The numbers of two seeds, whose interval is too wide to be written."""
        return [run.number for run in self.runs.values()] if len(self.runs) == 2 else []

    def __str__(self) -> str:
        half = None if self.high is None else self.high - self.number
        text = self.form.format(number=self.number, low=self.low, high=self.high, half=half)
        return with_seeds(text, [self.form.format(number=number) for number in self.seeds])


def with_seeds(text: str, numbers: Sequence[str]) -> str:
    """``32.00 (30.00, 34.00)``: a mean and the numbers of its two seeds, where there are two."""
    return f"{text} ({', '.join(numbers)})" if numbers else text


@dataclass(frozen=True)
class Missing:
    """An empty cell. The page of ``make report`` says why it is empty."""

    reason: str

    def __str__(self) -> str:
        return ""


NOT_RUN = Missing("not run")
NOT_REPORTED = Missing("the paper gives no number")
NOTHING = Missing("does not apply")

Cell = Value | Missing | str


def known(cells: Mapping[str, Cell]) -> dict[str, Value]:
    """Those of some cells that hold a value."""
    return {name: cell for name, cell in cells.items() if isinstance(cell, Value)}


def interval(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and half-width of Student's 95 % interval over seeds; None for a single value."""
    if len(values) < 2:
        return mean(values), None
    return mean(values), float(stdtrit(len(values) - 1, 0.975)) * stdev(values) / len(values) ** 0.5


def over_seeds(by_seed: Mapping[int, "float | Value"], digits: int = 2) -> Value | Missing:
    """The mean over seeds, written ``26.32 ± 0.41``, of two ``26.32 (26.00, 26.64)``.

    One seed has no interval, and none has not run. The interval of two seeds is 12.7 standard
    errors to each side: verdicts reckon with it, and it is not written.
    """
    if not by_seed:
        return NOT_RUN
    runs = {seed: v if isinstance(v, Value) else Value(v) for seed, v in by_seed.items()}
    centre, half = interval([run.number for run in runs.values()])
    form = f"{{number:.{digits}f}}"
    if half is None:
        return Value(centre, form=form, runs=runs)
    form += f" ± {{half:.{digits}f}}" if len(runs) > 2 else ""
    return Value(centre, centre - half, centre + half, len(runs), form, runs=runs)


def mean_of(records: Sequence[dict[str, Any]], metric: str, digits: int = 2) -> Value | Missing:
    """A metric over the seeds that have it, as :func:`over_seeds` gives it."""
    found = {r["seed"]: r["metrics"][metric] for r in records if metric in r["metrics"]}
    return over_seeds(found, digits)


def over_runs(
    by_seed: Mapping[int, Value], digits: int = 2, pooled: Value | None = None
) -> Value | Missing:
    """The mean over runs, each of which has an interval over its samples.

    A single run keeps its own. Where all runs are asked the same samples, the seeds do not show how
    far those reach: to each side the half over seeds and the mean half over samples are added as
    independent errors are, √(a² + b²). Runs with samples of their own do show it, unless they agree
    by chance: their interval is the wider one of that over seeds and that over all samples.

    Args:
        by_seed: the runs.
        digits: decimals shown.
        pooled: of runs that have samples of their own, the interval over all samples together.
    """
    spread, values = over_seeds(by_seed, digits), [*by_seed.values()]
    if len(values) == 1:
        return replace(values[0], runs=by_seed)
    lows = [value.low for value in values if value.low is not None]
    highs = [value.high for value in values if value.high is not None]
    if isinstance(spread, Missing) or len(lows) < len(values) or len(highs) < len(values):
        return spread
    assert spread.low is not None
    assert spread.high is not None
    if pooled is not None and pooled.low is not None and pooled.high is not None:
        low, high = min(spread.low, pooled.low), max(spread.high, pooled.high)
    else:
        centre, half = spread.number, spread.high - spread.number
        low = centre - hypot(half, centre - mean(lows))
        high = centre + hypot(half, mean(highs) - centre)
    if (low, high) == (spread.low, spread.high):
        return spread
    form = f"{{number:.{digits}f}}"
    form += "" if spread.seeds else f" [{{low:.{digits}f}}, {{high:.{digits}f}}]"
    kind = "95 % interval over seeds and samples"
    return replace(spread, low=low, high=high, form=form, kind=kind)


def reported(number: float | None, digits: int = 2) -> Value | Missing:
    """A number of the paper's, which is of one seed, or its absence."""
    return NOT_REPORTED if number is None else Value(number, form=f"{{number:.{digits}f}}")


def integer(number: int) -> Value:
    """A whole number, written with a comma at every thousand."""
    return Value(number, form="{number:,}")
