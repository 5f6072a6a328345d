"""The default evaluation: rows are scored by slice, and every slice weighs the same."""

from functools import partial

import numpy as np
import pytest
import torch

from tape_exp.data.batch import IGNORE
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.schema import Arch, Optim
from tape_exp.tasks.base import Task
from tape_exp.tasks.slices import row_scores, split_means
from tests.conftest import silent

WORDS = 5  # the model's vocabulary


class Copy(Task):
    """Rows of a length are its number of ones; the labels are the inputs."""

    def __init__(self, test):
        super().__init__(Arch(1, 8, 2, 8), Optim(4, 1, 1e-3), 0, vocab=WORDS, max_length=4)
        self.axes, self.trained_length, self.test = {"letters": range(1, 5)}, 2, test

    def validation_batches(self):
        return []

    def test_batches(self):
        return self.test


def ones(length: int, rows: int = 4) -> dict:
    return {"inputs": torch.ones(rows, length, dtype=torch.long)} | {
        "labels": torch.ones(rows, length, dtype=torch.long)
    }


def model(tokens, sampler=None):
    """Right everywhere on up to three letters; of four the last is wrong in every second row."""
    answers = tokens.clone()
    if tokens.shape[1] == 4:
        answers[::2, 3] = 2
    return torch.nn.functional.one_hot(answers, WORDS).float()


def test_slices_give_splits_standard_errors_and_a_heatmap():
    evaluation = Copy([(n, ones(n)) for n in (4, 1, 2, 3)]).evaluate(model, silent)
    metrics = evaluation.metrics
    assert metrics["id/exact_match"] == metrics["id/token_accuracy"] == 100
    assert metrics["ood/exact_match"] == 75
    assert metrics["test/exact_match"] == 87.5
    assert metrics["ood/token_accuracy"] == pytest.approx(100 * (1 + 0.875) / 2)
    assert metrics["ood/exact_match_stderr"] == pytest.approx(100 * (0.25 / 3) ** 0.5 / 2)
    spread = np.var([0.75, 1, 0.75, 1]) / 3
    assert metrics["ood/token_accuracy_stderr"] == pytest.approx(100 * spread**0.5 / 2)
    assert metrics["id/exact_match_stderr"] == 0
    assert evaluation.heatmap.to_rows() == [[100, 100, 100, 50], [100, 100, 100, 87.5]]
    assert evaluation.heatmap.trained == (2, 2)
    assert evaluation.heatmap.rows == ["exact match", "token accuracy"]


def test_a_slice_of_several_batches_is_scored_as_one_of_one():
    parts = [(4, ones(4)), (1, ones(1)), (4, ones(4))]
    whole = [(1, ones(1)), (4, ones(4, rows=8))]
    assert (
        Copy(parts).evaluate(model, silent).metrics == Copy(whole).evaluate(model, silent).metrics
    )


def test_a_limit_makes_no_batch_beyond_it_and_leaves_their_slices_empty():
    made = []

    def make(length: int) -> dict:
        made.append(length)
        return ones(length)

    evaluation = Copy([(n, partial(make, n)) for n in (3, 4, 1)]).evaluate(model, silent, limit=2)
    assert made == [3, 4]
    assert set(evaluation.metrics) == {
        f"{split}/{measure}{end}"
        for split in ("test", "ood")
        for measure in Copy.measures
        for end in ("", "_stderr")
    }
    assert evaluation.heatmap.to_rows()[0] == [None, None, 100, 50]


def test_slices_of_a_batch_divide_its_rows_in_their_order():
    task = Copy([([(1, 2), (2, 1)], ones(4, rows=2))])
    task.axes = {"first": (1, 2), "second": (1, 2)}
    assert task.evaluate(model, silent).heatmap.to_rows() == [[None, 0], [100, None]]


@pytest.mark.parametrize("rows", [1, 2, 4, 5])
def test_slices_of_a_batch_have_as_many_rows_as_each_other(rows):
    with pytest.raises(ConfigError, match=rf"has {rows} rows of \w+ for its 3 slices, \[2, 4, 8\]"):
        Copy([([2, 4, 8], ones(4, rows=rows))]).evaluate(model, silent)


@pytest.mark.parametrize("rows", [0, 4])
def test_a_test_row_without_a_label_is_refused(rows):
    """It would be right whatever the model says."""
    batch = ones(2, rows)
    batch["labels"][-1:] = IGNORE
    words = "row 3 of the test batch of .* has no label" if rows else "has no rows"
    with pytest.raises(ConfigError, match=words):
        Copy([(2, batch)]).evaluate(model, silent)


def test_the_error_of_yes_and_no_is_free_of_rounding():
    scores = {n: {"exact_match": np.arange(30) < n} for n in (7, 11)}
    rates = np.array([7 / 30, 11 / 30])
    expected = 100 * float(np.sqrt((rates * (1 - rates) / 29).sum()) / 2)
    metrics = split_means(scores, ["exact_match"], lambda name: True)
    assert metrics["test/exact_match_stderr"] == expected


def test_rows_are_right_where_they_have_labels():
    labels = torch.tensor([[1, IGNORE, 2], [1, IGNORE, 3], [IGNORE] * 3])
    logits = torch.nn.functional.one_hot(torch.tensor([[1, 4, 2]] * 3), WORDS).float()
    scores = row_scores(logits, labels)
    assert scores["exact_match"].tolist() == [True, False, True]
    assert scores["token_accuracy"].tolist() == [1, 0.5, 0]
