"""``tape-exp tune``: what is searched, with which budgets, and that a kill loses nothing."""

import json
import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import optuna
import pytest
import yaml
from lightning import Callback
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from wandb.sdk.launch.sweeps.utils import create_sweep_command_args

from tape_exp.paper import searches
from tape_exp.report.content import gather
from tape_exp.runs.directory import FolderError
from tape_exp.settings.compose import compose_config
from tape_exp.settings.errors import ConfigError
from tape_exp.training.module import NotFiniteError
from tape_exp.training.run import run
from tape_exp.tune import __main__ as command
from tape_exp.tune import agent, worker
from tape_exp.tune.journal import STARTUP, Journal
from tape_exp.tune.plan import requested
from tape_exp.tune.space import distribution_of, read_space, rounded, words_of

TINY = [
    "task.arch.layers=1",
    "task.arch.width=16",
    "task.arch.ffn=16",
    "task.optim.batch=4",
    "task.optim.max_steps=20",
    "task.samples_per_cell=1",
    "trainer=cpu",
    "trainer.progress=none",
    "trainer.validate_every=5",
    "logger=none",
]
RATES = ["model=rope,nope", "task=arithmetic", "task.optim.lr=tag(log,interval(0.001,0.1))"]


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def search_of(*words):
    return requested([*RATES, *TINY, *words])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("interval(0.1,0.5)", FloatDistribution(0.1, 0.5)),
        ("tag(log, interval(0.1, 0.5))", FloatDistribution(0.1, 0.5, log=True)),
        ("int(interval(1,8))", IntDistribution(1, 8)),
        ("tag(log,int(interval(1,8)))", IntDistribution(1, 8, log=True)),
        ("range(2,9,3)", IntDistribution(2, 8, step=3)),
        ("choice(a,2,0.5,true)", CategoricalDistribution(["a", 2, 0.5, True])),
        ("choice('0.1')", CategoricalDistribution(["0.1"])),
    ],
)
def test_sets_of_values_are_those_of_hydras_sweeps(text, expected):
    assert distribution_of("key", text) == expected


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("3", "is no set of values"),
        ("interval(1,b)", "cannot be searched"),
        ("choice(0.1,0.2,0.10)", r"0\.1 is named twice"),
        ("interval(2.5,1.5)", "cannot be searched"),
        ("tag(log,interval(0.0,1.0))", "cannot be searched"),
        ("tag(quick,interval(0.1,1.0))", "the only tag is log, not quick"),
        ("tag(log,choice(1,2))", "log goes with an interval only"),
        ("range(0.5,1.5,0.5)", "whole numbers"),
        ("range(1,5,0)", "cannot be searched"),
    ],
)
def test_what_is_no_set_of_values_is_told(text, told):
    with pytest.raises(ConfigError, match=told):
        distribution_of("task.optim.lr", text)


def test_a_space_is_a_yaml_of_ours_or_of_ones_own(tmp_path):
    assert list(read_space("rates")) == ["task.optim.lr"]
    (tmp_path / "mine.yaml").write_text("task.optim.warmup: choice(0.1, 0.2)\n")
    assert read_space("mine.yaml") == {"task.optim.warmup": "choice(0.1, 0.2)"}
    (tmp_path / "empty.yaml").write_text("")
    with pytest.raises(ConfigError, match="must hold keys with sets of values"):
        read_space("empty.yaml")
    with pytest.raises(ConfigError, match="Did you mean 'rates'"):
        read_space("rate")


@pytest.mark.parametrize("name", ["rates", "recipe"])
def test_every_space_of_ours_composes(name):
    search = requested(["model=tape", "task=arithmetic", f"space={name}", *TINY])
    search.check()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["model=rope", "space=rates"], "a search needs task="),
        (["task=c4", "space=rates"], "a search needs model="),
        (["model=rope", "task=c4"], "a search needs space="),
        (["model=rpoe", "task=c4", "space=rates"], "Did you mean 'rope'"),
        (["model=[rope,nope]", "task=c4", "space=rates"], "takes a pattern of layers by name"),
        (["model=rope", "task=c4", "space=rates", "metric=test/loss"], "is not of validation"),
        (["model=rope", "task=c4", "space=rates", "trials=0"], "trials=0 must be"),
        (["model=rope", "task=c4", "space=rates", "trials=two"], "trials=two must be"),
        (["model=rope", "task=c4", "space=rates", "pruner=mean"], "pruner=mean is not known"),
        (["model=rope", "task=c4", "space=rates", "seed=1"], "seed=1 is no word of a search"),
        (["model=rope", "model=nope", "task=c4", "space=rates"], "exclude each other"),
    ],
)
def test_mistakes_in_the_words_are_told(words, told):
    with pytest.raises(ConfigError, match=told):
        requested(words)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["task.optim.lrr=interval(1,2)"], "Did you mean 'task.optim.lr'"),
        (["task.arch.heads=choice(2,3)"], "is not divisible by task.arch.heads=3"),
        (["trainer.devices=2"], "a run of a search has one device"),
        (["debug=one_batch"], "debug=one_batch has no place in a search"),
        (["debug.max_steps=2"], r"debug\.max_steps=2 has no place in a search"),
        (["checkpoint=/nowhere"], "/nowhere"),
    ],
)
def test_a_space_that_cannot_run_is_told_before_it_begins(words, told):
    with pytest.raises(ConfigError, match=told):
        search_of(*words).check()


def test_steps_are_searched_with_one_seed_only():
    words = ["model=rope", "task=arithmetic", "task.optim.max_steps=choice(10,20)", "trainer=cpu"]
    requested(words).check()
    with pytest.raises(ConfigError, match="with one seed only"):
        requested([*words, "seeds=0,1"]).check()


def test_numbers_are_rounded_to_what_one_would_write():
    assert rounded(0.001234567, FloatDistribution(0.001, 0.1)) == 0.001235
    assert rounded(0.999951, FloatDistribution(0.9, 0.99999)) == 0.999951  # 1.0 is not in the set
    assert rounded(3, IntDistribution(1, 8)) == 3
    assert words_of({"a.b": 0.001235, "c": 3, "d": "x"}) == ["a.b=0.001235", "c=3", "d=x"]


def test_further_models_and_trials_are_of_the_same_search():
    assert search_of().name == search_of("trials=50", "runs=elsewhere").name
    assert requested([*RATES[1:], "model=tape", *TINY]).name == search_of().name
    assert search_of("seeds=0,1").name != search_of().name
    keys = ["task.optim.warmup=0.1", "task.optim.decay=0.5"]
    assert search_of(*keys).name == search_of(*keys[::-1]).name != search_of().name


def ended(journal, model, score):
    """A trial that ends with a score."""
    claimed = journal.claim()
    assert claimed.model == model
    journal.tell(claimed, score, worker.TrialState.COMPLETE)
    return claimed.values


def test_models_take_turns_and_begin_with_the_config(tmp_path):
    search = search_of("trials=2")
    journal = Journal(search, tmp_path)
    first = [ended(journal, model, 1.0) for model in ("rope", "nope")]
    assert first == [{"task.optim.lr": compose_config(["task=arithmetic"]).task.optim.lr}] * 2
    second = [ended(journal, model, 1.0) for model in ("rope", "nope")]
    assert second[0] == second[1] != first[0]  # the same points for every model
    assert journal.claim() is None
    assert journal.left() == 0


def test_what_is_sampled_does_not_depend_on_interruptions(tmp_path):
    def values(folder, reopen):
        search, found = requested([RATES[0].replace(",nope", ""), *RATES[1:], *TINY]), []
        journal = Journal(search, folder)
        for number in range(STARTUP + 2):
            journal = Journal(search, folder) if reopen else journal
            found.append(ended(journal, "rope", number * 1.0)["task.optim.lr"])
        return found

    whole = values(tmp_path / "a", reopen=False)
    assert values(tmp_path / "b", reopen=True) == whole
    assert len(set(whole)) == len(whole)


def test_a_trial_of_a_killed_worker_is_taken_over_and_one_under_way_is_not(tmp_path):
    search = search_of("trials=3")
    mine, other = Journal(search, tmp_path), Journal(search, tmp_path)
    first, second = mine.claim(), other.claim()
    assert (first.model, second.model) == ("rope", "nope")
    first.lock.release()  # as when its process ends
    again = other.claim()
    assert (again.model, again.trial.number, again.values) == ("rope", 0, first.values)
    assert other.claim().trial.number == 1


def test_a_damaged_journal_is_told(tmp_path):
    Journal(search_of(), tmp_path).claim().lock.release()
    whole = (tmp_path / "journal.log").read_text()
    number = whole.count("\n") + 1
    foreign = ('{"op_code": 0}', '{"op_code": 99}', '{"op_code": 4, "trial_id": []}')
    for line in ("{]", "[1]", "5", "[" * 100_000, *foreign):
        behind = whole if line in foreign else "{]\n"
        (tmp_path / "journal.log").write_text(f"{whole}{line}\n{behind}")
        with pytest.raises(ConfigError, match=rf"cannot be used: line {number} of journal\.log"):
            Journal(search_of(), tmp_path)


def test_a_line_that_another_machine_left_unfinished_costs_nothing(tmp_path):
    """Others have written on behind it: their entries are kept, at their places."""
    first = Journal(search_of(), tmp_path)
    first.claim().lock.release()
    counts = [len(first.trials(model)) for model in first.search.models]
    path = tmp_path / "journal.log"
    *before, last = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*before, b'{"op_code": 4, "worker_id": "x{', last]))
    size = path.stat().st_size
    found = Journal(search_of(), tmp_path)
    assert path.stat().st_size == size
    assert [len(found.trials(model)) for model in found.search.models] == counts
    assert found.claim() is not None


asked = optuna.Study.ask


def test_a_secret_is_refused_before_anything_is_written(tmp_path, capsys):
    assert command.main([*RATES, *TINY, "logger.tags=[hf_abcdefghijklmnopqrstuv]"]) == 2
    assert "hf_abc" not in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def fake_run(losses):
    """A run whose validations at steps 5, 10, 15 and 20 are ``losses(lr)``."""

    def run(cfg, further):
        for step, loss in zip((5, 10, 15, 20), losses(cfg.task.optim.lr), strict=True):
            module = SimpleNamespace(validation={"val/loss": loss})
            trainer = SimpleNamespace(global_step=step, max_steps=20)
            for callback in further:
                callback.on_validation_end(trainer, module)
        return {"run": f"run-{cfg.seed}", "metrics": {"val/loss": loss}}

    return run


def test_scores_are_means_over_seeds_and_laggards_are_given_up(tmp_path, monkeypatch):
    """The fifth trial is worse than all before it; later ones are judged step by step."""
    seen = []

    def losses(lr):
        seen.append(lr)
        trial = (len(seen) - 1) // 2
        return [9.0] * 4 if trial >= STARTUP else [4.0, 3.0, 2.0, 1.0 + trial]

    search = requested(["model=rope", *RATES[1:], *TINY, "trials=5", "seeds=0,1"])
    monkeypatch.setattr(worker, "run", fake_run(losses))
    journal = Journal(search, tmp_path)
    worker.work(search, journal)
    records = journal.as_records()["rope"]
    assert [one["state"] for one in records] == ["finished"] * STARTUP + ["given up"]
    assert [one["score"] for one in records] == [1.0, 2.0, 3.0, 4.0, None]
    assert records[0]["runs"] == ["run-0", "run-1"]
    assert records[0]["steps"] == [5, 10, 15, 20, 25, 30, 35, 40]
    assert records[-1]["scores"] == [9.0]


def test_a_later_seed_that_lags_is_given_up(tmp_path, monkeypatch):
    seen = []

    def losses(lr):
        seen.append(lr)
        trial, seed = divmod(len(seen) - 1, 2)
        return [50.0 if trial == STARTUP and seed else 1.0] * 4

    search = requested(["model=rope", *RATES[1:], *TINY, "trials=5", "seeds=0,1"])
    monkeypatch.setattr(worker, "run", fake_run(losses))
    journal = Journal(search, tmp_path)
    worker.work(search, journal)
    last = journal.as_records()["rope"][-1]
    assert (last["state"], last["scores"]) == ("given up", [1.0, 1.0, 1.0, 1.0, 50.0])


def test_nothing_is_given_up_without_a_pruner(tmp_path, monkeypatch):
    search = requested(["model=rope", *RATES[1:], *TINY, "trials=6", "pruner=none"])
    losses = iter(range(6))
    monkeypatch.setattr(worker, "run", fake_run(lambda lr: [float(next(losses))] * 4))
    journal = Journal(search, tmp_path)
    worker.work(search, journal)
    assert {one["state"] for one in journal.as_records()["rope"]} == {"finished"}


def test_a_trial_that_fails_costs_no_other(tmp_path, monkeypatch):
    def run(cfg, further):
        if cfg.model.name == "rope":
            raise RuntimeError("not finite")
        return {"run": "r", "metrics": {"val/loss": 1.0}}

    monkeypatch.setattr(worker, "run", run)
    search = search_of("trials=1")
    journal = Journal(search, tmp_path)
    worker.work(search, journal)
    assert journal.as_records()["rope"][0]["why"] == "not finite"
    assert {m: t[0]["state"] for m, t in journal.as_records().items()} == {
        "rope": "failed",
        "nope": "finished",
    }


def test_an_unmeasured_metric_ends_the_search(tmp_path, monkeypatch):
    search = search_of("trials=1", "metric=val/los")
    monkeypatch.setattr(worker, "run", fake_run(lambda lr: [1.0] * 4))
    with pytest.raises(ConfigError, match="Did you mean 'val/loss'"):
        worker.work(search, Journal(search, tmp_path))


def test_a_test_that_gives_no_number_does_not_cost_the_trial(tmp_path, monkeypatch):
    finish = fake_run(lambda lr: [3.0, 2.0, 1.5, 1.0])

    def run(cfg, further):
        finish(cfg, further)
        raise NotFiniteError("test/perplexity is inf after training.")

    monkeypatch.setattr(worker, "run", run)
    search = requested(["model=rope", *RATES[1:], *TINY, "trials=1"])
    journal = Journal(search, tmp_path)
    worker.work(search, journal)
    assert journal.as_records()["rope"][0]["score"] == 1.0


def test_what_was_tried_is_not_tried_again(tmp_path):
    """Every combination is a trial, once, and then the search is over."""
    words = ["model=rope", "task=arithmetic", "task.optim.lr=choice(0.001,0.003,0.002,0.004)"]
    search = requested([*words, *TINY, "task.optim.warmup=choice(0.05,0.1)"])
    assert search.trials == 8
    journal = Journal(search, tmp_path)
    found = [ended(journal, "rope", float(number)) for number in range(8)]
    assert len({tuple(values.items()) for values in found}) == 8
    assert journal.claim() is None
    assert journal.left() == 0
    assert len(journal.as_records()["rope"]) == 8


@pytest.mark.parametrize(
    "error", [FolderError("another process works on it."), OSError(28, "No space left on device")]
)
def test_what_is_not_the_fault_of_a_trial_leaves_it_open(tmp_path, monkeypatch, error):
    def run(cfg, further):
        raise error

    monkeypatch.setattr(worker, "run", run)
    search = search_of("trials=1")
    with pytest.raises(type(error)):
        worker.work(search, Journal(search, tmp_path))
    monkeypatch.setattr(worker, "run", fake_run(lambda lr: [1.0] * 4))
    journal = Journal(search, tmp_path)
    worker.work(search, journal)
    for trials in journal.as_records().values():
        assert [trial["state"] for trial in trials] == ["finished"]


def test_a_signal_waits_until_the_journal_is_written(tmp_path, monkeypatch):
    journal, came = Journal(search_of("trials=1"), tmp_path), []
    before = signal.signal(signal.SIGUSR1, lambda *_: came.append(journal.left()))
    try:
        monkeypatch.setattr(
            optuna.Study, "ask", lambda study: signal.raise_signal(signal.SIGUSR1) or asked(study)
        )
        claimed = journal.claim()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert claimed is not None
    assert len(came) == 1


def test_budgets_that_are_shown_are_equal(tmp_path):
    journal = Journal(search_of("trials=2"), tmp_path)
    for model in ("rope", "nope", "rope", "nope"):
        ended(journal, model, 1.0)
    fewer = Journal(search_of("trials=1"), tmp_path)
    assert [len(trials) for trials in fewer.as_records().values()] == [1, 1]


def test_a_caption_counts_the_trials_that_ended(tmp_path):
    search = requested(["model=rope,nope", "task=arithmetic", *TINY, "trials=2", "space=rates"])
    journal = Journal(search, tmp_path)
    for model in ("rope", "nope", "rope"):
        ended(journal, model, 1.0)
    record = {**vars(search), "models": journal.as_records()}
    assert "A search of up to 2 trials a model (ended: 2 of RoPE, 1 of NoPE). Task" in (
        searches.caption(record)
    )
    ended(journal, "nope", 1.0)
    record["models"] = journal.as_records()
    assert "A search of 2 trials a model. Task" in searches.caption(record)


def test_another_precision_is_another_search():
    assert search_of("trainer.precision=32-true").name != search_of().name


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["task.optim.lr=0.5"], "task.optim.lr is given twice"),
        (["++task.optim.lr=interval(0.1,0.2)"], "task.optim.lr is given twice"),
        (["trainer.micro_batch=choice(2,4)"], "trainer.micro_batch cannot be searched"),
        (["seed=choice(1,2)"], "is no word of a search|cannot be searched"),
        (["++seed=5"], "is no word of a search"),
        (["seeds=0,0"], "seeds=0,0 names a seed twice"),
        (["trials=²"], "must be a whole number"),
        (["task.optim.lr=choice(0.5)"], "task.optim.lr is given twice"),
    ],
)
def test_keys_that_no_trial_may_set_are_told(words, told):
    with pytest.raises(ConfigError, match=told):
        requested([*RATES, *words])


def test_a_torn_line_is_cut_off_and_nothing_else_is_lost(tmp_path):
    journal = Journal(search_of("trials=2"), tmp_path)
    ended(journal, "rope", 1.0)
    path = tmp_path / "journal.log"
    path.write_bytes(path.read_bytes() + b'{"op_code": 4, "work')
    again = Journal(search_of("trials=2"), tmp_path)
    assert again.as_records()["rope"][0]["score"] == 1.0
    ended(again, "nope", 1.0)
    assert Journal(search_of("trials=2"), tmp_path).left() == 2


def test_a_search_ends_with_a_table_a_picture_and_the_next_command(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(searches, "FOLDER", tmp_path / "results")
    words = [*RATES, *TINY, "trials=2", f"runs={tmp_path / 'runs'}"]
    assert command.main([*words, "--record"]) == 0
    printed = capsys.readouterr().out
    assert "Best of rope: tape-exp train model=rope task=arithmetic" in printed
    (record,) = searches.read_searches(tmp_path / "results")
    assert [len(record["models"][model]) for model in ("rope", "nope")] == [2, 2]
    (folder,) = tmp_path.glob("runs/.tune/*")
    assert {path.name for path in folder.glob("search.*")} >= {"search.md", "search.png"}
    best = searches.best_of(record, "rope")
    assert f"task.optim.lr={best['values']['task.optim.lr']} seed=1" in printed
    content = gather([], [], [record])
    assert content.searches[0].command == record["command"]
    assert [row["model"] for row in content.searches[0].table.rows] == ["RoPE", "NoPE"]
    assert str(tmp_path) not in json.dumps(record), "a record is of no machine"
    assert len(content.searches[0].plots) == 2
    with pytest.raises(ConfigError, match="has 2 finished trials of rope"):
        searches.require_no_loss({**record, "models": {"nope": record["models"]["nope"]}})
    for name, text in {"a": "[1]", "b": "{", "c": '{"models": {}}', "d": '{"models": 5}'}.items():
        (tmp_path / "results" / f"{name}.json").write_text(text)
    assert searches.read_searches(tmp_path / "results") == [record]
    assert command.main(words) == 0  # nothing is left to do
    assert json.loads((folder / "search.json").read_text())["models"] == record["models"]


class StopsAtOnce(Callback):
    def on_train_batch_end(self, *_, **__):
        raise worker.Preempted("SIGUSR1")


def test_a_killed_search_goes_on_where_it_was(tmp_path, monkeypatch):
    """Its workers leave with it, and the run goes on from its checkpoint, as the same trial."""
    words = ["model=rope", *RATES[1:], *TINY, "trials=1", "task.optim.max_steps=100000"]
    words = [*words, "trainer.checkpoint_every=10", "trainer.validate_every=1000"]
    process = subprocess.Popen(
        [sys.executable, "-m", "tape_exp.tune", *words, "--cores", "2"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.DEVNULL,
    )
    while process.poll() is None and not [*tmp_path.glob("runs/*/*/*/*/checkpoints/*.ckpt")]:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    journal = Journal(search := requested(words), search.folder())
    (trial,) = journal.trials("rope")
    while (lock := journal._held("rope", trial)) is None:  # a worker holds it while it runs
        time.sleep(0.05)
    lock.release()
    (log,) = tmp_path.glob("runs/arithmetic/smoke/rope/*/log.txt")
    assert "Going on from step" not in log.read_text()
    monkeypatch.setattr(worker, "run", lambda cfg, more: run(cfg, [*more, StopsAtOnce()]))
    assert command.main(words) == 85
    assert "Going on from step" in log.read_text()
    assert [one.number for one in journal.trials("rope")] == [trial.number]
    assert journal.left() == 1


def test_time_that_is_over_is_status_85(tmp_path, monkeypatch, capsys):
    def preempted(search, journal):
        journal.claim().lock.release()
        raise worker.Preempted("SIGUSR1")

    monkeypatch.setattr(worker, "work", preempted)
    assert command.main([*RATES, *TINY, "trials=1", "--worker=0"]) == 85  # a task is queued again
    assert command.main([*RATES, *TINY, "trials=1", "--minutes", "5"]) == 85
    assert "trials left: 2; the same command goes on." in capsys.readouterr().err


def test_a_sweep_of_wandb_runs_the_same_configs():
    """What W&B's agent makes of the command, with values of its own, composes."""
    words = ["model=tape", "task=arithmetic", "space=recipe", "task.arch.layers=range(1,4)"]
    sweep = yaml.safe_load(agent.sweep_yaml(requested(words)))
    assert sweep["metric"] == {"name": "val/loss", "goal": "minimize"}
    values = {
        key: {"value": one.get("value", one.get("min", one.get("values", [None])[0]))}
        for key, one in sweep["parameters"].items()
    }
    given = create_sweep_command_args({"args": values})["args_no_hyphens"]
    assert sweep["command"][-1] == "${args_no_hyphens}"
    cfg = compose_config([*sweep["command"][2:-1], *given])
    assert (cfg.task.optim.lr, cfg.task.optim.position_lr) == (0.0003, 1.0)
    assert (cfg.task.arch.layers, cfg.seed) == (1, 0)
    for more, told in (([], "of one model"), (["model=rope", "seeds=0,1"], "one seed")):
        with pytest.raises(ConfigError, match=told):
            agent.sweep_yaml(requested([*(RATES[1:] if more else RATES), *more]))
    with pytest.raises(ConfigError, match="needs logger=wandb"):
        agent.sweep_yaml(requested([*words, "logger=none"]))


def test_workers_are_one_array(capsys):
    words = [*RATES, *TINY, "trials=9", "hydra.launcher.partition=cpu"]
    assert command.main([*words, "--slurm", "4", "--dry-run"]) == 0
    printed = capsys.readouterr().out
    script = printed.partition("# every task:")[0]
    assert "#SBATCH --partition=cpu" in script
    assert "-m tape_exp.tune)" in script
    assert subprocess.run(["bash", "-n"], input=script, text=True).returncode == 0
    assert "trials=9 --worker=0\n# sbatch --array=0-3 " in printed
    assert "hydra.launcher" not in printed.partition("# every task:")[2]
