"""From the runs of a cell to its value: the mean of a metric over them, with an interval."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tape_exp.results import statistics
from tape_exp.results.record import Record
from tape_exp.results.statistics import Value, value_of_metric
from tape_exp.settings.errors import one_of

INTERVALS: dict[str, Callable[[Mapping[int, Value]], Value]] = {
    "seeds": statistics.over_seeds,  # Student's, over seeds
    "samples": statistics.over_samples,  # of samples that all seeds share, and over seeds
    "error": statistics.with_error,  # a standard error over samples
    "count": statistics.over_counts,  # none: it does not depend on the seed
}
TRIALS = "trials"  # Wilson's, over the trials of all seeds together


def average(
    runs: Sequence[Record], metric: str, interval: str = "seeds", times: float = 1
) -> Value | None:
    """Average a metric over those of the runs that have it, with an interval of one of the kinds
    of :data:`INTERVALS`, or :data:`TRIALS`; None where no run has it.

    >>> runs = [Record(seed=s, config={"task": {}}, metrics={"a": 2.0 + s}) for s in (0, 1, 2)]
    >>> value = average(runs, "a", times=100)
    >>> round(value.low), value.number, round(value.high)
    (52, 300.0, 548)
    """
    one_of("interval", interval, (TRIALS, *INTERVALS))
    by_seed = {}
    for run in runs:
        value = value_of_metric(run.metrics, metric)
        if value is not None:
            by_seed[run.seed] = value
    if not by_seed:
        return None
    if interval == TRIALS:
        trials = trials_of(runs[0].config["task"], metric)
        return statistics.over_trials(by_seed, trials).times(times)
    return INTERVALS[interval](by_seed).times(times)


def trials_of(task: Mapping[str, Any], metric: str) -> int:
    """Return how many trials a metric of a recorded ``task`` is of: all have as many, or
    ``passkey/accuracy@512`` those of its length.

    >>> trials_of({"trials": [20, 10], "lengths": [128, 512]}, "passkey/accuracy@512")
    10
    """
    trials = task["trials"]
    if isinstance(trials, int):
        return trials
    by_length = dict(zip(task["lengths"], trials, strict=True))
    return by_length[int(metric.rpartition("@")[2])]
