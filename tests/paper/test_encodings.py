"""The table of all encodings: which runs it asks for, ranks, ceilings."""

from tape_exp.paper import artifacts
from tape_exp.paper.encodings import TASKS, mean_ranks, shared_seeds
from tape_exp.paper.values import NOT_RUN, Value
from tape_exp.settings.compose import compose_config
from tests.conftest import knows_digits

ARTIFACT = artifacts.load("tab_encodings")


def words_of(seed: int) -> dict[str, list[str]]:
    return dict(ARTIFACT.lines("smoke", [f"seed={seed}"], []))


def test_all_have_one_rate_on_each_task():
    """On addition that of the ladder's variant which gives RoPE the others' rate."""
    ladder = dict(artifacts.load("fig_addition_trend").lines("ladder", ["seed=0"], []))
    own, theirs = (
        compose_config(words)
        for words in (words_of(0)["rope arithmetic"], ladder["rope rung5 equal"])
    )
    assert own == theirs
    rates = {
        (label.split()[1], compose_config(words).task.optim.lr)
        for label, words in words_of(0).items()
    }
    assert len(rates) == 3


def test_what_is_told_the_digits_only_adds():
    labels = words_of(0).keys()
    assert "abacus arithmetic" in labels
    assert not {"abacus c4", "abacus word_problem", "coupling c4"} & labels
    assert {"rope c4", "rope word_problem"} <= labels


def test_told_are_the_encodings_that_know_digits():
    told = {model for model in ARTIFACT.models if knows_digits(compose_config([f"model={model}"]))}
    assert told == set(ARTIFACT.told)


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


def test_ranks_compare_the_seeds_that_all_have():
    """A model's further seed changes its mean, and not its rank."""

    def run(seed: int, value: float) -> dict:
        config = {"model": {"name": "any"}, "task": {"windows": {"lengths": [8]}}}
        names = (
            "id/exact_match",
            "ood/exact_match",
            "id/state",
            "ood/state",
            "github/perplexity@8",
        )
        origin = {"git": {"commit": "0" * 40, "dirty": False}, "parameters": 1000}
        return {"seed": seed, "config": config, "metrics": dict.fromkeys(names, value), **origin}

    records = {
        f"{model} {task}": [run(0, first)]
        for model, first in (("rope", 3.0), ("nope", 2.0))
        for task in TASKS
    }
    for record in records.values():
        record[0]["config"]["task"] |= {"train_letters": 4, "train_digits": 5}
    before = ARTIFACT.cells("smoke", records).values("rank")
    records["nope arithmetic"].append(run(1, 90.0))
    after = ARTIFACT.cells("smoke", records)
    assert {model: value.number for model, value in after.values("rank").items()} == {
        model: value.number for model, value in before.items()
    }
    assert after.values("addition")["nope"].number == 46.0
    assert shared_seeds(records) == {0}
