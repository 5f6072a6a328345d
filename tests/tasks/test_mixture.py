"""Text mixed with questions: rows in turn, functions of (seed, k), of which only answers count."""

import pytest
import torch

from tape_exp.data.batch import IGNORE, loss_weights
from tape_exp.settings.compose import compose_config
from tape_exp.training.from_config import make_task
from tape_exp.training.module import loss_sum
from tests.conftest import on_text

ROWS = "task.rows={text: 2, passkey: 2, fact: 2}"


def prepared(text_folder, *overrides):
    words = [
        "task=mixture",
        ROWS,
        *on_text(text_folder, "pg19_proof_pile"),
        "task.train_length=256",
    ]
    task = make_task(
        compose_config([*words, "task.train_length=256", "task.answer_weight=12.0", *overrides])
    )
    task.prepare_data()
    return task


def answers_of(task, batch):
    return [task.decode(row[row != IGNORE].tolist()).strip() for row in batch["labels"]]


def test_rows_come_in_turn_and_only_answers_of_questions_count(text_folder):
    task = prepared(text_folder)
    batch = task.train_batch(0, 12)
    scored = (batch["labels"] != IGNORE).sum(1).tolist()
    assert [n == 256 for n in scored] == [True, True, *[False] * 4] * 2
    answers = answers_of(task, batch)
    assert answers[2].rstrip(".").isdigit()
    prompt = task.decode(batch["inputs"][2].tolist())
    assert f"{answers[2].rstrip('.')} is the pass key" in prompt
    weights = loss_weights(batch)
    assert weights[0].unique().tolist() == [1]
    assert sorted(weights[2].unique().tolist()) == [0, 12]


def test_a_short_validation_split_is_repeated(text_folder):
    (batch,) = prepared(text_folder, "task.validation_rows=1").validation_batches()
    assert torch.equal(batch["inputs"][0], batch["inputs"][1])
    assert len(batch["inputs"]) == 6


def test_the_loss_is_the_weighted_mean(text_folder):
    batch = prepared(text_folder).train_batch(0, 6)
    logits = torch.randn(*batch["labels"].shape, 600, requires_grad=True)
    labels = batch["labels"].clamp(max=599)
    log_p = logits.log_softmax(-1).gather(-1, labels.clamp(min=0)[..., None])[..., 0]
    wanted = -(log_p * loss_weights(batch)).sum()
    loss = loss_sum(logits, labels, batch["weights"])
    assert loss.item() == pytest.approx(wanted.item(), rel=1e-5)
    (gradient,), (right,) = (torch.autograd.grad(x, logits) for x in (loss, wanted))
    assert torch.allclose(gradient, right, atol=1e-5)
