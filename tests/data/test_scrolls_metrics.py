"""SCROLLS metrics: worked by hand, equal to rouge-score's own, indifferent to order, the geometric
mean after the means.
"""

import gzip
import json
import math
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rouge_score.rouge_scorer import RougeScorer

from tape_exp.data.scrolls_metrics import (
    DATASETS,
    bootstrap_means,
    exact_match,
    f1,
    normalise,
    rouge,
    score,
)
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.folders import ROOT

QMSUM = ROOT.parent / "shared" / "data" / "scrolls" / "qmsum" / "validation.jsonl.gz"
LIBRARY = RougeScorer(["rouge1", "rouge2", "rougeL"], use_stemmer=False)


def library(prediction: str, references: list[str]) -> dict[str, float]:
    """The best of the references by rouge-score itself."""
    best = LIBRARY.score_multi(references, prediction)
    return {f"rouge/{name}": 100 * best[f"rouge{name}"].fmeasure for name in "12L"}


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The  Cat's, an APPLE!\n", "cats apple"),
        ("A.M.", "am"),  # punctuation goes before articles, or this would be "m"
        ("a-b the.end", "ab theend"),
        ("theatre anon A", "theatre anon"),
        ("(the) [an] {a}", ""),
        ("L’ÉTÉ\u00a0the\u2003ÉCOLE", "l’été école"),  # any white space; only ASCII's punctuation
        ("«the» end", "« » end"),
        ("", ""),
    ],
)
def test_normalisation(text, normal):
    assert normalise(text) == normal


@pytest.mark.parametrize(
    ("prediction", "references", "expected"),
    [
        ("Entailment", ["entailment"], 100),
        ("entailment.", ["Contradiction", "The Entailment"], 100),
        ("not entailment", ["entailment"], 0),
        ("", ["entailment"], 0),
        ("", ["The"], 100),  # both are empty once normalised
        ("ÉTÉ", ["été"], 100),
        ("ete", ["été"], 0),
    ],
)
def test_exact_match(prediction, references, expected):
    assert exact_match(prediction, references) == {"exact_match": expected}


@pytest.mark.parametrize(
    ("prediction", "references", "expected"),
    [
        (
            "The cat sat on a mat.",
            ["Cat on the red mat"],
            75,
        ),  # cat sat on mat, cat on red mat: 3 of 4 and 3 of 4
        ("The cat sat on a mat.", ["dog", "cat sat on mat", "Cat on the red mat"], 100),
        ("no, no, yes", ["No"], 50),  # a word counts as often as both have it: 1 of 3 and 1 of 1
        ("no no", ["no no no"], 80),  # 2 of 2 and 2 of 3
        ("mat on sat cat", ["cat sat on mat"], 100),
        ("dog", ["cat"], 0),
        ("", ["cat"], 0),
        ("", ["the"], 0),  # SQuAD 1.1: no shared word
        ("Ünïcode NAÏVE", ["naïve"], 200 / 3),
    ],
)
def test_f1(prediction, references, expected):
    assert f1(prediction, references)["f1"] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("prediction", "references", "expected"),
    [
        # 4 shared words of 6 and 5; "the cat" of 5 and 4 pairs; "the cat on mat" in both
        ("The cat sat on the mat.", ["the cat on a mat"], (800 / 11, 200 / 9, 800 / 11)),
        ("b a", ["a b"], (100, 0, 50)),
        (
            "a b c d",
            ["d c b a", "a b"],
            (100, 50, 200 / 3),
        ),  # each ROUGE has its own best reference
        ("cats", ["cat"], (0, 0, 0)),  # no stemming
        ("The", ["the"], (100, 0, 100)),  # articles count; one word has no pair
        (
            "c d\na b",
            ["a b\nc d"],
            (100, 200 / 3, 50),
        ),  # a newline is space: not Rouge-Lsum, which gives 100
        ("café-2 ÉTÉ", ["CAF 2 t"], (100, 100, 100)),  # what is not ASCII separates words
        ("", ["cat"], (0, 0, 0)),
        ("", ["!"], (0, 0, 0)),
    ],
)
def test_rouge(prediction, references, expected):
    found = rouge(prediction, references)
    assert list(found) == ["rouge/1", "rouge/2", "rouge/L"]
    assert list(found.values()) == pytest.approx(expected, abs=1e-12)
    assert found == pytest.approx(library(prediction, references), abs=1e-12)


words = st.lists(st.sampled_from(["a", "b", "c", "The", "d-e", "é", "\n", "7"]), max_size=80).map(
    " ".join
)


@settings(max_examples=150, deadline=None)
@given(words | st.text(max_size=60), st.lists(words | st.text(max_size=60), min_size=1, max_size=3))
def test_rouge_is_the_librarys(prediction, references):
    assert rouge(prediction, references) == pytest.approx(
        library(prediction, references), abs=1e-12
    )


@pytest.mark.skipif(not QMSUM.exists(), reason="QMSum's validation split is not on this machine")
def test_rouge_of_real_summaries_is_the_librarys():
    with gzip.open(QMSUM) as lines:
        outputs = [json.loads(line)["output"] for line in lines]
    predictions = {str(i): text for i, text in enumerate(outputs[1:] + outputs[:1])}
    found = score("qmsum", predictions, {str(i): [text] for i, text in enumerate(outputs)})
    for row in found.per_example:
        assert row["scores"] == pytest.approx(
            library(row["prediction"], row["references"]), abs=1e-12
        )
    assert found.interval[0] < found.value < found.interval[1]
    perfect = score(
        "qmsum",
        {str(i): text for i, text in enumerate(outputs)},
        {str(i): [x] for i, x in enumerate(outputs)},
    )
    assert perfect.value == pytest.approx(100)


def test_the_benchmarks_own_example():
    """Predictions, references and numbers that its metric documents."""
    predictions = {"1": "exact match example", "2": "hello there", "3": "general kenobi"}
    references = {
        "1": ["exact match example"],
        "2": ["hello", "hi there"],
        "3": ["commander kenobi"],
    }
    numbers = {
        "rouge/geometric_mean": 55.8136,
        "rouge/1": 72.2222,
        "rouge/2": 33.3333,
        "rouge/L": 72.2222,
    }
    assert score("gov_report", predictions, references).values == pytest.approx(numbers, abs=5e-5)
    assert score("contract_nli", predictions, references).values == pytest.approx(
        {"exact_match": 33.3333}, abs=5e-5
    )
    assert score("narrative_qa", predictions, references).values == pytest.approx(
        {"f1": 72.2222}, abs=5e-5
    )


def test_geometric_mean_is_taken_after_the_means():
    found = score(
        "qmsum", {"x": "a b", "y": "b a"}, {"x": ["a b"], "y": ["a b"]}
    )  # 100, 100, 100 and 100, 0, 50
    assert found.name == "rouge/geometric_mean"
    assert found.value == pytest.approx(
        (100 * 50 * 75) ** (1 / 3)
    )  # the mean of geometric means would be 50
    assert {name: found.values[f"rouge/{name}"] for name in "12L"} == pytest.approx(
        {"1": 100, "2": 50, "L": 75}
    )


def test_examples_are_returned_in_the_references_order():
    found = score("quality", {"x": "Yes.", "y": "no"}, {"y": ["yes", "maybe"], "x": ["yes"]})
    assert found.per_example == [
        {
            "id": "y",
            "prediction": "no",
            "references": ["yes", "maybe"],
            "scores": {"exact_match": 0},
        },
        {"id": "x", "prediction": "Yes.", "references": ["yes"], "scores": {"exact_match": 100}},
    ]
    assert found.values == {"exact_match": 50}


texts = st.lists(st.sampled_from(["a", "red", "cat", "sat"]), max_size=6).map(" ".join)


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(sorted(DATASETS)),
    st.lists(st.tuples(texts, st.lists(texts, min_size=1)), min_size=1),
    st.randoms(),
)
def test_order_of_examples_and_references_does_not_matter(dataset, examples, random):
    predictions = {str(i): prediction for i, (prediction, _) in enumerate(examples)}
    references = {str(i): wanted for i, (_, wanted) in enumerate(examples)}
    shuffled = {
        i: random.sample(references[i], len(references[i]))
        for i in random.sample(list(references), len(references))
    }
    found, again = score(dataset, predictions, references), score(dataset, predictions, shuffled)
    assert found.values == again.values
    assert found.intervals == again.intervals
    assert {row["id"]: row["scores"] for row in found.per_example} == {
        row["id"]: row["scores"] for row in again.per_example
    }


def test_interval_agrees_with_the_normal_approximation():
    right = 120
    predictions = {str(i): "yes" if i < right else "no" for i in range(400)}
    found = score("quality", predictions, {key: ["yes"] for key in predictions})
    half = 100 * 1.96 * math.sqrt(0.3 * 0.7 / 400)
    assert found.value == pytest.approx(30)
    assert found.interval == pytest.approx((30 - half, 30 + half), abs=0.7)


def test_interval_of_the_geometric_mean_recomputes_the_means():
    """By a loop over resamples."""
    generator = np.random.default_rng(1)
    predictions = {f"{i:02}": " ".join(generator.choice(list("abcdef"), 8)) for i in range(30)}
    references = {key: ["a b c d e f a b"] for key in predictions}
    found = score("qmsum", predictions, references)
    rows = np.array([list(row["scores"].values()) for row in found.per_example])
    drawn = [
        rows[generator.integers(len(rows), size=len(rows))].mean(0).prod() ** (1 / 3)
        for _ in range(4000)
    ]
    assert found.interval == pytest.approx(np.percentile(drawn, (2.5, 97.5)), rel=0.03)
    assert list(found.intervals) == list(found.values)


def test_interval_of_examples_that_agree_has_no_width():
    assert score("quality", {"x": "a b"}, {"x": ["b"]}).interval == (100, 100)
    found = score("qmsum", dict.fromkeys("xyz", "a b c d"), {i: ["a b c e"] for i in "xyz"})
    for name, value in found.values.items():
        assert found.intervals[name] == pytest.approx((value, value))


def test_resamples_keep_rows_together():
    column = np.random.default_rng(0).random(50)
    means = bootstrap_means(np.column_stack([column, 2 * column]))
    assert means.shape == (1000, 2)
    assert np.allclose(means[:, 1], 2 * means[:, 0])
    assert np.array_equal(means, bootstrap_means(np.column_stack([column, 2 * column])))
    assert means[:, 0].std() == pytest.approx(column.std() / 50**0.5, rel=0.1)


def test_ten_thousand_summaries_take_less_than_a_minute():
    generator = np.random.default_rng(0)
    draw = [" ".join(f"w{n}" for n in generator.zipf(1.5, 80)) for _ in range(1000)]
    start = time.process_time()
    score(
        "qmsum",
        {str(i): text for i, text in enumerate(draw)},
        {str(i): [text] for i, text in enumerate(reversed(draw))},
    )
    assert time.process_time() - start < 6


@pytest.mark.parametrize(
    ("dataset", "predictions", "references", "message"),
    [
        ("qualty", {"x": "a"}, {"x": ["a"]}, "qualty is not known. Did you mean 'quality'"),
        (
            "quality",
            {"x": "a"},
            {i: ["a"] for i in "vwxyz"},
            "predictions are missing for 4 of 5 ids: v, w, y, …;",
        ),
        (
            "quality",
            {"x": "a", "y": "b"},
            {"x": ["a"]},
            "predictions have no reference for 1 of 2 ids: y;",
        ),
        ("quality", {"x": None}, {"x": ["a"]}, "prediction of x must be a string, not None"),
        ("quality", {"x": "a"}, {"x": []}, "example x has no reference"),
        ("quality", {}, {}, "no references"),
    ],
)
def test_errors(dataset, predictions, references, message):
    with pytest.raises(ConfigError, match=message):
        score(dataset, predictions, references)
