"""Pre-training: blocks of the corpus, the same for every model; checkpoints that other tasks begin
from; bad input.
"""

import json
import shutil
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch

from tape_exp.models.conformance import randomise
from tape_exp.models.decoder import Decoder
from tape_exp.models.layers import kinds_of
from tape_exp.runs.directory import RunDirectory
from tape_exp.runs.metrics import read_metrics
from tape_exp.settings.compose import compose_config
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.schema import Arch, Optim
from tape_exp.tasks.diagnostics.interventions import FACTORS, RESETS, interventions
from tape_exp.training.from_config import make_task
from tape_exp.training.on_device import OnDevice
from tests.conftest import make_decoder, on_text


def prepared(text_folder, *overrides, task="c4"):
    made = make_task(compose_config([f"task={task}", *on_text(text_folder, task), *overrides]))
    made.prepare_data()
    return made


def stopped_after_two_steps(directory):
    (directory.path / "DONE").unlink()
    (directory.checkpoints / "step00000003.ckpt").unlink()


def test_an_epoch_shows_every_block_once_and_the_next_in_another_order(text_folder):
    task = prepared(text_folder)
    n = task.blocks
    assert n == (len(task.corpus) - 1) // 32
    first, second = (task.train_batch(e * n, n)["inputs"].numpy() for e in (0, 1))
    whole = task.corpus[: n * 32].reshape(n, 32)
    assert not np.array_equal(first, whole)
    assert not np.array_equal(first, second)
    for epoch in (first, second):
        assert np.array_equal(np.sort(epoch, axis=0), np.sort(whole, axis=0))


def test_labels_are_the_next_tokens_across_blocks_and_epochs(text_folder):
    task = prepared(text_folder)
    batch = task.train_batch(task.blocks - 3, 6)
    assert torch.equal(batch["inputs"][:, 1:], batch["labels"][:, :-1])
    whole = task.corpus[:].tobytes()
    for row, label in zip(batch["inputs"], batch["labels"], strict=True):
        assert np.append(row.numpy(), label[-1]).tobytes() in whole


@pytest.mark.slow
def test_training_beats_the_unigram_baseline_and_waits_little_for_data(text_run):
    cfg, record = text_run(
        "model=rope",
        "task.optim.lr=3e-3",
        "task.arch.width=64",
        "task.arch.ffn=128",
        "task.tests.github.name=mine",
        steps=60,
    )
    metrics = record["metrics"]
    assert metrics["mine/perplexity@32"] < 0.7 * metrics["mine/unigram_perplexity"]
    assert metrics["val/perplexity"] == pytest.approx(np.exp(metrics["val/loss"]))
    assert metrics["shift/attention"] < 1e-2
    rows = read_metrics(RunDirectory(cfg).path / "metrics.jsonl")
    assert all(0 <= row["train/data_wait"] <= 100 for row in rows if "train/data_wait" in row)
    assert any("train/data_wait" in row for row in rows)


@pytest.mark.long
def test_a_checkpoint_scores_the_same_in_a_perplexity_task(text_run, tmp_path):
    """By a task's name, by the run's folder and by the file; the tokenizer is the run's own."""
    cfg, trained = text_run("model=tape", "task.tokenizer.kind=bpe", "task.tokenizer.vocab=300")
    folder = RunDirectory(cfg).path
    (checkpoint,) = folder.glob("checkpoints/step*.ckpt")
    for number, spec in enumerate(("c4", folder, checkpoint)):
        elsewhere = [f"runs={tmp_path}/{number}"] if number else []
        _, record = text_run("model=tape", f"checkpoint={spec}", *elsewhere, task="github")
        for length in (16, 32):
            key = f"github/perplexity@{length}"
            assert record["metrics"][key] == pytest.approx(trained["metrics"][key], rel=1e-6)
    assert record["config"]["checkpoint"] == checkpoint.name
    assert "/" not in json.dumps(record["config"]["task"]["text"]["path"])


def test_a_tokenizer_that_does_not_match_the_checkpoint(text_run, text_folder, tmp_path):
    """Another tokenizer.json under the same path: going on would mix two vocabularies."""
    made = prepared(text_folder).tokenizer
    path = tmp_path / "tokenizer.json"
    path.write_text(made.save())
    words = ["model=rope", "task.tokenizer.kind=file", f"task.tokenizer.path={path}"]
    cfg, _ = text_run(*words, "trainer.checkpoint_every=1", steps=3)
    stopped_after_two_steps(RunDirectory(cfg))
    content = json.loads(path.read_text())
    vocab = content["model"]["vocab"]
    vocab["a"], vocab["b"] = vocab["b"], vocab["a"]
    path.write_text(json.dumps(content))
    kept = RunDirectory(cfg).path / "tokenizer.json"
    before = kept.read_text()
    with pytest.raises(ConfigError, match=r"trained with another tokenizer than task\.tokenizer"):
        text_run(*words, steps=3)
    assert kept.read_text() == before


def test_a_corpus_that_changed_under_a_run(text_run, text_folder, tmp_path):
    shutil.copytree(text_folder, tmp_path / "copy", ignore=shutil.ignore_patterns("cache"))
    words = ["model=rope", f"task.text.path={tmp_path}/copy"]
    cfg, _ = text_run(*words, "trainer.checkpoint_every=1", steps=3)
    stopped_after_two_steps(RunDirectory(cfg))
    with (tmp_path / "copy" / "train.jsonl").open("a") as file:
        file.write(json.dumps({"text": "more"}) + "\n")
    with pytest.raises(ConfigError, match=r"other text than task\.text now holds"):
        text_run(*words, steps=3)


LISTS = {"train": ["*.jsonl"], "validation": ["b.jsonl"]}
PACKED = {"test": ["c.jsonl", "a.jsonl.gz"]}
CODE = {"meta.pile_set_name": "Code"}  # the test asks for Github


@pytest.mark.parametrize(
    ("text", "github", "refused"),
    [
        ({}, {}, None),
        ({"path": "a.jsonl"}, {}, r"task\.text: its split validation reads .*a\.jsonl"),
        ({"files": LISTS}, {}, r"task\.text: its split validation reads .*b\.jsonl"),
        (
            {},
            {"files": {"test": ["[ac].jsonl"]}},
            r"tests\.github: its split test reads .*a\.jsonl",
        ),
        ({}, {"files": PACKED}, r"its split test reads .*a\.jsonl\.gz"),
        ({}, {"path": "link.jsonl"}, r"its split test reads .*link\.jsonl"),
        ({"where": CODE}, {"path": "a.jsonl"}, None),
        ({"where": {"meta.size": 1}}, {"path": "a.jsonl"}, r"its split test reads .*a\.jsonl"),
        ({"source": "hub", "files": LISTS}, {}, r"its split validation reads b\.jsonl"),
        ({"source": "hub", "files": LISTS | {"validation": ["b/*.jsonl"]}}, {}, None),
    ],
)
def test_no_file_is_read_both_to_train_and_to_test(text, github, refused, tmp_path, monkeypatch):
    for name in ("a.jsonl", "b.jsonl", "c.jsonl", "a.jsonl.gz"):
        (tmp_path / name).write_text("")
    (tmp_path / "link.jsonl").symlink_to("a.jsonl")
    monkeypatch.chdir(tmp_path)
    task = make_task(compose_config(["task=c4", *on_text(tmp_path)]))
    files = {"train": ["a.jsonl"], "validation": ["b.jsonl"], "test": ["c.jsonl"]}
    task.text = task.validation = replace(task.text, **{"files": files} | text)
    task.tests["github"] = replace(task.tests["github"], **{"files": files} | github)
    with pytest.raises(ConfigError, match=refused) if refused else nullcontext():
        task.check_texts()


@pytest.mark.parametrize("key", ["task.text", "task.validation", "task.tests.github"])
def test_a_text_without_files_is_told_with_its_key(key, tmp_path, text_folder):
    words = ["+text@task.validation=pg19", *on_text(text_folder)]
    words += [f"task.validation.path={text_folder}", f"{key}.path={tmp_path / 'empty'}"]
    with pytest.raises(ConfigError, match=rf"Set {key}\.path to a folder with"):
        make_task(compose_config(["task=c4", *words])).prepare_data()


def test_paper_scale_is_the_papers():
    """155 M in units of 2^20, 5.24 B tokens, and the parameters that the paper counts."""
    cfg = compose_config(["task=c4", "scale=paper", "model=rope"])
    optim = Optim(**{k: tuple(v) if k == "betas" else v for k, v in cfg.task.optim.items()})
    assert optim.batch * optim.max_steps * cfg.task.train_length == 5_242_880_000
    assert optim.lr * optim.final_lr == pytest.approx(1e-7)
    assert optim.warmup + optim.decay == 1
    arch = Arch(**cfg.task.arch, vocab=32_000, max_length=1024, train_length=1024)
    with torch.device("meta"):
        assert Decoder(arch, kinds_of(cfg.model)).parameter_count() == 162_417_408


def test_what_a_model_writes_ends_where_it_begins_another_document(text_folder):
    """BOS separates the documents of pre-training, and EOS never occurs in them."""
    task = prepared(text_folder)
    row = [int(token) for token in task.train_batch(0, 4)["inputs"].flatten()]
    assert task.tokenizer.bos in row
    assert task.tokenizer.eos not in row
    assert {task.tokenizer.bos, task.tokenizer.eos} <= {*task.stop_tokens}


@pytest.mark.parametrize("name", ["tape_complex", "tape_tensor"])
def test_parts_of_the_update_are_left_out_on_the_validation_blocks(name, text_folder):
    """Means over tokens are of these blocks too; a state of the general layout has resets only."""
    task = prepared(text_folder, f"model={name}")
    decoder = make_decoder(name, task.arch).eval().requires_grad_(False)
    randomise(decoder)
    model = OnDevice(decoder, torch.device("cpu"))
    found = task.position_metrics(model)
    assert {*found} <= {*task.metric_names()}
    blocks = task.validation_batches()
    rows = [(block["inputs"], block["inputs"] >= 0) for block in blocks]
    names = [*RESETS, *(FACTORS if name == "tape_complex" else ())]
    assert {key.split("/")[1] for key in found if key.startswith("causal/")} == {*names}
    for part, changed in interventions(model, decoder, rows).items():
        with changed():
            logits = torch.cat([decoder(block["inputs"]) for block in blocks])
        labels = torch.cat([block["labels"] for block in blocks])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        assert found[f"causal/{part}/perplexity"] == pytest.approx(loss.exp().item(), rel=1e-4)
    assert len({found[f"causal/{part}/perplexity"] for part in names}) == len(names)
