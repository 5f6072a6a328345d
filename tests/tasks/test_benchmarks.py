"""task=benchmarks: the generated set asks as lm-eval's own, folders are read, and a model
that knows the answers gets them.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from tape_exp.data.builtin.benchmarks import BENCHMARKS, MMLU_GROUPS, multiple_choice
from tape_exp.data.tokenization import Tokenization
from tape_exp.runs.directory import RunDirectory
from tape_exp.settings.compose import compose_config
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.schema import Arch
from tape_exp.tasks import lm_eval_tasks
from tape_exp.tasks.base import RunContext
from tape_exp.tasks.benchmarks import Benchmarks
from tape_exp.training.from_config import make_task
from tests.conftest import SMALL, silent
from tests.tasks.in_two import evaluate, evaluate_in_two

pytest.importorskip("lm_eval", reason="lm-eval is an optional package")

ARCH = Arch(layers=1, width=16, heads=2, ffn=16)
SIZES = ["task=benchmarks", "trainer=cpu", "logger=none", *SMALL[:4]]
SIZES += ["task.tokenizer.kind=byte"]
TASK = """
task: colours
dataset_path: json
dataset_kwargs: {data_files: {test: colours.jsonl}}
test_split: test
output_type: multiple_choice
doc_to_text: "Which? {{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: answer
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
"""
RULER_TASK = """
task: needle
custom_dataset: !function made.documents
test_split: test
output_type: generate_until
doc_to_text: "{{input}}"
doc_to_target: ""
process_results: !function made.results
metric_list:
  - {metric: "4096", aggregation: !function made.mean, higher_is_better: true}
  - {metric: "8192", aggregation: !function made.mean, higher_is_better: true}
generation_kwargs: {do_sample: false, max_gen_toks: 8, until: []}
"""
MADE = """
import random
import datasets
from transformers import AutoTokenizer

def documents(tokenizer, max_seq_lengths, **_):
    tokens = AutoTokenizer.from_pretrained(tokenizer)("needle").input_ids
    rows = [{"input": f"{n} {len(tokens)} {random.random()}"} for n in max_seq_lengths]
    return {"test": datasets.Dataset.from_list(rows, split=datasets.Split.TEST)}

def results(document, answers):
    raise NotImplementedError

mean = results
"""


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def task(cache):
    made = Benchmarks(ARCH, 0, ("mmlu", "arc_challenge", "arc_easy"), Tokenization("byte"), 1024)
    made.run_context = RunContext(cache=cache)
    made.prepare_data()
    return made


@pytest.fixture
def folder(tmp_path) -> Path:
    """A benchmark of one's own, its data beside it."""
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "colours.yaml").write_text(TASK)
    rows = [{"question": f"{i}", "choices": ["red", "blue"], "answer": i % 2} for i in range(6)]
    (folder / "colours.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.mark.parametrize("name", BENCHMARKS)
def test_generated_questions_have_one_right_answer_in_every_place(name):
    made = [multiple_choice(name, "test", index) for index in range(40)]
    assert made == [multiple_choice(name, "test", index) for index in range(40)]
    assert [q.answer for q in made] == [0, 1, 2, 3] * 10
    assert all(len(set(q.choices)) == 4 for q in made)
    assert made[0] != multiple_choice(name, "dev", 0)


def test_generated_mmlu_has_the_groups_and_words_of_lm_evals(task):
    loaded = task.loaded
    assert set(loaded["group_map"]["mmlu"]) == set(MMLU_GROUPS)
    assert set(loaded["group_map"]["mmlu_stem"]) == {"mmlu_arithmetic", "mmlu_python"}
    asked = loaded["tasks"]["mmlu_arithmetic"]
    document = asked.eval_docs[1]
    letters = [f"{a}. {choice}" for a, choice in zip("ABCD", document["choices"], strict=True)]
    assert asked.doc_to_text(document) == "\n".join([document["question"], *letters, "Answer:"])
    assert (asked.doc_to_choice(document), asked.doc_to_target(document)) == (list("ABCD"), 1)
    easy = loaded["tasks"]["arc_easy"]
    document = easy.eval_docs[2]
    assert easy.doc_to_text(document) == f"Question: {document['question']}\nAnswer:"
    assert easy.doc_to_target(document) == 2
    assert all(each.get_config("num_fewshot") == 0 for each in loaded["tasks"].values())


def knowing(task, wrong: str = "none"):
    """A model that gives every token of the right answer to each question, but for one
    benchmark.
    """
    answers = {}
    for name in (n for n in BENCHMARKS if n != wrong):
        for index in range(60):
            made = multiple_choice(name, "test", index)
            letter = name.startswith("mmlu")
            right = "ABCD"[made.answer] if letter else made.choices[made.answer]
            answers[made.text, tuple(made.choices) * letter] = right

    def model(inputs, output, lengths_B, sampler):
        B, T = inputs.shape
        logits = torch.zeros(B, T, task.tokenizer.vocab)
        for row, ids in enumerate(inputs.tolist()):
            whole = task.tokenizer.decode(ids)
            asked, _, rest = whole.partition("Answer:")
            asked = asked.removeprefix("Question: ").split("\n\n")[-1].strip()
            options = tuple(line[3:] for line in asked.split("\n") if line[1:3] == ". ")
            told = answers.get((asked.split("\n")[0] if options else asked, options))
            if told is not None:
                start = len(task.tokenizer.encode_documents([whole[: len(whole) - len(rest)]])[0])
                for place, token in enumerate(
                    task.tokenizer.encode_documents([f" {told}"])[0].tolist()
                ):
                    if start + place < T:
                        logits[row, start + place, token] = 9.0
        return output.select(logits)

    return model


@pytest.mark.slow
def test_a_group_is_its_subjects_and_errors_are_lm_evals(task):
    """One subject of two at chance: the group lies between; errors by the formulas of a mean and of
    a pooled one.
    """
    found = task.evaluate(knowing(task, wrong="mmlu_python"), silent)
    rows = {row["task"]: row for row in found.tables["benchmarks"]}
    python = rows["mmlu_python"]
    assert (python["group"], python["documents"], python["shots"]) == ("mmlu_stem", 40, 0)
    assert python["acc"] == pytest.approx(25, abs=15)
    assert rows["mmlu_arithmetic"]["acc"] == 100
    p = python["acc"] / 100
    assert python["acc_stderr"] == pytest.approx(100 * np.sqrt(p * (1 - p) / 39), rel=1e-3)
    assert found.metrics["builtin_benchmarks/mmlu_stem"] == pytest.approx((100 + python["acc"]) / 2)
    assert found.metrics["builtin_benchmarks/mmlu_stem_stderr"] == pytest.approx(
        100 * np.sqrt(39 * 40 * (python["acc_stderr"] / 100) ** 2 / 78 / 80), rel=1e-3
    )
    assert found.metrics["builtin_benchmarks/mmlu_humanities"] == 100
    assert set(rows["arc_easy"]) >= {"acc", "acc_stderr", "acc_norm", "acc_norm_stderr"}
    of_table = pytest.approx(rows["arc_easy"]["acc_norm"], abs=1e-3)
    assert found.metrics["builtin_benchmarks/arc_easy"] == of_table


def test_every_filter_and_length_is_reported_by_its_name():
    """As of GSM8K, whose answers are read strictly and flexibly, ARC, and RULER."""
    result = {
        "exact_match,strict-match": 0.25,
        "exact_match_stderr,strict-match": 0.02,
        "exact_match,flexible-extract": 0.5,
        "exact_match_stderr,flexible-extract": "N/A",
    }
    assert lm_eval_tasks.reported("gsm8k", result) == {
        "gsm8k/strict-match": (25, 2),
        "gsm8k/flexible-extract": (50, None),
    }
    result = {"acc,none": 0.5, "acc_norm,none": 0.75}
    assert lm_eval_tasks.reported("arc", result) == {"arc": (75, None)}
    result = {"alias": "needle", "8192,none": 0.5, "4096,none": 0.25, "16384,none": -1}
    scores = {"needle@4096": (25, None), "needle@8192": (50, None)}
    assert lm_eval_tasks.reported("needle", result) == scores


def test_documents_that_are_made_for_a_tokenizer(tmp_path):
    """A stand-in with RULER's shape. Its prompts begin with BOS, which counts."""
    (tmp_path / "needle.yaml").write_text(RULER_TASK)
    (tmp_path / "made.py").write_text(MADE)
    tokenizer = Tokenization("byte").make(None, tmp_path)
    needed = lm_eval_tasks.ruler(tokenizer, 8192, tmp_path)
    first, again = (
        [document["input"] for document in loaded["tasks"]["needle"].eval_docs]
        for loaded in (
            lm_eval_tasks.load_benchmarks(["needle"], tmp_path, needed=needed) for _ in "ab"
        )
    )
    assert [row.split()[:2] for row in first] == [["4096", "7"], ["8192", "7"]]
    assert first == again
    with pytest.raises(ConfigError, match=r"RULER asks at 4096 .* takes 300; set task\.longest="):
        lm_eval_tasks.ruler(tokenizer, 300, tmp_path)


def test_fingerprint_follows_questions_and_a_folder_is_read_from_anywhere(
    folder, cache, monkeypatch
):
    monkeypatch.chdir(folder.parent)

    def now():
        settings = {"source": "local", "path": "mine", "trust": True}
        made = Benchmarks(ARCH, 0, ("colours",), Tokenization("byte"), 64, **settings)
        made.run_context = RunContext(cache=cache)
        made.prepare_data()
        assert len(made.loaded["tasks"]["colours"].eval_docs) == 6
        return made.fingerprint()

    first = now()
    assert now() == first
    (folder / "colours.yaml").write_text(TASK.replace("Which?", "What?"))
    second = now()
    data = folder / "colours.jsonl"
    data.write_text(data.read_text().replace('"3"', '"4"'))
    assert len({first, second, now()}) == 3


@pytest.mark.parametrize(
    "harm",
    [
        "doc_to_text: !function theirs.harm",
        "doc_to_text: \"{{ cycler.__init__.__globals__.os.makedirs('sprung', exist_ok=True) }}\"",
    ],
    ids=["function", "template"],
)
def test_the_code_of_a_folder_runs_only_where_it_is_trusted(tmp_path, harm, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "data.jsonl").write_text('{"text": "a", "target": "b"}\n')
    (folder / "theirs.py").write_text(
        "import os\nos.makedirs('sprung', exist_ok=True)\ndef harm(doc): return 'x'\n"
    )
    (folder / "mine.yaml").write_text(
        "task: mine\ndataset_path: json\ndataset_kwargs: {data_files: {test: data.jsonl}}\n"
        "test_split: test\noutput_type: multiple_choice\ndoc_to_choice: [a, b]\n"
        f"doc_to_target: 0\n{harm}\n"
    )
    words = [*SIZES, "model=rope", f"cache={tmp_path}/cache", "task.source=local"]
    words += [f"task.path={folder}", "task.tasks=[mine]"]
    with pytest.raises(ConfigError, match=r"can run any code.* add task\.trust=true"):
        make_task(compose_config(words)).prepare_data()
    assert not list(tmp_path.rglob("sprung"))
    trusting = compose_config([*words, "task.trust=true"])
    assert RunDirectory(trusting).hash == RunDirectory(compose_config(words)).hash
    task = make_task(trusting)
    task.prepare_data()
    task.fingerprint()
    assert list(tmp_path.rglob("sprung"))  # the trap works


@pytest.mark.hosts
def test_two_processes_answer_as_one(tmp_path):
    """Sampled positions included; batches that the processes cannot share evenly."""
    words = [*SIZES, f"cache={tmp_path}/cache", "model=randpe", "task.limit=3"]
    words += ["task.rows_per_batch=7", "task.tasks=[mmlu_stem,arc_easy]"]
    alone = evaluate(words)
    assert len(alone) == 4
    assert evaluate_in_two(words, tmp_path) == [alone, alone]
