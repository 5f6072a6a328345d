"""Word problems: labels are products, samples are functions of (seed, k), metrics count what they
say.
"""

import numpy as np
import pytest
import torch

from tape_exp.data.batch import IGNORE
from tape_exp.data.groups import GROUPS
from tape_exp.settings.schema import Arch, Optim
from tape_exp.tasks.word_problem import WordProblem
from tests.conftest import silent

ARCH = Arch(layers=2, width=32, heads=4, ffn=32)
OPTIM = Optim(batch=8, max_steps=2, lr=1e-3)


def make(group="s5", train_letters=6, lengths=(4, 6, 12), seed=0, **options) -> WordProblem:
    return WordProblem(ARCH, OPTIM, seed, group, train_letters, lengths, **options)


@pytest.mark.parametrize("group", GROUPS)
def test_labels_are_the_products_of_the_letters_so_far(group):
    task = make(group)
    elements = task.group.elements
    batch = task.train_batch(0, 50)
    assert batch["inputs"].shape == batch["labels"].shape == (50, 7)
    assert (batch["inputs"][:, 0] == len(elements)).all()
    assert (batch["labels"][:, 0] == IGNORE).all()
    assert set(batch["inputs"][:, 1:].flatten().tolist()) <= set(task.group.letters.tolist())
    assert task.arch.vocab == len(elements) + 1
    for inputs, labels in zip(batch["inputs"].tolist(), batch["labels"].tolist(), strict=True):
        state = np.arange(elements.shape[1])
        for letter, label in zip(inputs[1:], labels[1:], strict=True):
            state = state[elements[letter]]
            assert (elements[label] == state).all()


class Knows:
    """A model that gives the right state up to a place, beyond it for the words of even number."""

    def __init__(self, task: WordProblem, letters: int) -> None:
        self.task, self.letters, self.rows = task, letters, 0

    def __call__(self, tokens, sampler=None):
        states = torch.from_numpy(self.task.group.states(tokens[:, 1:].numpy()))
        even = (torch.arange(len(tokens)) + self.rows) % 2 == 0
        self.rows += len(tokens)
        wrong = (torch.arange(states.shape[1]) >= self.letters) & ~even[:, None]
        answers = torch.where(wrong, (states + 1) % len(self.task.group.elements), states)
        return torch.nn.functional.one_hot(
            torch.nn.functional.pad(answers, (1, 0)), self.task.arch.vocab
        ).float()


@pytest.mark.parametrize("rows", [64, 7])
def test_metrics_of_a_model_that_is_right_up_to_a_place(rows):
    task = make(words=40, rows_per_batch=rows)
    evaluation = task.evaluate(Knows(task, 5), silent)
    metrics = evaluation.metrics
    assert (metrics["test/state@4"], metrics["test/state@6"], metrics["test/state@12"]) == (
        100,
        75,
        50,
    )
    assert (metrics["test/word@4"], metrics["test/word@6"], metrics["test/word@12"]) == (
        100,
        50,
        50,
    )
    assert metrics["id/state"] == pytest.approx(100 * 5.5 / 6)
    assert metrics["ood/state"] == 50
    assert metrics["ood/state_stderr"] == pytest.approx(50 / 39**0.5)
    assert evaluation.heatmap.to_rows() == [[100, 75, 50], [100, 50, 50]]
    assert evaluation.heatmap.trained == (2, 2)
    places = evaluation.tables["places"]
    assert [place["state"] for place in places] == [100] * 5 + [50] * 7
    assert places[0]["guess"] == 10  # one of ten swaps


def test_a_limit_scores_fewer_words_and_the_seed_changes_none():
    task, other = make(words=40, rows_per_batch=10), make(words=40, rows_per_batch=10, seed=3)
    seen = []

    def model(tokens, sampler=None):
        seen.append(tokens)
        return torch.zeros(*tokens.shape, task.arch.vocab)

    task.evaluate(model, silent, limit=1)
    assert len(seen) == 1
    other.evaluate(model, silent)
    assert torch.equal(seen[0], seen[1])
    assert torch.cat(seen[1:]).unique(dim=0).shape[0] == 40
