"""What the metrics of a run tell besides: measures that no run writes, since they follow from its
record. Each function computes those of one kind, and nothing where the record lacks its parts.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from tape_exp.results.statistics import wilson

# Numbers of a record that count as metrics.
SIZES = ("parameters", "positional_parameters", "trained_parameters", "steps", "tokens")
# What `Record.metrics` has besides the metrics of a task and ends of intervals, as patterns of a
# shell.
DERIVED = (
    *SIZES,
    "extra_length",
    "solved_at",
    "digits/exact_match@*",
    "next/exact_match",
    "*/score",
    "distance@*",
    "dominance@*",
    "range@*",
    "longest_window",
    "tokens_scored",
)
SOLVED = 0.01  # nats a token
ENOUGH = 99.0  # percent of the sums of trained lengths: with fewer, a run says nothing beyond them


def derived(run: Mapping[str, Any]) -> dict[str, float]:
    """Compute further metrics of a run, as far as it has what they are made of.

    >>> run = {"config": {"task": {}}, "metrics": {"github/tokens": 9000.0}}
    >>> derived(run)
    {'tokens_scored': 9000}
    """
    return (
        _extra_length(run)
        | _by_digits(run)
        | _solved(run)
        | _of_matrices(run)
        | _score(run)
        | _sizes(run)
    )


def extra_length(share: float, reach: float = 2.0) -> float:
    """Turn the share m of the grid that is solved into a length beyond the trained one, n.

    Where a model solves all sums of up to L digits and no longer ones, the share of the grid of
    n → r n digits that it solves is (L / r n)². The extra length is what that L would be for the
    measured share, beyond n and as a fraction of it: L / n - 1 = r √m - 1.

    >>> extra_length(0.25)  # of up to 10 digits, trained on 5: the trained sums, and no others
    0.0
    >>> round(extra_length(0.36), 6)  # those of up to 6 digits, which are 20 % more
    0.2
    """
    return float(reach * np.sqrt(share) - 1)


def _extra_length(run: Mapping[str, Any]) -> dict[str, float]:
    """Compute the extra length of addition, with Wilson's interval over the longer sums; only of a
    run that learned the trained ones, which are taken as solved.

    >>> task = {"train_digits": 5, "test_digits": 10, "samples_per_cell": 100}
    >>> metrics = {"id/exact_match": 100.0, "ood/exact_match": 0.0}
    >>> _extra_length({"config": {"task": task}, "metrics": metrics})["extra_length"]
    0.0
    >>> _extra_length({"config": {"task": task}, "metrics": {**metrics, "id/exact_match": 50.0}})
    {}
    """
    task = run["config"]["task"]
    metrics = run["metrics"]
    if "train_digits" not in task or "ood/exact_match" not in metrics:
        return {}
    if metrics["id/exact_match"] < ENOUGH:
        return {}
    reach = task["test_digits"] / task["train_digits"]
    trained = 1 / reach**2  # share of the grid
    longer = task["test_digits"] ** 2 - task["train_digits"] ** 2  # cells
    tested = task["samples_per_cell"] * longer

    def of_percent(solved: float) -> float:
        return extra_length(trained + (1 - trained) * solved / 100, reach)

    percent = metrics["ood/exact_match"]
    low, high = wilson(round(percent / 100 * tested), tested)
    return {
        "extra_length": of_percent(percent),
        "extra_length_low": of_percent(low),
        "extra_length_high": of_percent(high),
    }


def _by_digits(run: Mapping[str, Any]) -> dict[str, float]:
    """Average the exact match of a grid of addition by the digits of the longer operand, which are
    given in percent of the trained digits; ``next`` is of one digit more than these.

    >>> task = {"train_digits": 1}
    >>> _by_digits({"config": {"task": task}, "heatmap": [[100, 40], [50, 0]]})
    {'digits/exact_match@100': 100.0, 'digits/exact_match@200': 30.0, 'next/exact_match': 30.0}
    """
    trained = run["config"]["task"].get("train_digits")
    if trained is None or "heatmap" not in run:
        return {}
    grid = np.array(run["heatmap"], float)
    rows, columns = grid.shape
    longer = np.maximum.outer(np.arange(1, rows + 1), np.arange(1, columns + 1))
    metrics = {}
    for digits in range(1, max(grid.shape) + 1):
        percent = round(100 * digits / trained)
        metrics[f"digits/exact_match@{percent}"] = float(grid[longer == digits].mean())
    if trained < max(grid.shape):
        metrics["next/exact_match"] = float(grid[longer == trained + 1].mean())
    return metrics


def _solved(run: Mapping[str, Any]) -> dict[str, float]:
    """Find the first step from which the validation loss of addition stays below :data:`SOLVED`, of
    the steps in its curve: a record keeps some of the steps at which it was measured.

    >>> curve = {"step": [100, 200, 300, 400], "value": [0.005, 0.5, 0.009, 0.002]}
    >>> _solved({"config": {"task": {"train_digits": 5}}, "curves": {"val/loss": curve}})
    {'solved_at': 300}
    """
    curve = run.get("curves", {}).get("val/loss")
    if curve is None or "train_digits" not in run["config"]["task"]:
        return {}
    solved: dict[str, float] = {}
    for step, loss in zip(curve["step"], curve["value"], strict=True):
        if loss >= SOLVED:
            solved = {}
        elif not solved:
            solved = {"solved_at": step}
    return solved


def _score(run: Mapping[str, Any]) -> dict[str, float]:
    """Find the metric that counts for a set of SCROLLS, with its interval.

    >>> task = {"dataset": "qasper"}
    >>> _score({"config": {"task": task}, "metrics": {"qasper/f1": 21.0, "qasper/f1_low": 20.5}})
    {'qasper/score': 21.0, 'qasper/score_low': 20.5}
    """
    dataset = run["config"]["task"].get("dataset")
    metrics = run["metrics"]
    scores = {}
    for stem in (f"{dataset}/", f"{dataset}/twice/"):
        for measure in ("f1", "exact_match", "rouge/geometric_mean"):
            for end in ("", "_low", "_high"):
                name = f"{stem}{measure}{end}"
                if name in metrics:
                    scores[f"{stem}score{end}"] = metrics[name]
    return scores


def _sizes(run: Mapping[str, Any]) -> dict[str, float]:
    """Find the longest window of a text, and count the tokens of it that were scored.

    >>> task = {"windows": {"lengths": [64, 256]}}
    >>> _sizes({"config": {"task": task}, "metrics": {"pg19/tokens": 9000.0}})
    {'longest_window': 256, 'tokens_scored': 9000}
    """
    lengths = run["config"]["task"].get("windows", {}).get("lengths", [])
    scored = [number for name, number in run["metrics"].items() if name.endswith("/tokens")]
    sizes: dict[str, float] = {}
    if lengths:
        sizes["longest_window"] = int(max(lengths))
    if any(scored):
        sizes["tokens_scored"] = int(max(scored))
    return sizes


def _of_matrices(run: Mapping[str, Any]) -> dict[str, float]:
    """Measure matrices by layer: tokens that attention looks back; of E·Eᵀ the diagonal over the
    other causal pairs, and the range of these.

    >>> matrices = {"attention@0": [[1, 0], [0.5, 0.5]], "products@0": [[4, 0], [2, 4]]}
    >>> _of_matrices({"matrices": matrices})
    {'distance@0': 0.25, 'dominance@0': 2.0, 'range@0': 0.0}
    """
    metrics = {}
    for name, rows in run.get("matrices", {}).items():
        kind, layer = name.split("@")
        matrix = np.array(rows, float)
        positions = np.arange(len(rows))
        if kind == "attention":
            distances = positions[:, None] - positions
            metrics[f"distance@{layer}"] = float((np.tril(matrix) * distances).sum(1).mean())
        else:
            below = np.tri(len(matrix), k=-1, dtype=bool)
            diagonal = np.abs(np.diag(matrix)).mean()
            others = np.abs(matrix[below]).mean()
            metrics[f"dominance@{layer}"] = round(float(diagonal / others), 9)
            metrics[f"range@{layer}"] = float(np.ptp(matrix[below]))
    return metrics
