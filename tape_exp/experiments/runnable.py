"""Which runs of a set can run: their parts can be built, and measure what is asked of them."""

import sys
from collections.abc import Sequence

from tape_exp.experiments.run_spec import RunSpec
from tape_exp.results.derived import DERIVED
from tape_exp.results.metric_names import as_shown, check_metric
from tape_exp.settings.errors import ConfigError


def runnable(specs: Sequence[RunSpec], all_of_them: bool = False) -> list[RunSpec]:
    """List the runs that can run, or have a record.

    Why others cannot is printed, each reason once.

    Args:
        all_of_them: whether a single run that cannot run is an error.

    Raises:
        ConfigError: none of the runs can run, or not ``all_of_them``, or none measures a metric
            that a column shows.
    """
    able: list[RunSpec] = []
    titles: dict[str, list[str]] = {}  # by the reason why these runs cannot run
    expected_metrics: dict[RunSpec, list[str]] = {}
    for spec in specs:
        if not spec.recorded:
            try:
                expected_metrics[spec] = metrics_of_task(spec)
            except ConfigError as error:
                titles.setdefault(str(error), []).append(spec.title)
                continue
        able.append(spec)
    check_metrics(able, expected_metrics)
    if titles and (all_of_them or not able):
        raise ConfigError(next(iter(titles)))
    for reason, left_out in titles.items():
        print(f"left out: {', '.join(left_out)}: {reason}", file=sys.stderr)
    return able


def metrics_of_task(spec: RunSpec) -> list[str]:
    """List the metrics that a run will have, as tables name them.

    Raises:
        ConfigError: its task or its model cannot be built.
    """
    from tape_exp.training.from_config import blank_parts  # imports torch

    _, task = blank_parts(spec.config)
    return [*map(as_shown, task.announced())]


def check_metrics(specs: Sequence[RunSpec], expected_metrics: dict[RunSpec, list[str]]) -> None:
    """Raise :class:`ConfigError` where no run measures a metric that a column asks for. What a
    recorded run has measured is not known here: it may have any.
    """
    measured: set[str] = set()
    errors: dict[str, ConfigError] = {}
    for spec in specs:
        for pattern, metric in spec.metrics.items():
            try:
                if spec in expected_metrics:
                    check_metric(metric, expected_metrics[spec], DERIVED)
                measured.add(pattern)
            except ConfigError as error:
                errors[pattern] = error
    for pattern in errors:
        if pattern not in measured:
            raise errors[pattern]
