"""The metrics of the SCROLLS benchmark (Shaham et al., 2022), in percent: exact match, token F1,
ROUGE-1/2/L.

Of each example the maximum over its references, for each ROUGE on its own; then the mean over
examples; for ROUGE then the geometric mean of the three means. ROUGE is rouge-score's F-measure
without stemming.

The benchmark also breaks texts into sentences by newlines, but only for Rouge-Lsum, which is
neither in its score nor in its tables and is not computed here. ROUGE-L is the longest common
subsequence of the whole texts, to which newlines are space.
"""

import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

RESAMPLES = 1000
PUNCTUATION = str.maketrans("", "", string.punctuation)
Scores = dict[str, float]


def score(
    dataset: str, predictions: Mapping[str, str], references: Mapping[str, Sequence[str]]
) -> tuple[dict[str, tuple[float, float, float]], dict[str, Scores]]:
    """Score one prediction for each example. The numbers do not depend on the order of examples or
    references.

    Returns:
        Each value with its 95 % interval by bootstrap, the dataset's score first (``exact_match``,
        ``f1``, or ``rouge/geometric_mean`` before ``rouge/1`` …), and the values of each example.
    """
    examples = {id_: METRIC_OF[dataset](predictions[id_], references[id_]) for id_ in references}
    names = list(next(iter(examples.values())))
    values_NK = np.array([list(examples[id_].values()) for id_ in sorted(examples)])
    generator = np.random.default_rng(0)
    n = len(values_NK)
    # Drawn one by one: all resamples at once would take 80 MB for 10,000 examples.
    resampled = []
    for _ in range(RESAMPLES):
        resampled.append(generator.multinomial(n, np.full(n, 1 / n)) @ values_NK)
    means_RK = np.vstack([values_NK.mean(0), np.array(resampled) / n])
    if METRIC_OF[dataset] is rouge:
        names = ["rouge/geometric_mean", *names]
        means_RK = np.column_stack([np.cbrt(means_RK.prod(1)), means_RK])
    low_K, high_K = np.percentile(means_RK[1:], (2.5, 97.5), axis=0)
    bounds_K3 = np.column_stack([means_RK[0], low_K, high_K]).tolist()
    return dict(zip(names, map(tuple, bounds_K3), strict=True)), examples


def normalise(text: str) -> str:
    """Normalise a text as SQuAD does: lower case, single spaces, no articles or ASCII punctuation.

    >>> normalise("The tower, at 7 a.m.")
    'tower at 7 am'
    """
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text.lower().translate(PUNCTUATION)).split())


def exact_match(prediction: str, references: Sequence[str]) -> Scores:
    """Score 100 if the prediction is a reference, both normalised, by which ``the`` becomes
    empty.
    """
    return {"exact_match": 100.0 * (normalise(prediction) in map(normalise, references))}


def f1(prediction: str, references: Sequence[str]) -> Scores:
    """Score the F-measure of the shared normalised words, each counted as often as both have it.

    0 where none is shared, also where both are empty: the convention of SQuAD 1.1, which the
    benchmark took over.
    """
    words = Counter(normalise(prediction).split())
    scores = []
    for reference in references:
        right = Counter(normalise(reference).split())
        shared = 2 * (words & right).total()
        scores.append(100.0 * shared / max(words.total() + right.total(), 1))
    return {"f1": max(scores)}


def rouge(prediction: str, references: Sequence[str]) -> Scores:
    """Score ROUGE-1, ROUGE-2 and ROUGE-L."""
    scores = _scorer().score_multi(references, prediction)
    return {f"rouge/{name}": 100.0 * scores[f"rouge{name}"].fmeasure for name in "12L"}


@cache
def _scorer() -> Any:
    """Make the scorer of rouge-score, once."""
    from rouge_score.rouge_scorer import RougeScorer  # a second's import

    return RougeScorer(["rouge1", "rouge2", "rougeL"])


METRIC_OF = {  # each data set
    **dict.fromkeys(("qasper", "narrative_qa"), f1),
    **dict.fromkeys(("contract_nli", "quality"), exact_match),
    **dict.fromkeys(("qmsum", "summ_screen_fd", "gov_report"), rouge),
}
