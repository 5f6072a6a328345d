"""The metrics of a run, and measures that records lack."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from tape_exp.results.statistics import Value, Z
from tape_exp.runs.evaluation import wilson

BUILTIN = "builtin_"
# What `Record.metrics` has besides the metrics of a task, as patterns of a shell.
DERIVED = (
    *("parameters", "positional_parameters", "trained_parameters", "steps", "tokens"),
    *("extra_length", "solved_at", "digits/exact_match@*", "next/exact_match", "*/score"),
    *("distance@*", "dominance@*", "range@*", "longest_window", "tokens_scored"),
)
SOLVED = 0.01  # nats a token
ENOUGH = 99.0  # percent of the sums of trained lengths: with fewer, a run says nothing beyond them


def derived(run: Mapping[str, Any]) -> dict[str, float]:
    """Further metrics of a run: of addition its extra length, of matrices what they show."""
    return (
        _extra_length(run)
        | _by_digits(run)
        | _solved(run)
        | _of_matrices(run)
        | _score(run)
        | _sizes(run)
    )


def extra_length(share: float, reach: float = 2.0) -> float:
    """The length beyond the trained one, as a fraction of it, of a share m of the grid.

    Where a model solves all sums of up to L digits and no longer ones, the share of the grid of
    n → r n digits that it solves is (L / r n)². The extra length is what that L would be for the
    measured share, beyond n and as a part of it: L / n - 1 = r √m - 1.
    """
    return float(reach * np.sqrt(share) - 1)


def _extra_length(run: Mapping[str, Any]) -> dict[str, float]:
    """With Wilson's interval over the longer sums; only of a run that learned the trained ones,
    which are taken as solved.
    """
    task = run["config"]["task"]
    metrics = run["metrics"]
    percent = metrics.get("ood/exact_match") if "train_digits" in task else None
    if percent is None or metrics["id/exact_match"] < ENOUGH:
        return {}
    reach = task["test_digits"] / task["train_digits"]
    trained = 1 / reach**2
    tested = task["samples_per_cell"] * (task["test_digits"] ** 2 - task["train_digits"] ** 2)
    ends = (percent, *wilson(round(percent / 100 * tested), tested))
    names = ("extra_length", "extra_length_low", "extra_length_high")
    return {
        name: extra_length(trained + (1 - trained) * each / 100, reach)
        for name, each in zip(names, ends, strict=True)
    }


def _by_digits(run: Mapping[str, Any]) -> dict[str, float]:
    """Of a grid of addition the exact match by the digits of the longer operand, which are given in
    percent of the trained digits; ``next`` is of one digit more than these.
    """
    trained = run["config"]["task"].get("train_digits")
    if trained is None or "heatmap" not in run:
        return {}
    grid = np.array(run["heatmap"], float)
    longer = np.maximum.outer(*(np.arange(1, size + 1) for size in grid.shape))
    means = {n: float(grid[longer == n].mean()) for n in range(1, longer.max() + 1)}
    following = {"next/exact_match": means[trained + 1]} if trained + 1 in means else {}
    by_share = {f"digits/exact_match@{round(100 * n / trained)}": m for n, m in means.items()}
    return by_share | following


def _solved(run: Mapping[str, Any]) -> dict[str, float]:
    """The first step after which the validation loss of addition is below :data:`SOLVED`."""
    curve = run.get("curves", {}).get("val/loss")
    if curve is None or "train_digits" not in run["config"]["task"]:
        return {}
    pairs = zip(curve["step"], curve["value"], strict=True)
    solved = [step for step, loss in pairs if loss < SOLVED]
    return {"solved_at": solved[0]} if solved else {}


def _score(run: Mapping[str, Any]) -> dict[str, float]:
    """Of a set of SCROLLS the metric that counts, with its interval."""
    dataset = run["config"]["task"].get("dataset")
    metrics = run["metrics"]
    found: dict[str, float] = {}
    for part in (f"{dataset}/", f"{dataset}/twice/"):
        names = [part + kind for kind in ("f1", "exact_match", "rouge/geometric_mean")]
        pairs = [(name + end, end) for name in names for end in ("", "_low", "_high")]
        found |= {f"{part}score{end}": metrics[key] for key, end in pairs if key in metrics}
    return found


def _sizes(run: Mapping[str, Any]) -> dict[str, float]:
    """The longest window of a text, and how many tokens of it were scored."""
    lengths = run["config"]["task"].get("windows", {}).get("lengths", [])
    scored = [number for name, number in run["metrics"].items() if name.endswith("/tokens")]
    sizes = {"longest_window": max(lengths, default=0), "tokens_scored": max(scored, default=0)}
    return {name: int(number) for name, number in sizes.items() if number}


def _of_matrices(run: Mapping[str, Any]) -> dict[str, float]:
    """By layer: tokens that attention looks back; of E·Eᵀ the diagonal over the other causal pairs,
    and the range of these.
    """
    found = {}
    for name, rows in run.get("matrices", {}).items():
        kind, layer = name.split("@")
        matrix = np.array(rows, float)
        places = np.arange(len(rows))
        if kind == "attention":
            back = places[:, None] - places
            found[f"distance@{layer}"] = float((np.tril(matrix) * back).sum(1).mean())
        else:
            below = np.tri(len(matrix), k=-1, dtype=bool)
            diagonal = np.abs(np.diag(matrix)).mean()
            rest = np.abs(matrix[below]).mean()
            found[f"dominance@{layer}"] = round(float(diagonal / rest), 9)
            found[f"range@{layer}"] = float(np.ptp(matrix[below]))
    return found


def as_shown(metric: str) -> str:
    """What a metric is called here: that of built-in text is called as that of the corpus."""
    return metric.removeprefix(BUILTIN)


def value_of(metrics: Mapping[str, float], metric: str) -> Value | None:
    """A metric of a run, with its interval over samples if it has one."""
    if metric not in metrics:
        return None
    number = metrics[metric]
    error = metrics.get(f"{metric}_stderr")
    if error is not None:
        return Value(number, number - Z * error, number + Z * error)
    return Value(number, metrics.get(f"{metric}_low"), metrics.get(f"{metric}_high"))
