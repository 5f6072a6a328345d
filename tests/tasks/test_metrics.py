"""What a task announces, from its config alone, is what its evaluation and its records have."""

import json
from fnmatch import fnmatchcase

import pytest

import tape_exp as te
from tape_exp.results.evaluation import Evaluation
from tape_exp.results.metric_names import as_shown, check_metric, is_result, main_results
from tape_exp.results.store import read_records
from tape_exp.settings.compose import compose_config
from tape_exp.settings.construct import build
from tape_exp.settings.errors import ConfigError
from tape_exp.tasks.base import Task
from tape_exp.tasks.battery import PROBLEMS
from tape_exp.tasks.sequences import SequenceTask
from tests.conftest import SMALL, TASKS, on_text

# Of evaluations that the project no longer makes.
FORMER = ("*/attention@*",)
SIZES = [word for word in SMALL if "batch" not in word]
FEW = {
    "arithmetic": ["task.train_digits=2", "task.test_digits=3", "task.samples_per_cell=2"],
    "benchmarks": [*SIZES, "task.tokenizer.kind=byte", "task.limit=1", "task.longest=256"],
    "scrolls": [*SIZES, "task.tokenizer.kind=byte", "task.new_tokens=2"],
    "word_problem": [*SIZES, "task.train_letters=4", "task.lengths=[2,4,8]"],
    "efficiency": [*SIZES[:4], "task.length=32"],
}
FEW["arithmetic"] += SIZES
FEW["arithmetic_20"] = FEW["arithmetic"]
CASES = [(task, ()) for task in TASKS if task != "battery"]
CASES += [("scrolls", ("task.dataset=qmsum",)), ("scrolls", ("task.dataset=quality",))]
CASES += [("arithmetic", ("task.test_digits=2",)), ("word_problem", ("task.lengths=[2,4]",))]
CASES += [("battery", (f"task.problem={problem}", "task.train_length=8")) for problem in PROBLEMS]
CASES += [("battery", ("task.problem=sort", "task.train_length=8", "task.lengths=[8]"))]


@pytest.mark.long
@pytest.mark.parametrize(("task", "words"), CASES)
def test_an_evaluation_has_what_its_task_announces(task, words, text_folder):
    """Of an untrained TAPE, which has a state; diagnostics may be missing."""
    text = "text" in compose_config([f"task={task}"]).task
    few = on_text(text_folder, task) if text else FEW.get(task, SIZES)
    decoder, made = te.build("tape", *few, *words, task=task)
    announced = made.announced()
    given = te.evaluate(decoder, task=made)["metrics"]
    for metric in given:
        assert any(fnmatchcase(metric, name) for name in announced), metric
    for name in filter(is_result, announced):
        untrained = not name.startswith(("val/", "trained_"))
        assert not untrained or any(fnmatchcase(metric, name) for metric in given), name


def test_every_committed_record_has_what_its_task_announces():
    known: dict[str, list[str]] = {}
    for record in read_records():
        task = {key: part for key, part in record["config"]["task"].items() if key != "trust"}
        key = json.dumps(task, sort_keys=True)
        if key not in known:
            announced = build(task, "task", seed=0).announced()
            known[key] = [*map(as_shown, announced), *FORMER]
        for metric in map(as_shown, record["metrics"]):
            assert any(fnmatchcase(metric, name) for name in known[key]), (record["run"], metric)
    assert len(known) > 40


class Plain(SequenceTask):
    symbols = "ab"


class Scored(Plain):
    def summarise(self, scores):
        return Evaluation(super().summarise(scores).metrics | {"own": 1.0})


class Named(Scored):
    def metric_names(self):
        return [*super().metric_names(), "own"]


class Validated(Plain):
    def validation_metrics(self, logits, batch):
        return {"own": logits.sum()}


@pytest.mark.parametrize(
    ("kind", "metric", "known"),
    [
        (Plain, "test/exact_match", True),
        (Plain, "own", False),
        (Scored, "own", True),
        (Scored, "anything", True),
        (Named, "own", True),
        (Named, "anything", False),
        (Plain, "val/own", False),
        (Validated, "val/own", True),
        (Validated, "own", False),
    ],
)
def test_a_class_that_names_nothing_of_its_own_may_measure_anything(kind, metric, known):
    task = kind.__new__(kind)
    task.axes, task.lengths, task.trained_length = {"length": [1, 2]}, [1, 2], 1
    announced = Task.announced(task)
    if known:
        check_metric(metric, announced)
    else:
        with pytest.raises(ConfigError, match=rf"^metric {metric} is not known\. .*The task has "):
            check_metric(metric, announced)


LENGTHS = (64, 128, 256, 512)
PERPLEXITIES = [f"pg19/{name}@{n}" for n in LENGTHS for name in ("perplexity", "bits_per_byte")]


@pytest.mark.parametrize(
    ("metrics", "main"),
    [
        (
            "val/loss test/exact_match test/token_accuracy id/exact_match id/token_accuracy "
            "ood/exact_match ood/exact_match_stderr test/exact_match@8 causal/gain/id/exact_match",
            "test/exact_match id/exact_match ood/exact_match",
        ),
        ("val/loss test/state@4 id/state ood/state", "id/state ood/state"),
        ("val/loss pg19/tokens pg19/unigram_perplexity qasper/f1", "val/loss qasper/f1"),
        (
            " ".join(["val/loss", "pg19/tokens", *PERPLEXITIES]),
            "val/loss pg19/perplexity@512 pg19/bits_per_byte@512",
        ),
    ],
)
def test_a_comparison_shows_the_main_of_many_results(metrics, main):
    assert main_results(metrics.split()) == main.split()
