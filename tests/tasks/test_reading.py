"""Reading as a task: its rows, how filler comes in, and what is tested."""

import pytest
import torch

from tape_exp.data.batch import IGNORE
from tape_exp.data.builtin.facts import SUBJECTS
from tape_exp.settings.compose import compose_config
from tape_exp.settings.errors import ConfigError
from tape_exp.training.from_config import make_decoder, make_task
from tape_exp.training.on_device import OnDevice
from tests.conftest import SMALL, silent

SHORT = ["task.max_length=640", "task.tokenizer.kind=byte", "task.questions=2", "trainer=cpu"]
SHORT += ["task.optim.batch=4", "task.optim.max_steps=8", "task.test_questions=3", *SMALL[:4]]


def prepared(text_folder, dataset: str, *overrides: str):
    words = ["task=reading", f"task.dataset={dataset}", *SHORT, f"cache={text_folder}/cache"]
    cfg = compose_config([*words, *overrides])
    task = make_task(cfg)
    task.prepare_data()
    return task, cfg


@pytest.mark.parametrize("dataset", SUBJECTS)
def test_the_loss_is_on_answers_that_the_document_holds(dataset, text_folder):
    task, _ = prepared(text_folder, dataset)
    batch = task.train_batch(0, 32)
    assert batch["inputs"].shape == (32, 639)
    for inputs, labels in zip(batch["inputs"], batch["labels"], strict=True):
        scored = labels[labels != IGNORE].tolist()
        answers = task.decode(scored).replace("</s>", "").split()
        document = task.decode(inputs.tolist()).partition("Question:")[0]
        assert scored.count(task.tokenizer.eos) == 2
        assert len(answers) == 2
        assert all(f" {answer}." in document for answer in answers)


def test_filler_comes_in_after_half_of_the_training(text_folder):
    task, _ = prepared(text_folder, "qasper")
    assert [task.filler(4 * step) for step in (0, 4, 5, 6, 7)] == [0, 0, 0.5, 1, 1]
    lengths = [(row != task.tokenizer.eos).sum() for row in task.train_batch(0, 32)["inputs"]]
    assert max(lengths[:16]) < max(lengths[16:])


def test_rows_are_functions_of_seed_and_number(text_folder):
    task, _ = prepared(text_folder, "quality")
    whole = task.train_batch(20, 6)["inputs"]
    parts = [task.train_batch(20, 2)["inputs"], task.train_batch(22, 4)["inputs"]]
    assert torch.equal(whole, torch.cat(parts))
    other, _ = prepared(text_folder, "quality", "seed=1")
    assert not torch.equal(other.train_batch(20, 6)["inputs"], whole)
    assert other.prompts == task.prompts


@torch.no_grad()
def test_the_test_asks_at_the_trained_length_and_at_twice(text_folder):
    task, cfg = prepared(text_folder, "narrative_qa", "model=nope")
    for id_, prompt in task.prompts.items():
        longest = (2 if id_.startswith("twice/") else 1) * 640 - task.new_tokens
        assert longest - 60 < len(prompt) <= longest
        (value,) = task.tested[id_].references
        assert f" {value}." in task.decode(prompt)
    model = OnDevice(make_decoder(cfg, task).eval(), torch.device("cpu"))
    found = task.evaluate(model, silent)
    assert found.metrics.keys() == {*task.metric_names()}
    assert len(found.tables["predictions"]) == 6


def test_facts_without_filler_that_do_not_fit_are_refused(text_folder):
    """In the first half of training a document is its facts."""
    task, _ = prepared(text_folder, "quality")
    task.max_length = 280
    with pytest.raises(ConfigError, match=r"task\.max_length=280 is too short for four facts"):
        task.train_batch(0, 16)


def test_a_length_that_holds_no_document_is_refused(text_folder):
    with pytest.raises(ConfigError, match=r"task\.max_length=64 is too short for four facts"):
        prepared(text_folder, "qasper", "task.max_length=64")
