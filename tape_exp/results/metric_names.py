"""Names of metrics, ``<split>/<measure>@<length>``: which are results, and how tables call them."""

from collections.abc import Sequence
from fnmatch import fnmatchcase

from tape_exp.data.text import BUILTIN
from tape_exp.settings.errors import ConfigError, did_you_mean

FEW = 8  # columns of a comparison, where nobody chooses them


def is_result(metric: str) -> bool:
    """Say whether a metric is a result, which logs, cards and ``compare`` show: no standard
    error, no end of an interval, and no diagnostic, which only explains one.

    >>> is_result("test/perplexity@512"), is_result("test/loss_stderr"), is_result("state/size@1")
    (True, False, False)
    """
    diagnostics = ("address", "causal", "failures", "forced", "state")
    diagnostic = metric.partition("/")[0] in diagnostics
    return not diagnostic and not metric.endswith(("_stderr", "_low", "_high"))


def main_results(metrics: Sequence[str]) -> list[str]:
    """Choose the few results that a comparison shows unless the user names them: of rows of trained
    and of longer lengths the first measure of the task, over all, ``id/…`` and ``ood/…``; else
    what the model scores, and where that is much, at the longest length only.
    """
    results = list(filter(is_result, metrics))
    for metric in results:
        split, _, measure = metric.partition("/")
        if split in ("id", "ood"):
            splits = [f"{split}/{measure}" for split in ("test", "id", "ood")]
            return [name for name in results if name in splits]
    of_the_text = ("/tokens", "/unigram_perplexity")
    scores = [name for name in results if not name.endswith(of_the_text)]
    if len(scores) <= FEW:
        return scores
    longest: dict[str, str] = {}
    for name in scores:
        measure, _, length = name.partition("@")
        known = longest.get(measure, "").partition("@")[2]
        if not (known.isdigit() and length.isdigit()) or int(length) > int(known):
            longest[measure] = name
    return list(longest.values())


def check_metric(metric: str, expected: Sequence[str], derived: Sequence[str] = ()) -> None:
    """Raise :class:`ConfigError` where a metric is none of those that are expected of a task, by
    name or pattern of a shell, nor of those that a table makes of them.
    """
    names = [*expected, *derived]
    if not any(fnmatchcase(metric, pattern) for pattern in names):
        results = ", ".join(filter(is_result, expected))
        raise ConfigError(f"metric {metric}{did_you_mean(metric, names)} The task has {results}.")


def as_shown(metric: str) -> str:
    """Name a metric as tables do: that of built-in text as that of the corpus.

    >>> as_shown("builtin_qasper/f1")
    'qasper/f1'
    """
    return metric.removeprefix(BUILTIN)
