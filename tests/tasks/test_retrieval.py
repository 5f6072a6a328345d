"""Retrieval: an oracle that reads only the text finds every answer, prompts fill their length, and
what is counted is what was found.
"""

import re

import pytest
import torch

from tape_exp.data.batch import IGNORE
from tape_exp.tasks import questions
from tests.conftest import prepared, silent

TASK = "retrieval_training"


def oracle(text: str) -> str:
    """The answer, from what a prompt says."""
    text, asked = text.rsplit("\n", 1)
    key = re.fullmatch(r"What is the number of (\w+)\? The number of \1 is", asked).group(1)
    (number,) = re.findall(rf"One number of {key} is (\d+)\.", text)
    return number


def test_whoever_reads_the_text_finds_everything(text_folder, monkeypatch):
    """Prompts fill their length, and the sentence is at its depth."""
    words = ["task.lengths=[400,600]", "task.trials=6", "task.items=4", "task.digits=5"]
    task = prepared(text_folder, TASK, *words, "task.train_length=400")

    def generate(decoder, prompts, new_tokens, eos, sampler):
        texts = [f"It is {oracle(task.tokenizer.decode(ids))}" for ids in prompts]
        rows = [task.tokenizer.encode_documents([text])[0].tolist() for text in texts]
        return [row if len(prompts[0]) < 400 else [] for row in rows]

    monkeypatch.setattr(questions, "generate", generate)
    found = task.evaluate(torch.nn.ModuleDict({"decoder": torch.nn.Identity()}), silent)
    lengths = {"retrieval/accuracy": 50, "retrieval/accuracy@400": 100, "retrieval/accuracy@600": 0}
    lengths |= {"id/accuracy": 100, "ood/accuracy": 0}
    assert {name: found.metrics[name] for name in lengths} == lengths
    assert found.heatmap.values.tolist() == [[100, 0]] * 5
    assert (row := found.tables["retrieval"][0])["answer"].endswith(row["wanted"])
    for number, (ids, question) in enumerate(zip(task.prompts, task.questions, strict=True)):
        room = task.lengths[number // 6] - task.new_tokens
        assert room - 25 < len(ids) <= room
        assert ids[0] == task.tokenizer.bos
        text = task.tokenizer.decode(ids)
        assert oracle(text) == question.wanted
        assert text.count("One number of") == 4
        place = text.index(f"is {question.wanted}") / text.index("\nWhat")
        assert place == pytest.approx(question.depth, abs=0.25)


def test_training_rows_are_questions_with_their_answers(text_folder):
    task = prepared(
        text_folder,
        TASK,
        "task.items=4",
        "task.trials=1",
        "task.train_length=400",
        "task.lengths=null",
    )
    batch = task.train_batch(3, 8)
    assert batch["inputs"].shape == (8, 400)
    again = task.train_batch(5, 1)
    assert all(torch.equal(batch[key][2:3], again[key]) for key in batch)
    lengths, keys = set(), set()
    for inputs, labels in zip(batch["inputs"], batch["labels"], strict=True):
        scored = (labels != IGNORE).nonzero().flatten()
        answer = labels[scored].tolist()
        text = task.tokenizer.decode(inputs[: scored[0] + 1].tolist())
        assert scored.tolist() == list(range(scored[0], scored[-1] + 1))
        assert answer.pop() == task.tokenizer.eos
        assert task.tokenizer.decode(answer) == f" {oracle(text)}."
        lengths.add(len(scored) + int(scored[0]))
        keys.add(text.count("One number of"))
    assert len(lengths) > 4
    assert 1 < len(keys) <= 4
    assert len(task.validation_batches()[0]["labels"]) == 64
    assert task.lengths == [400, 800, 1600]
