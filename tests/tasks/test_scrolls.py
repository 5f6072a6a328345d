"""SCROLLS as a task: rows, generation that goes on where it was killed, scores, checkpoints that do
not fit.
"""

import json

import pytest
import torch

from tape_exp.data import scrolls
from tape_exp.data.batch import IGNORE
from tape_exp.runs.directory import RunDirectory
from tape_exp.settings.compose import compose_config
from tape_exp.settings.errors import ConfigError
from tape_exp.tasks.base import epoch_order
from tape_exp.tasks.scrolls import Predictions
from tape_exp.training.assembly import make_task
from tape_exp.training.run import run
from tests.conftest import SMALL, on_text

WORDS = ["task.tokenizer.kind=byte", "trainer=cpu", "trainer.progress=none", "logger=none"]
WORDS += [word for word in SMALL if "batch" not in word]
SHORT = [
    "task.max_length=512",
    "task.new_tokens=12",
    "task.optim.batch=4",
    "task.validation_rows=4",
    "task.optim.max_steps=2",
]


@pytest.fixture
def scrolls_run(tmp_path, text_folder):
    def call(*overrides: str, dataset: str = "qasper"):
        words = ["task=scrolls", f"task.dataset={dataset}", *WORDS, *SHORT, f"runs={tmp_path}/runs"]
        cfg = compose_config([*words, f"cache={text_folder}/cache", *overrides])
        return cfg, run(cfg)

    return call


def prepared(text_folder, dataset: str, *overrides: str):
    words = [
        "task=scrolls",
        f"task.dataset={dataset}",
        *WORDS,
        *SHORT,
        f"cache={text_folder}/cache",
        *overrides,
    ]
    task = make_task(compose_config(words))
    task.prepare_data()
    return task


@pytest.mark.parametrize("dataset", scrolls.DATASETS)
def test_rows_hold_question_and_answer_and_the_loss_is_on_the_answer(dataset, text_folder):
    task = prepared(text_folder, dataset)
    batch = task.train_batch(0, 6)
    assert batch["inputs"].shape == (6, 511)
    for place, (inputs, labels) in enumerate(zip(batch["inputs"], batch["labels"], strict=True)):
        number, reference = task.pairs[epoch_order(0, 0, len(task.pairs))[place]]
        example = task.examples[number]
        answer = labels[labels != IGNORE]
        assert int(answer[-1]) == task.tokenizer.eos
        told = task.tokenizer.decode(answer[:-1].tolist())
        assert example.references[reference].startswith(told.strip())
        assert len(told) > 2
        assert example.closing.strip() in task.tokenizer.decode(inputs.tolist())


def test_every_reference_is_a_row_and_samples_are_functions_of_seed_and_k(text_folder):
    task, again = prepared(text_folder, "narrative_qa"), prepared(text_folder, "narrative_qa")
    assert len(task.pairs) == sum(len(e.references) for e in task.examples) > len(task.examples)
    n = len(task.pairs)
    batch = task.train_batch(n - 4, 8)
    assert torch.equal(again.train_batch(n, 4)["inputs"], batch["inputs"][4:])


def test_every_question_is_answered_once_and_scored(scrolls_run):
    cfg, record = scrolls_run("model=tape")
    folder = RunDirectory(cfg).artifacts
    lines = [json.loads(line) for line in (folder / "predictions.jsonl").read_text().splitlines()]
    examples = scrolls.read("qasper", "validation")
    assert sorted(line["id"] for line in lines) == sorted(e.id for e in examples)
    table = json.loads((folder / "predictions.json").read_text())
    assert [row["id"] for row in table] == [e.id for e in examples]
    assert set(table[0]) == {"id", "question", "references", "prediction", "f1"}
    metrics = record["metrics"]
    assert metrics["builtin_qasper/f1"] == pytest.approx(
        sum(row["f1"] for row in table) / len(table)
    )
    assert (
        metrics["builtin_qasper/f1_low"]
        <= metrics["builtin_qasper/f1"]
        <= metrics["builtin_qasper/f1_high"]
    )
    assert [row["id"] for row in record["samples"]] == [e.id for e in examples][:3]


def test_killed_generation_goes_on(scrolls_run):
    """Predictions that were written are not made again, those that were not are; a line cut short
    counts as not written.
    """
    cfg, _ = scrolls_run("model=rope", "task.rows_per_batch=16")
    folder = RunDirectory(cfg)
    lines = (folder.artifacts / "predictions.jsonl").read_text().splitlines(keepends=True)
    kept = [
        json.dumps({"id": json.loads(line)["id"], "prediction": "kept"}) + "\n"
        for line in lines[:20]
    ]
    (folder.artifacts / "predictions.jsonl").write_text("".join(kept) + lines[20][:9])
    (folder.path / "DONE").unlink()
    scrolls_run("model=rope", "task.rows_per_batch=16")
    after = Predictions(folder.artifacts).texts
    assert sum(text == "kept" for text in after.values()) == 20
    made = {json.loads(line)["id"]: json.loads(line)["prediction"] for line in lines}
    assert set(after) == set(made)
    assert all(after[id_] == text for id_, text in made.items() if after[id_] != "kept")


def test_answers_of_other_weights_are_not_kept(scrolls_run):
    """Where the last checkpoint and the record are lost, the run is trained anew."""
    words = "model=rope", "task.optim.max_steps=1", "task.new_tokens=1"
    cfg, record = scrolls_run(*words)
    folder = RunDirectory(cfg)
    answers = folder.artifacts / "predictions.jsonl"
    before = answers.read_text()
    answers.write_text(before.replace('"prediction": "', '"prediction": "of other weights '))
    for path in (folder.path / "DONE", *folder.checkpoints.iterdir()):
        path.unlink()
    _, after = scrolls_run(*words)
    assert (answers.read_text(), after["metrics"]) == (before, record["metrics"])


def test_damaged_answers_are_made_again(tmp_path):
    lines = b"null", b'{"id": "a"}', b'{"id": "b", "pred\xff'
    whole = b'{"id": "c", "prediction": "yes"}'
    (tmp_path / "predictions.jsonl").write_bytes(b"\n".join([*lines, whole]))
    assert Predictions(tmp_path).texts == {"c": "yes"}


def test_it_begins_from_a_run_of_ours_and_refuses_another(scrolls_run, text_folder, tmp_path):
    words = [
        "task=c4",
        *on_text(text_folder),
        "task.optim.max_steps=2",
        "task.optim.batch=4",
        *WORDS[-3:],
        f"runs={tmp_path}/runs",
    ]
    begun = compose_config(
        [*words, "model=tape", "task.tokenizer.kind=bpe", "task.tokenizer.vocab=300"]
    )
    run(begun)
    cfg, record = scrolls_run("model=tape", "task.init_from=c4")
    assert record["config"]["checkpoint"] == "c4"
    assert (RunDirectory(cfg).path / "tokenizer.json").read_text() == (
        RunDirectory(begun).path / "tokenizer.json"
    ).read_text()
    with pytest.raises(ConfigError, match=r"another model, .*position"):
        scrolls_run("model=rope", f"task.init_from={RunDirectory(begun).path}")
    with pytest.raises(ConfigError, match="nor a task with a finished run"):
        scrolls_run("model=rope", "task.init_from=c4")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["task.dataset=qualty"], r"task\.dataset=qualty is not known\. Did you mean 'quality'"),
        (
            ["task.max_length=40"],
            r"task\.max_length=40 is too short for qasper .*task\.max_length=\d+",
        ),
        (["scale.text=local", "task.path=/nowhere"], r"holds none of qasper/train\.jsonl"),
    ],
)
def test_bad_input_says_what_to_change(overrides, message, scrolls_run):
    with pytest.raises(ConfigError, match=message):
        scrolls_run("model=rope", *overrides)
