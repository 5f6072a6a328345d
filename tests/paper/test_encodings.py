"""The table of all encodings: which runs it asks for, ranks, ceilings."""

from tape_exp.paper import artifacts
from tape_exp.paper.encodings import mean_ranks
from tape_exp.paper.values import NOT_RUN, Value

ARTIFACT = artifacts.load("tab_encodings")


def words_of(seed: int) -> dict[str, list[str]]:
    return dict(ARTIFACT.lines("smoke", [f"seed={seed}"], []))


def test_addition_is_that_of_the_ladder():
    ladder = dict(artifacts.load("fig_addition_trend").lines("ladder", ["seed=0"], []))
    for model in ("rope", "tape"):
        assert words_of(0)[f"{model} arithmetic"] == ladder[f"{model} rung5"]


def test_what_is_told_the_digits_only_adds():
    labels = words_of(0).keys()
    assert "abacus arithmetic" in labels
    assert not {"abacus c4", "abacus word_problem", "coupling c4"} & labels
    assert {"rope c4", "rope word_problem"} <= labels


def test_there_is_no_other_scale():
    assert list(ARTIFACT.configs("paper", [0])) == []


def test_only_the_best_have_further_seeds():
    wanted = {f"{model} {task}" for task, models in ARTIFACT.best.items() for model in models}
    assert words_of(1).keys() == wanted


def test_ranks():
    """Rank 1 is the best of each measure, two equals share 1 and 2, and who lacks one has none."""

    def row(addition, words, text):
        return {"addition": Value(addition), "words": Value(words), "text": text}

    rows = {
        "first": row(9, 5, Value(10)),
        "second": row(9, 7, Value(20)),
        "third": row(3, 1, Value(30)),
        "unfinished": row(99, 99, NOT_RUN),
        "ceiling": {"addition": Value(99)},
    }
    assert mean_ranks(rows) == {
        "first": (1.5 + 2 + 1) / 3,
        "second": (1.5 + 1 + 2) / 3,
        "third": 3.0,
    }
    assert mean_ranks({}) == {}
