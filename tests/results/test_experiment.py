"""Which runs are of one experiment, and what a record keeps of the words that asked for it."""

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from tape_exp.bench.bench import OUT
from tape_exp.results.experiment import Experiment, experiment_of
from tape_exp.results.index import RecordIndex
from tape_exp.results.record import Record
from tape_exp.results.store import merged, read_records
from tape_exp.runs.identity import recorded_config, recorded_overrides, without_folders
from tape_exp.settings.compose import compose_config
from tape_exp.settings.naming import literal
from tests.artifacts.fakes import view as view_of

WORDS = ["model=rope", "task=arithmetic", "scale=smoke"]


def made(*words: str, metric: float = 1.0) -> Record:
    """The record of a run of these words, as it would be written today."""
    cfg = compose_config([*WORDS, *words])
    name = "-".join(words)
    facts = {"run": f"rope-{name}", "seed": cfg.seed, "started": name, "precision": "32-true"}
    facts |= {"metrics": {"test/exact_match": metric}, "git": {"commit": None, "dirty": False}}
    overrides = recorded_overrides(cfg.overrides)
    return Record({**facts, "config": recorded_config(cfg), "overrides": overrides})


@pytest.mark.parametrize(
    ("words", "same"),
    [
        (["seed=3"], True),
        (["task.optim.lr=0.001"], True),  # as the task has it
        (["trainer.devices=2", "logger=none", "runs=/elsewhere", "cache=/there"], True),
        (["task.optim.lr=0.002"], False),
        (["trainer=ddp_7b"], True),  # whose precision is how it ran
        (["trainer.precision=bf16-mixed"], False),
        (["+model.window=4"], False),
        (["model=fire"], False),
    ],
)
def test_an_experiment_is_what_is_computed_whatever_the_seed(words, same):
    plain, other = experiment_of(WORDS), experiment_of([*WORDS, *words])
    assert plain.is_same(other) is other.is_same(plain) is same


def test_an_experiment_is_that_of_the_record_with_its_six_digits():
    words = ["task.optim.lr=0.00123456789", "seed=2"]
    experiment = experiment_of([*WORDS, *words])
    assert made(*words).experiment.is_same(experiment)
    assert made("task.optim.lr=0.001234568").experiment.is_same(experiment)
    assert not made("task.optim.lr=0.0012346").experiment.is_same(experiment)


def without(key: str, *words: str) -> Experiment:
    """The experiment of words as a version without a key of the task would have recorded it."""
    now = experiment_of([*WORDS, *words])
    task = {name: part for name, part in now.config["task"].items() if name != key}
    return Experiment({**now.config, "task": task}, [*WORDS, *words])


def test_a_key_that_a_record_lacks_has_the_value_of_its_time():
    older = without("hold_out", "task.hold_out=false")
    kept = Experiment(experiment_of([*WORDS, "task.hold_out=false"]).config, WORDS)
    assert older.is_same(kept)
    assert kept.is_same(older)
    changed = Experiment(experiment_of([*WORDS, "task.hold_out=true"]).config, WORDS)
    assert not changed.is_same(older), "what the default was then is noted, and it was another"
    asked = experiment_of([*WORDS, "task.samples_per_cell=50"])
    assert not without("samples_per_cell").is_same(asked), "its value then is not known"


def test_a_key_that_a_class_has_got_since_has_the_default_of_its_constructor():
    config = dict(experiment_of(WORDS).config)
    older = Experiment(
        {**config, "model": {"name": "rope", "_target_": config["model"]["_target_"]}}, WORDS
    )
    by_default = {**config["model"], "theta": 10000}
    kept = {k: v for k, v in by_default.items() if k in ("name", "_target_", "theta")}
    assert older.is_same(Experiment({**config, "model": kept}, WORDS))
    assert not older.is_same(Experiment({**config, "model": {**kept, "theta": 500}}, WORDS))
    assert not older.is_same(Experiment({**config, "model": {**kept, "no_argument": 1}}, WORDS))


def test_cells_have_the_seeds_of_their_experiment_whatever_was_typed():
    """Defaults that were typed out, and where a run was, make no other experiment; keys do."""
    records = [
        made("seed=0", metric=1.0),
        made("task.optim.lr=0.001", "seed=1", "logger=none", metric=2.0),
        made("task.optim.lr=0.002", "seed=2", metric=9.0),
    ]
    view = view_of(records)
    (rope, *_) = view.rows
    assert [run["metrics"]["test/exact_match"] for run in view.runs(rope)] == [1.0, 2.0]
    faster = view_of(records, overrides=["task=arithmetic", "task.optim.lr=0.002"])
    assert [run.seed for run in faster.runs(faster.rows[0])] == [2]


@pytest.mark.parametrize(
    "words",
    [
        ["model.name=mine"],
        ["task.name=mine"],
        ["peft=lora", "peft.name=mine"],
        ["model=layers", "model.layers=[rope,nope]"],
        ["model=[{name:rope,window:16},nope]"],
        ["task=c4", "text@task.text=pg19", "~task.optim.eps"],
    ],
)
def test_runs_are_found_whatever_names_their_groups(words):
    run = made(*words)
    index = RecordIndex([made("seed=1"), run])
    assert index.of_experiment([*WORDS, *words]) == [run]
    assert index.fitting([*WORDS, *words]) == [run]


def test_old_and_new_records_are_of_one_cell():
    older = made("seed=0")
    older["words"] = older.pop("overrides")
    view = view_of([older, made("seed=1")])
    assert [run.seed for run in view.runs(view.rows[0])] == [0, 1]


def test_the_overrides_of_a_record_say_nothing_of_the_machine(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_0123456789")
    typed = ["model=rope", "+task.note=hf_0123456789", "runs=/home/me/runs", "logger.mode=online"]
    typed += ["cache=/big", "rerun=true", "checkpoint=/home/me/seed0-abc/", "trainer=gpu"]
    typed += ["task.text.path=/data/mine", "hydra.verbose=true", "seed=1"]
    assert recorded_overrides(typed) == [
        "model=rope",
        "+task.note='[hidden]'",
        "checkpoint=seed0-abc",
        "trainer=gpu",
        "task.text.path=mine",
        "seed=1",
    ]


@pytest.mark.parametrize(
    ("value", "last"),
    [
        ("/models/llama 7b", "llama 7b"),
        ("llama 7b", "llama 7b"),
        ("/models/it's", "it's"),
        ('/a "b"/c "d"/', 'c "d"'),
        ("/runs/lr=1e-3,seed=0", "lr=1e-3,seed=0"),
        ("/data/[1]/{x}", "{x}"),
        ("/data/back\\", "back\\"),
        ("/data/2024", "2024"),
        ("/data/null", "null"),
        (["/data/a b", "/data/c"], ["a b", "c"]),
        (None, None),
    ],
)
def test_a_recorded_folder_is_its_last_name_as_hydra_reads_it(value, last):
    typed = [f"checkpoint={literal(value)}", f"+task.x={literal({'path': value, 'y': '/z'})}"]
    read = OverridesParser.create().parse_overrides(recorded_overrides(typed))
    assert [override.value() for override in read] == [last, {"path": last, "y": "/z"}]
    assert without_folders({"path": value}) == {"path": last}


def test_what_does_not_compose_is_of_no_experiment():
    assert experiment_of(["model=no_such_model"]) is None
    view = view_of([made("seed=0")], rows={"model": ["no_such_model"]})
    assert view.runs(view.rows[0]) == []


def test_a_precision_is_that_which_was_asked_for_or_in_which_a_run_was_made():
    chosen = made("seed=1").experiment  # auto, which was 32-true
    asked = made("trainer.precision=32-true").experiment
    half = made("trainer.precision=bf16-mixed").experiment
    assert chosen.is_same(asked)
    assert asked.is_same(chosen)
    assert not half.is_same(chosen)
    assert not chosen.is_same(experiment_of([*WORDS, "trainer.precision=bf16-mixed"]))
    assert not half.is_same(experiment_of(WORDS))


def test_what_follows_from_weights_does_not_count_unless_it_was_asked_for():
    """A table is the same where the Llama's files are, and where they are not."""
    words = ["model=rope", "task=extend", "task.init_from=meta/llama"]
    here = experiment_of(words)
    model = {**here.config["model"], "theta": 5e5}
    task = {**here.config["task"], "arch": {**here.config["task"]["arch"], "layers": 32}}
    of_llama = Experiment({**here.config, "model": model, "task": task}, words)
    assert of_llama.is_same(here)
    other = [*words, "model.theta=20000"]
    assert not experiment_of(other).is_same(here)
    assert not experiment_of(other).is_same(experiment_of([*words, "model.theta=30000"]))
    trained = experiment_of(["model=rope", "task=arithmetic", "model.theta=20000"])
    assert not trained.is_same(experiment_of(["model=rope", "task=arithmetic"]))


CHANGED = {"task.questions"}  # defaults that changed on purpose: their records wait for new ones


@pytest.mark.long
def test_what_asked_for_a_record_still_asks_for_its_experiment():
    """Each committed run, composed anew: a default that changed in passing would lose records."""
    found = 0
    for run in merged(read_records(OUT / "records"), read_records()):
        today = experiment_of(run.overrides)
        assert today is not None, run.name
        if not today.is_same(run.experiment):
            keys = today.settings.keys() | run.experiment.settings.keys()
            differ = {key for key in keys if today.value_of(key) != run.experiment.value_of(key)}
            assert differ <= CHANGED, (run.name, differ)
        found += 1
    assert found
