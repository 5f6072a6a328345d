"""fig_addition_trend: the paper's extra lengths, of two of its figures."""

from typing import TYPE_CHECKING

from tape_exp.artifacts.artifact import reported
from tape_exp.paper.claims import Published
from tape_exp.results.derived import extra_length
from tape_exp.results.statistics import Value

if TYPE_CHECKING:
    from tape_exp.artifacts.view import View

PAPERS_FIGURES = {20: "fig_addition_20", 40: "fig_addition"}  # of addition, by trained digits


def trend_published(view: "View") -> Published:
    """Return the paper's extra lengths at its largest size, of its printed means of the grid."""
    largest = max(PAPERS_FIGURES)
    lengths = paper_extra_lengths()
    of_largest: dict[str, Value | None] = {}
    for model, by_digits in lengths.items():
        if largest in by_digits:
            of_largest[model] = Value(by_digits[largest])
    return Published(f"{largest} digits", of_largest)


def paper_extra_lengths() -> dict[str, dict[int, float]]:
    """Model -> trained digits -> the paper's extra length, of one seed."""
    lengths: dict[str, dict[int, float]] = {}
    for digits, name in PAPERS_FIGURES.items():
        for model, percent in reported()[name]["values"].items():
            lengths.setdefault(model, {})[digits] = extra_length(percent / 100)
    return lengths
