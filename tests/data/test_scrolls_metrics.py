"""SCROLLS metrics: worked by hand, equal to rouge-score's own."""

import numpy as np
import pytest

from tape_exp.data.scrolls_metrics import exact_match, f1, normalise, rouge, score


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


def test_the_benchmarks_own_example():
    """Predictions, references and numbers that its metric documents."""
    predictions = {"1": "exact match example", "2": "hello there", "3": "general kenobi"}
    references = {
        "1": ["exact match example"],
        "2": ["hello", "hi there"],
        "3": ["commander kenobi"],
    }
    for dataset, wanted in (
        ("gov_report", [55.8136, 72.2222, 33.3333, 72.2222]),
        ("contract_nli", [33.3333]),
        ("narrative_qa", [72.2222]),
    ):
        values, _ = score(dataset, predictions, references)
        assert [value for value, _, _ in values.values()] == pytest.approx(wanted, abs=5e-5)


def test_interval_of_the_geometric_mean_recomputes_the_means():
    """By a loop over resamples."""
    generator = np.random.default_rng(1)
    predictions = {f"{i:02}": " ".join(generator.choice(list("abcdef"), 8)) for i in range(30)}
    references = {key: ["a b c d e f a b"] for key in predictions}
    values, of_each = score("qmsum", predictions, references)
    rows = np.array([list(own.values()) for own in of_each.values()])
    drawn = [
        rows[generator.integers(len(rows), size=len(rows))].mean(0).prod() ** (1 / 3)
        for _ in range(4000)
    ]
    expected = np.percentile(drawn, (2.5, 97.5))
    assert values["rouge/geometric_mean"][1:] == pytest.approx(expected, rel=0.03)
