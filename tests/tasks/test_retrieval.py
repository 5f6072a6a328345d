"""Retrieval: an oracle that reads only the text finds every answer, prompts fill their length, and
what is counted is what was found.
"""

import re
from collections import Counter

import numpy as np
import pytest
import torch

from tape_exp.data.batch import IGNORE
from tape_exp.data.retrieval import FILLER, KINDS, WORDS
from tape_exp.runs.evaluation import wilson
from tape_exp.settings.errors import ConfigError
from tape_exp.tasks import questions
from tape_exp.tasks.retrieval import effective_length
from tape_exp.training.assembly import make_decoder, make_task
from tests.conftest import prepared, silent, text_config

TRAINING = "retrieval_training"
LENGTHS = "task.lengths=[760,1100]"


def oracle(text: str) -> set[str]:
    """The answer, from what a prompt says."""
    text, asked = text.rsplit("\n", 1)
    if found := re.search(r"(\d+) most frequent words are$", asked):
        counts = Counter(re.findall("[a-z]+", text))
        count = int(found.group(1))
        ranked = counts.most_common(count + 1)
        assert ranked[count - 1][1] > ranked[count][1] if len(ranked) > count else True
        return {word for word, _ in ranked[:count]}
    if found := re.search(r"the value (\d+) are$", asked):
        before = dict(re.findall(r"Let (\w+) be (\w+)\.", text))

        def value(name):
            return value(before[name]) if name in before else name

        return {name for name in before if value(name) == found.group(1)}
    keys = re.fullmatch(r"What .* numbers? of (.*)\? The numbers? of \1 (?:is|are)", asked).group(1)
    told = re.findall(r"One number of (\w+) is (\d+)\.", text)
    return {number for key, number in told if key in re.findall(r"\w+", keys.replace(" and ", " "))}


@pytest.fixture
def ask(text_folder, monkeypatch):
    """Evaluate a task with answers from a function of the prompt's text instead of a model's."""

    def call(answer, *overrides: str, limit: int | None = None):
        task = prepared(text_folder, "retrieval", *overrides)

        def generate(decoder, prompts, new_tokens, sampler):
            texts = [answer(task.tokenizer.decode(p)) for p in prompts]
            rows = [task.tokenizer.encode([text])[0].tolist() for text in texts]
            assert max(map(len, rows)) <= new_tokens
            return rows

        monkeypatch.setattr(questions, "generate", generate)
        model = torch.nn.ModuleDict({"decoder": torch.nn.Identity()})
        return task, task.evaluate(model, silent, limit)

    return call


def told(text: str) -> str:
    return " and ".join(sorted(oracle(text))).upper()


@pytest.mark.parametrize("kind", KINDS)
def test_whoever_reads_the_text_finds_everything_and_prompts_fill_their_length(kind, ask):
    task, found = ask(told, f"task.kind={kind}", LENGTHS, "task.trials=6")
    assert found.metrics["retrieval/accuracy"] == 100
    assert found.metrics["retrieval/effective_length"] == 1100
    assert found.metrics["retrieval/effective_length_low"] == 0  # six trials show too little
    assert np.all(found.heatmap.values == 100)
    assert len(found.heatmap.values) == (5 if kind == "multi_key" else 1)
    for number, (ids, question) in enumerate(zip(task.prompts, task.questions, strict=True)):
        room = task.lengths[number // 6] - task.budget(task.lengths[number // 6])
        assert room - (100 if kind == "common_words" else 30) < len(ids) <= room
        assert ids[0] == task.tokenizer.bos
        text = task.tokenizer.decode(ids)
        assert oracle(text) == set(question.wanted)
        assert len(question.wanted) == {"multi_key": 1, "variable_tracking": 5}.get(
            kind, KINDS[kind].items
        )
        if kind == "multi_key":
            place = text.index(f"is {question.wanted[0]}") / text.index("\nWhat")
            assert place == pytest.approx(question.depth, abs=0.2)
    row = found.tables["retrieval"][-1]
    assert (row["length"], row["score"]) == (1100, 1)
    assert row["answer"].lower().split(" and ") == sorted(row["wanted"].split(", "))


@pytest.mark.parametrize("kind", KINDS)
def test_training_rows_are_questions_with_their_answers(kind, text_folder):
    words = [f"task.kind={kind}", "task.items=null", "task.lengths=null", "task.trials=1"]
    task = prepared(text_folder, TRAINING, *words, "task.train_length=900")
    batch = task.train_batch(3, 4)
    assert batch["inputs"].shape == (4, 900)
    again = task.train_batch(5, 1)
    assert all(torch.equal(batch[key][2:3], again[key]) for key in batch)
    lengths = set()
    for inputs, labels in zip(batch["inputs"], batch["labels"], strict=True):
        scored = (labels != IGNORE).nonzero().flatten()
        answer = labels[scored].tolist()
        text = task.tokenizer.decode(inputs[: scored[0] + 1].tolist())
        assert scored.tolist() == list(range(scored[0], scored[-1] + 1))
        assert answer.pop() == task.tokenizer.eos
        assert set(re.findall(r"\w+", task.tokenizer.decode(answer))) == oracle(text)
        lengths.add(len(scored) + int(scored[0]))
    assert len(lengths) > 1
    assert task.trains
    assert len(task.validation_batches()[0]["labels"]) == 64
    assert task.lengths == [450, 900, 1800, 3600][kind == "common_words" :]  # where 450 hold none


def test_who_sees_only_the_end_has_an_effective_length(ask):
    """Shares count; the interval is that of the intervals of the accuracies."""
    overrides = ["task.kind=multi_value", "task.lengths=[400,1200,2000]", "task.trials=20"]
    task, found = ask(lambda text: told(text[-700:]), *overrides, "task.threshold=60")
    metrics = found.metrics
    shares = {
        n: np.mean([row["score"] for row in found.tables["retrieval"] if row["length"] == n])
        for n in task.lengths
    }
    assert shares[400] == 1 > shares[1200] > shares[2000] > 0
    for n, share in shares.items():
        assert metrics[f"retrieval/accuracy@{n}"] == pytest.approx(100 * share)
        ends = [metrics[f"retrieval/accuracy@{n}{end}"] for end in ("_low", "_high")]
        assert ends == pytest.approx(wilson(20 * share, 20))
    for end in ("", "_low", "_high"):
        passed = [metrics[f"retrieval/accuracy@{n}{end}"] >= 60 for n in task.lengths]
        last = ([*passed, False]).index(False)
        assert metrics[f"retrieval/effective_length{end}"] == [0, *task.lengths][last]
    _, found = ask(told, *overrides, limit=1)
    assert "retrieval/accuracy@1200" not in found.metrics
    assert found.heatmap.to_rows() == [[100, None, None]]


@pytest.mark.parametrize(
    ("accuracy", "reached"),
    [({8: 90, 16: 85.6, 32: 85}, 16), ({8: 80, 16: 90}, 0), ({16: 90, 8: 100}, 16)],
)
def test_the_effective_length_ends_before_the_first_failure(accuracy, reached):
    assert effective_length(accuracy, 85.6) == reached


def test_no_word_is_a_part_of_another_or_of_what_surrounds_it():
    surroundings = " ".join(FILLER).lower()
    assert len(set(WORDS)) == len(WORDS)
    for word in WORDS:
        assert [other for other in WORDS if word in other] == [word]
        assert word not in surroundings


def test_a_model_learns_one_and_is_asked(text_run):
    overrides = ["task.train_length=200", "task.lengths=[200,260]"]
    overrides += ["task.optim.max_steps=2", "task.optim.batch=4"]
    _, record = text_run(*overrides, task=TRAINING)
    assert record["steps"] == 2
    assert {"val/exact_match", "retrieval/effective_length"} <= set(record["metrics"])
    for split, length in (("id", 200), ("ood", 260)):
        at_length = record["metrics"][f"retrieval/accuracy@{length}"]
        assert record["metrics"][f"{split}/accuracy"] == at_length
    _, record = text_run(f"checkpoint={TRAINING}", "task.items=1", task="retrieval")
    assert record["steps"] == 0


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["task.kind=multikey"], r"task\.kind=multikey is not known\. Did you mean 'multi_key'"),
        (["task.threshold=101"], r"task\.threshold=101 should be less than or equal to 100"),
        (["task.train_length=0"], r"task\.train_length=0 should be greater"),
        (["task.items=197"], r"takes 197 different words for so many keys, .* 196; .*=196 would"),
        (["task.digits=2", "task.items=91"], r"only 90 numbers of task\.digits=2; .*=3 would do"),
        (["task.digits=1"], r"task\.digits=1 should be greater than or equal to 2"),
        (["task.kind=variable_tracking", "task.items=98"], r"198 different .*items=97 would do"),
        (["task.lengths=[100,400]"], r"\[100, 400\]: 100 tokens are too few .*; \d+ would do"),
        (["task.lengths=null"], r"tokens are too few for a question .*; \d+ would do"),
    ],
)
def test_bad_values_name_the_key(overrides, message, text_folder):
    with pytest.raises(ConfigError, match=message) as error:
        prepared(text_folder, "retrieval", *overrides)
    advised = re.search(r"(\d+) would do", str(error.value))
    if advised and "items" not in overrides[-1]:
        assert prepared(text_folder, "retrieval", f"task.lengths=[{advised.group(1)}]").prompts


def test_training_rows_that_are_too_short_are_refused(text_folder):
    with pytest.raises(ConfigError, match=r"task\.train_length=90 are too few for") as error:
        prepared(text_folder, TRAINING, "task.train_length=90")
    enough = re.search(r"(\d+) would do", str(error.value)).group(1)
    assert prepared(text_folder, TRAINING, f"task.train_length={enough}").prompts


def test_a_length_that_the_model_cannot_see_is_refused(text_folder):
    cfg = text_config(text_folder, "retrieval", "model.length=300", model="learned")
    with pytest.raises(ConfigError, match=r"model\.length=300 .* 320"):
        make_decoder(cfg, make_task(cfg))
