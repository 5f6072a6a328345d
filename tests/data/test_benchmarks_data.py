"""Benchmarks: the generated set asks as lm-eval's own, folders and the hub are read, every mistake
is one sentence.
"""

import importlib.util
import io
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from huggingface_hub import constants

from tape_exp.data import benchmarks, builtin
from tape_exp.data.builtin import BENCHMARKS, SUBJECTS, question
from tape_exp.data.tokenizers import Tokenization
from tape_exp.settings.errors import ConfigError
from tests.data.test_hub import hub  # noqa: F401  the fixture

pytest.importorskip("lm_eval", reason="lm-eval is an optional package")
import lm_eval
from lm_eval.tasks import TaskManager

ARC = Path(lm_eval.__file__).parent / "tasks" / "arc"
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


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def folder(tmp_path) -> Path:
    """A benchmark of one's own, its data beside it."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "colours.yaml").write_text(TASK)
    rows = [{"question": f"{i}", "choices": ["red", "blue"], "answer": i % 2} for i in range(6)]
    (tmp_path / "mine" / "colours.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in rows)
    )
    return tmp_path / "mine"


RULER_TASK = """
task: needle
custom_dataset: !function made.documents
test_split: test
output_type: generate_until
doc_to_text: "{{input}}"
doc_to_target: "{{outputs}}"
process_results: !function made.results
metric_list:
  - {metric: "4096", aggregation: !function made.mean, higher_is_better: true}
  - {metric: "8192", aggregation: !function made.mean, higher_is_better: true}
  - {metric: "16384", aggregation: !function made.mean, higher_is_better: true}
generation_kwargs: {do_sample: false, max_gen_toks: 8, until: []}
"""
MADE = """
import random
import datasets
from transformers import AutoTokenizer

def documents(tokenizer, max_seq_lengths, **_):
    tokens = AutoTokenizer.from_pretrained(tokenizer)("needle").input_ids
    rows = [
        {"input": f"{n} {len(tokens)} {random.random()}", "outputs": str(n), "max_length": n}
        for n in max_seq_lengths for _ in range(2)
    ]
    return {"test": datasets.Dataset.from_list(rows, split=datasets.Split.TEST)}

def results(document, answers):
    found = float(document["outputs"] in answers[0])
    return {"4096": -1.0, "8192": -1.0} | {str(document["max_length"]): found}

def mean(values):
    kept = [value for value in values if value != -1]
    return sum(kept) / len(kept) if kept else -1
"""


def test_scores_by_length_are_accepted_as_ruler_has_them(tmp_path, cache):
    """A stand-in with RULER's shape: documents made for a tokenizer, a metric for each length. Its
    prompts begin with BOS, which counts.
    """
    (tmp_path / "needle.yaml").write_text(RULER_TASK)
    (tmp_path / "made.py").write_text(MADE)

    def load(longest):
        tokenizer = Tokenization("byte").make(None, cache)
        needed = benchmarks.ruler(tokenizer, longest, cache)
        return benchmarks.load(["needle"], "local", str(tmp_path), cache, needed=needed)

    task = load(8192)["tasks"]["needle"]
    documents = [document["input"].split() for document in task.eval_docs]
    assert [row[:2] for row in documents] == [[n, "7"] for n in ("4096", "8192") for _ in "ab"]
    assert [document["input"] for document in load(8192)["tasks"]["needle"].eval_docs] == [
        " ".join(row) for row in documents
    ]
    result = {"alias": "needle", "8192,none": 0.5, "4096,none": 0.25, "16384,none": -1}
    assert benchmarks.reported("needle", result) == {
        "needle@4096": (25, None),
        "needle@8192": (50, None),
    }
    with pytest.raises(ConfigError, match=r"RULER asks at 4096 .* takes 300; set task\.longest="):
        load(300)
    (tmp_path / "made.py").write_text("import no_such_package")
    with pytest.raises(ConfigError, match=r"no_such_package.* install the package"):
        load(4096)


@pytest.mark.parametrize("name", BENCHMARKS)
def test_generated_questions_have_one_right_answer_in_every_place(name):
    made = [question(name, "test", index) for index in range(40)]
    assert made == [question(name, "test", index) for index in range(40)]
    assert [place for _, _, place in made] == [0, 1, 2, 3] * 10
    assert all(len(set(choices)) == 4 for _, choices, _ in made)
    assert made[0] != question(name, "dev", 0)


def test_generated_mmlu_has_the_groups_and_words_of_lm_evals(cache):
    loaded = benchmarks.load(["mmlu", "arc_challenge", "arc_easy"], "builtin", None, cache)
    assert set(loaded["group_map"]["mmlu"]) == set(SUBJECTS)
    assert set(loaded["group_map"]["mmlu_stem"]) == {"mmlu_arithmetic", "mmlu_python"}
    task = loaded["tasks"]["mmlu_arithmetic"]
    document = task.eval_docs[1]
    letters = [
        f"{letter}. {choice}" for letter, choice in zip("ABCD", document["choices"], strict=True)
    ]
    assert task.doc_to_text(document) == "\n".join([document["question"], *letters, "Answer:"])
    assert (task.doc_to_choice(document), task.doc_to_target(document)) == (list("ABCD"), 1)
    document = loaded["tasks"]["arc_easy"].eval_docs[2]
    assert (
        loaded["tasks"]["arc_easy"].doc_to_text(document)
        == f"Question: {document['question']}\nAnswer:"
    )
    assert loaded["tasks"]["arc_easy"].doc_to_target(document) == 2
    assert all(task.get_config("num_fewshot") == 0 for task in loaded["tasks"].values())


def test_fingerprint_follows_questions_and_examples(folder, cache):
    def now(shots=None):
        return benchmarks.fingerprint(
            benchmarks.load(["colours"], "local", str(folder), cache, shots)
        )

    first = now()
    assert now() == first
    (folder / "colours.yaml").write_text(TASK.replace("Which?", "What?"))
    second = now()
    (folder / "colours.jsonl").write_text(
        (folder / "colours.jsonl").read_text().replace('"3"', '"4"')
    )
    assert len({first, second, now()}) == 3


def test_a_folder_is_read_wherever_the_command_runs(folder, cache, monkeypatch, tmp_path):
    monkeypatch.chdir(folder.parent)
    loaded = benchmarks.load(["colours"], "local", "mine", cache)
    assert len(loaded["tasks"]["colours"].eval_docs) == 6


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: f.unlink(), r"task\.tasks: colours is not known\. Known: \."),
        (lambda f: f.write_text(TASK + "doc_to_txt: a\n"), r"cannot be loaded from .*doc_to_txt"),
        (lambda f: f.with_suffix(".jsonl").unlink(), r"cannot be loaded from .*colours\.jsonl"),
        (lambda f: f.with_suffix(".jsonl").write_text("no\n"), r"colours.* cannot be loaded from"),
        (lambda f: f.write_text(TASK.replace("acc,", "f1,")), r"colours reports f1; .* acc_norm,"),
    ],
)
def test_a_damaged_folder_is_told_in_one_sentence(damage, message, folder, cache):
    damage(folder / "colours.yaml")
    with pytest.raises(ConfigError, match=message) as error:
        benchmarks.load(["colours"], "local", str(folder), cache)
    assert "\n" not in str(error.value)


def test_wrong_names_and_missing_things_are_told(cache, monkeypatch):
    with pytest.raises(
        ConfigError,
        match=r"task\.tasks: arc_esy is not known\. Did you mean 'arc_easy'\? Known: .*mmlu_stem",
    ):
        benchmarks.load(["arc_esy"], "builtin", None, cache)
    for path in (None, "/nowhere"):
        with pytest.raises(
            ConfigError,
            match=rf"task\.path={path} is not a folder; .*task\.source=builtin needs none",
        ):
            benchmarks.check_source("local", path)
    with pytest.raises(ConfigError, match=r"can run any code.* add task\.trust=true"):
        benchmarks.check_source("local", str(cache))
    benchmarks.check_source("local", str(cache), trust=True)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        ConfigError,
        match=r"needs the package lm-eval; install it with pip install .*-e '\.\[eval\]'",
    ):
        benchmarks.check_source("builtin", None)


def only_arc(**_) -> TaskManager:
    """lm-eval's index, cut to ARC, since all of it takes ten seconds to read."""
    return TaskManager(include_path=ARC, include_defaults=False)


def test_without_a_network_other_sources_are_named(monkeypatch, tmp_path):
    monkeypatch.setattr("lm_eval.tasks.TaskManager", only_arc)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(
        ConfigError,
        match=r"task\.source=hub: .*task\.source=local with task\.path=.*task\.source=builtin",
    ):
        benchmarks.load(["arc_easy"], "hub", None, tmp_path)


def arc(split: str) -> bytes:
    file = io.BytesIO()
    pq.write_table(
        pa.Table.from_pylist([builtin.benchmark_row("arc_easy", split, i) for i in range(5)]), file
    )
    return file.getvalue()


def test_arc_is_read_from_the_hub_and_once_fetched_without(hub, tmp_path, monkeypatch):  # noqa: F811
    """In the layout of allenai/ai2_arc."""
    monkeypatch.setattr("lm_eval.tasks.TaskManager", only_arc)
    splits = ("train", "validation", "test")
    places = "".join(f"  - split: {split}\n    path: ARC-Easy/{split}-*\n" for split in splits)
    card = f"---\nconfigs:\n- config_name: ARC-Easy\n  data_files:\n{places}---\n"
    files = {f"ARC-Easy/{split}-00000-of-00001.parquet": arc(split) for split in splits}
    benchmarks.check_source("hub", None)
    with pytest.raises(ConfigError, match=r"task\.tasks=.*arc_easy.*allenai/ai2_arc"):
        benchmarks.load(["arc_easy"], "hub", None, tmp_path)
    hub.commit("datasets/allenai/ai2_arc", files | {"README.md": card.encode()})
    fetched = benchmarks.load(["arc_easy"], "hub", None, tmp_path)
    assert len(fetched["tasks"]["arc_easy"].eval_docs) == 5
    hub.stop()
    benchmarks.check_source("hub", None)
    again = benchmarks.load(["arc_easy"], "hub", None, tmp_path)
    assert benchmarks.fingerprint(again) == benchmarks.fingerprint(fetched)
    with pytest.raises(
        ConfigError, match=r"task\.source=hub: .* cannot be reached.*task\.source=builtin"
    ):
        benchmarks.load(["arc_challenge"], "hub", None, tmp_path)


def test_every_filter_is_reported_by_its_name():
    """As of GSM8K, whose answers are read strictly and flexibly."""
    result = {
        "exact_match,strict-match": 0.25,
        "exact_match_stderr,strict-match": 0.02,
        "exact_match,flexible-extract": 0.5,
        "exact_match_stderr,flexible-extract": "N/A",
    }
    assert benchmarks.reported("gsm8k", result) == {
        "gsm8k/strict-match": (25, 2),
        "gsm8k/flexible-extract": (50, None),
    }
    assert benchmarks.reported("arc", {"acc,none": 0.5, "acc_norm,none": 0.75}) == {
        "arc": (75, None)
    }
