"""Pass keys: questions that depend on the seed alone, prompts that fill their length, answers and
where they are counted.
"""

import re

import numpy as np
import pytest
import torch

from tape_exp.settings.errors import ConfigError
from tape_exp.tasks import questions
from tape_exp.tasks.passkey import HIGHEST, KEY_LINE, QUESTION, Passkey, key_question
from tape_exp.tasks.retrieval import RetrievalTraining
from tape_exp.training.from_config import make_decoder, make_task
from tests.conftest import on_text, prepared, silent, text_config
from tests.tasks.in_two import evaluate, evaluate_in_two


@pytest.fixture
def ask(text_folder, monkeypatch):
    """Evaluate a task with answers from a function of the prompt's text instead of a model's."""

    def call(answer, *overrides: str, limit: int | None = None):
        task = prepared(text_folder, "passkey", *overrides)

        def generate(decoder, prompts, new_tokens, eos, sampler):
            assert [*eos] == [task.eos, task.tokenizer.bos], "they end the answer"
            lengths = list(map(len, prompts))
            assert max(lengths) - min(lengths) <= 20  # of one length, so nearly no padding
            texts = [answer(task.tokenizer.decode(p)) for p in prompts]
            return [task.tokenizer.encode_documents([text])[0].tolist() for text in texts]

        monkeypatch.setattr(questions, "generate", generate)
        model = torch.nn.ModuleDict({"decoder": torch.nn.Identity()})
        return task, task.evaluate(model, silent, limit)

    return call


def told(text: str) -> str:
    found = re.search(r"The pass key is (\d+)\.", text)
    return f" {found.group(1)}. Good" if found else " unknown"


def test_a_question_is_a_function_of_seed_length_and_number(text_folder):
    task = make_task(text_config(text_folder, "passkey"))
    asked = [task.question(512, k) for k in range(1000)]
    again = [task.question(512, k) for k in range(1000)]
    assert [(q.wanted, q.depth) for q in asked] == [(q.wanted, q.depth) for q in again]
    others = {task.question(length, k).wanted for length in (64, 65) for k in (0, 1)}
    task.seed = 1
    others |= {task.question(length, k).wanted for length in (64, 65) for k in (0, 1)}
    assert len(others) == 8
    keys, depths = np.array([(int(q.wanted), q.depth) for q in asked]).T
    assert 1 <= keys.min() < keys.max() <= HIGHEST
    assert keys.mean() == pytest.approx(HIGHEST / 2, rel=0.05)  # standard error 1.8 %
    assert np.histogram(depths, bins=5, range=(0, 1))[0].tolist() == [200] * 5
    assert np.histogram(depths * 5 % 1, bins=2, range=(0, 1))[0].min() > 400


@pytest.mark.parametrize("kind", ["byte", "bpe"])
def test_prompts_fill_their_length_and_hold_the_key_at_its_depth(kind, text_folder):
    words = [f"task.tokenizer.kind={kind}", "task.tokenizer.vocab=300"]
    task = prepared(text_folder, "passkey", *words, "task.lengths=[192,700]", "task.trials=10")
    for number, (question, ids) in enumerate(zip(task.questions, task.prompts, strict=True)):
        room = task.lengths[number // 10] - task.new_tokens
        text = task.tokenizer.decode(ids)
        line = KEY_LINE.format(key=question.wanted)
        assert ids[0] == task.tokenizer.bos
        assert text.count(line) == 1
        assert text.endswith(f"\n{QUESTION}")
        rest = text.replace(line, "")
        assert not re.search(r"\d", rest)
        sentences = rest.removesuffix(QUESTION).count(".")
        assert question.write(sentences) == text
        assert len(ids) <= room < len(task.writer(question)(sentences + 1))
        before = text[: text.index(line)].count(".")
        assert abs(before / sentences - question.depth) <= 1 / sentences


@pytest.mark.parametrize("task", [Passkey, RetrievalTraining])
@pytest.mark.parametrize(
    ("answer", "correct"),
    [
        ("is 123. And 77", True),
        ("77, then 123", False),
        ("1234", False),
        ("1 23", False),
        ("", False),
    ],
)
def test_the_first_number_counts(task, answer, correct):
    assert task.is_right(None, key_question(123, 0.5), answer) is correct


def test_whoever_reads_the_text_finds_every_key(ask):
    task, found = ask(told, "task.trials=7", "task.rows_per_batch=3")
    assert found.metrics["passkey/accuracy"] == 100
    assert [
        found.metrics[f"passkey/accuracy@{n}{end}"] for n in (160, 192) for end in ("", "_high")
    ] == [100] * 4
    assert found.metrics["passkey/accuracy@160_low"] == pytest.approx(64.57, abs=0.01)
    keys = [question.wanted for question in task.questions]
    asked = list(zip([160] * 7 + [192] * 7, keys, strict=True))
    assert [(r["length"], r["wanted"]) for r in found.tables["passkey"]] == asked
    assert np.all(found.heatmap.values == 100)
    assert 3 <= len(found.samples) <= 4


def test_each_length_may_have_its_own_number_of_questions(ask):
    """The same questions as with one number for all, and fewer of them where it is smaller."""
    words = ["task.lengths=[192,300,400]", "task.rows_per_batch=3"]
    _, every = ask(told, *words, "task.trials=7")
    _, some = ask(told, *words, "task.trials=[7,2,4]")
    kept = {192: 7, 300: 2, 400: 4}
    rows = [row for row in every.tables["passkey"] if kept[row["length"]] > 0]
    expected = [row for length in kept for row in rows if row["length"] == length]
    numbered = [(row, n % 7) for n, row in enumerate(expected)]
    assert some.tables["passkey"] == [row for row, n in numbered if n < kept[row["length"]]]
    assert some.metrics["passkey/accuracy@300_low"] < every.metrics["passkey/accuracy@300_low"]


@pytest.mark.parametrize(
    ("lengths", "trials"), [("[192,300]", "[7,2,4]"), ("[300,192]", "[7,2]"), ("[192]", "[]")]
)
def test_numbers_that_fit_no_lengths_are_refused(text_folder, lengths, trials):
    with pytest.raises(ConfigError, match=r"task\.trials"):
        prepared(text_folder, "passkey", f"task.lengths={lengths}", f"task.trials={trials}")


def test_who_sees_only_the_end_finds_the_deep_keys(ask):
    """Rows of the heatmap are depths from the top, columns lengths; what is out of sight is
    wrong.
    """
    _, found = ask(
        lambda text: told(text[-600:]),
        "task.lengths=[1200,300]",
        "task.trials=20",
        "task.depth_bins=4",
        "task.train_length=400",
    )
    heatmap = found.heatmap
    assert heatmap.columns == ["300", "1200"]
    assert heatmap.values[:, 0].tolist() == [100] * 4
    assert heatmap.values[[0, 1, 3], 1].tolist() == [0, 0, 100]
    assert heatmap.trained == (4, 1)
    shares = [
        np.mean([r["correct"] for r in found.tables["passkey"] if r["length"] == n])
        for n in (300, 1200)
    ]
    assert [found.metrics[f"passkey/accuracy@{n}"] for n in (300, 1200)] == [
        100 * share for share in shares
    ]
    assert np.mean(heatmap.values[:, 1]) == pytest.approx(100 * shares[1])


@pytest.mark.parametrize("model", ["rope", "tape", "randpe"])
def test_answers_are_greedy_whatever_the_batch(model, text_folder):
    """Cached and batched against a plain loop over the whole text."""
    cfg = text_config(text_folder, "passkey", "task.trials=3", model=model)
    task = make_task(cfg)
    task.prepare_data()
    decoder = make_decoder(cfg, task).eval()
    holder = torch.nn.ModuleDict({"decoder": decoder})
    found = {}
    for rows in (1, 2, 3):
        task.rows_per_batch = rows
        found[rows] = [row["answer"] for row in task.evaluate(holder, silent).tables["passkey"]]
    assert found[1] == found[2] == found[3]
    if model == "randpe":
        return  # its positions are drawn for the whole of the cache
    for ids, answer in list(zip(task.prompts, found[1], strict=True))[::3]:
        row = list(ids)
        for _ in range(task.new_tokens):
            row.append(int(decoder(torch.tensor([row]))[0, -1].argmax()))
        assert task.decode(row[len(ids) :]).strip() == answer


@pytest.mark.slow
def test_two_sharded_processes_ask_the_same(text_folder, tmp_path):
    """FSDP computes where all processes do: an odd number of batches must not leave one waiting."""
    words = ["task=passkey", *on_text(text_folder, "passkey"), "model=tape", "trainer=cpu"]
    words += ["task.lengths=[160]", "task.rows_per_batch=1"]
    alone = evaluate(words)
    assert evaluate_in_two(words, tmp_path, sharded=True) == [alone, alone]
