"""task=benchmarks: what is reported, that a model which knows the answers gets them, and two
processes as one.
"""

import json

import numpy as np
import pytest
import torch

from tape_exp.data.builtin import BENCHMARKS, SUBJECTS, question
from tape_exp.data.tokenizers import Tokenization
from tape_exp.runs.identity import config_hash
from tape_exp.settings.compose import compose_config
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.schema import Arch
from tape_exp.tasks.base import Surroundings
from tape_exp.tasks.benchmarks import Benchmarks
from tape_exp.training.assembly import make_task
from tape_exp.training.run import run
from tests.conftest import SMALL
from tests.processes import train

pytest.importorskip("lm_eval", reason="lm-eval is an optional package")
ARCH = Arch(layers=1, width=16, heads=2, ffn=16)
SIZES = [
    "task=benchmarks",
    "trainer=cpu",
    "logger=none",
    "trainer.progress=none",
    "task.tokenizer.kind=byte",
]
SIZES += [word for word in SMALL if "batch" not in word]


def silent(items, description):
    return items


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    made = Benchmarks(ARCH, 0, ("mmlu", "arc_challenge", "arc_easy"), Tokenization("byte"), 1024)
    made.placed_in(Surroundings(cache=tmp_path_factory.mktemp("cache")))
    made.prepare_data()
    return made


def knowing(task, wrong: str = "none"):
    """A model that gives every token of the right answer to each question, but for one
    benchmark.
    """
    answers = {}
    for name in (n for n in BENCHMARKS if n != wrong):
        for index in range(60):
            text, choices, place = question(name, "test", index)
            answers[text, tuple(choices)] = (
                "ABCD"[place] if name.startswith("mmlu") else choices[place]
            )
    texts = {text: (choices, answer) for (text, choices), answer in answers.items()}

    def model(inputs, logits_at, sampler):
        B, T = inputs.shape
        logits = torch.zeros(B, T, task.tokenizer.vocab)
        for row, ids in enumerate(inputs.tolist()):
            whole = task.tokenizer.decode(ids)
            asked, _, rest = whole.partition("Answer:")
            asked = asked.removeprefix("Question: ").split("\n\n")[-1].strip()
            options = tuple(line[3:] for line in asked.split("\n") if line[1:3] == ". ")
            told = (
                answers.get((asked.split("\n")[0], options))
                if options
                else texts.get(asked, (None, None))[1]
            )
            if told is not None:
                start = 1 + len(task.tokenizer.encode([whole[: len(whole) - len(rest)]])[0])
                for place, token in enumerate(task.tokenizer.encode([f" {told}"])[0].tolist()):
                    if start - 1 + place < T:
                        logits[row, start - 1 + place, token] = 9.0
        return logits.flatten(0, 1)[logits_at]

    return model


def test_a_model_that_knows_the_answers_gets_them(task):
    found = task.evaluate(knowing(task), silent)
    values = {key: value for key, value in found.metrics.items() if not key.endswith("_stderr")}
    assert set(values) == {
        f"builtin_benchmarks/{name}" for name in ("mmlu", *SUBJECTS, "arc_challenge", "arc_easy")
    }
    assert all(value == 100 for value in values.values()), values
    assert all(found.metrics[f"{key}_stderr"] == 0 for key in values)


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


def test_a_limit_is_of_documents_a_task(task):
    found = task.evaluate(knowing(task), silent, limit=1)
    assert {row["documents"] for row in found.tables["benchmarks"]} == {1}
    assert not [
        key for key in found.metrics if key.endswith("_stderr")
    ]  # of one document there is none


def test_there_must_be_a_benchmark():
    with pytest.raises(ConfigError, match=r"task\.tasks must be a list"):
        Benchmarks(ARCH, 0, tasks=(), tokenizer=Tokenization("byte"), train_length=32)


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
    words = [*SIZES, "model=rope", f"runs={tmp_path}/runs", f"cache={tmp_path}/cache"]
    words += ["task.source=local", f"task.path={folder}", "task.tasks=[mine]"]
    with pytest.raises(ConfigError, match=r"can run any code.* add task\.trust=true"):
        run(compose_config(words))
    assert not list(tmp_path.rglob("sprung"))
    trusting = compose_config([*words, "task.trust=true"])
    assert config_hash(trusting) == config_hash(compose_config(words))
    task = make_task(trusting)
    task.prepare_data()
    task.fingerprint()
    assert list(tmp_path.rglob("sprung"))  # the trap works


def test_two_processes_answer_as_one(tmp_path):
    """Sampled positions included; batches that the processes cannot share evenly."""
    words = [
        *SIZES,
        f"cache={tmp_path}/cache",
        "model=randpe",
        "task.limit=3",
        "task.rows_per_batch=7",
    ]
    words += ["task.tasks=[mmlu_stem,arc_easy]"]
    alone = run(compose_config([*words, f"runs={tmp_path}/alone"]))["metrics"]
    done = train(*words, f"runs={tmp_path}/both", "trainer.devices=2")
    assert done.returncode == 0, done.stderr
    (path,) = (tmp_path / "both").rglob("record.json")
    assert json.loads(path.read_text())["metrics"] == alone
    assert set(alone) == {
        f"builtin_benchmarks/{name}{end}"
        for name in ("mmlu_stem", "arc_easy")
        for end in ("", "_stderr")
    }
