"""SCROLLS as a task: rows, answers and scores, the run that it begins from."""

import pytest
import torch

import tape_exp as te
from tape_exp.data import scrolls
from tape_exp.data.batch import IGNORE
from tape_exp.runs.directory import RunDirectory
from tape_exp.settings.compose import compose_config
from tape_exp.tasks.loading import epoch_order
from tape_exp.training.from_config import make_decoder, make_task
from tape_exp.training.on_device import OnDevice
from tests.conftest import SMALL, silent

SHORT = ["task.max_length=512", "task.new_tokens=12", "task.optim.batch=4", "trainer=cpu"]
SHORT += ["task.validation_rows=4", "task.tokenizer.kind=byte", *SMALL[:4]]


def configured(text_folder, dataset: str, *overrides: str):
    words = ["task=scrolls", f"task.dataset={dataset}", *SHORT, f"cache={text_folder}/cache"]
    return compose_config([*words, *overrides])


def prepared(text_folder, dataset: str, *overrides: str):
    cfg = configured(text_folder, dataset, *overrides)
    task = make_task(cfg, RunDirectory(cfg).start)
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


@pytest.mark.slow
@torch.no_grad()
def test_every_question_is_answered_once_and_scored(text_folder):
    cfg = configured(text_folder, "qasper", "model=tape", "task.rows_per_batch=7")
    task = make_task(cfg)
    task.prepare_data()
    model = OnDevice(make_decoder(cfg, task).eval(), torch.device("cpu"))
    found = task.evaluate(model, silent)
    table, f1 = found.tables["predictions"], "builtin_qasper/f1"
    assert [row["id"] for row in table] == [e.id for e in scrolls.read("qasper", "validation")]
    assert set(table[0]) == {"id", "question", "references", "prediction", "f1"}
    assert found.metrics[f1] == pytest.approx(sum(row["f1"] for row in table) / len(table))
    assert found.metrics[f"{f1}_low"] <= found.metrics[f1] <= found.metrics[f"{f1}_high"]
    assert [row["id"] for row in found.samples] == [row["id"] for row in table][:3]
    few = task.evaluate(model, silent, limit=1).tables["predictions"]
    assert len(few) == 7
    assert all(row in table for row in few)


def test_without_fine_tuning_the_weights_answer_as_they_are(text_folder, tmp_path):
    words = ["task=scrolls", "task.dataset=quality", "task.fine_tune=false", *SHORT, "logger=none"]
    folders = [f"cache={text_folder}/cache", f"runs={tmp_path}"]
    run = te.train(*words, *folders, "debug=one_batch", quiet=True)
    assert {name.partition("/")[0] for name in run.record["metrics"]} == {"builtin_quality"}
    assert not [*tmp_path.rglob("*.ckpt")]
