"""tab_scrolls: what is reached without reading."""

from typing import TYPE_CHECKING

import numpy as np

from tape_exp.artifacts.artifact import reported
from tape_exp.paper.claims import on_generated_text
from tape_exp.results.tables import Column

if TYPE_CHECKING:
    from tape_exp.artifacts.view import View


def scrolls_floor(view: "View", column: Column) -> float | None:
    """Say what is reached without reading, in percent: on generated text by a guess among the
    answers, on the real sets by the naive baseline of the benchmark's authors.
    """
    (dataset,) = column.at.values()
    if on_generated_text(view):
        from tape_exp.data.builtin.facts import SUBJECTS  # imports torch

        known = {"contract_nli": 100 / 3} | dict.fromkeys(SUBJECTS, 25.0)
        return known.get(dataset)
    return naive_score(dataset)


def naive_score(dataset: str) -> float:
    """Say what answers without a model reach on a set of SCROLLS, in percent: of ROUGE the mean."""
    naive = reported()["tab_scrolls"]["naive"][dataset]
    return float(np.prod(naive) ** (1 / np.size(naive)))
