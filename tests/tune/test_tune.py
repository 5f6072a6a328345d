"""``tape-exp tune``: what is searched, with which budgets, and that a kill loses nothing."""

import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from lightning import Callback
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from tape_exp import sweep
from tape_exp.experiments import queue
from tape_exp.experiments.queue import ArrayTask
from tape_exp.machine.files import read_jsonl
from tape_exp.runs.directory import FolderError
from tape_exp.settings import plugins
from tape_exp.settings.compose import compose_config
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.folders import ROOT
from tape_exp.settings.plugins import source_hash
from tape_exp.training.run import run
from tape_exp.tune import __main__ as command
from tape_exp.tune import work as room
from tape_exp.tune.journal import STATES
from tape_exp.tune.report import print_report
from tape_exp.tune.search import distribution_of, read_space, search_from
from tape_exp.tune.trials import STARTUP, Trials
from tape_exp.tune.work import work
from tests.processes import python

TINY = ["task.arch.layers=1", "task.arch.width=16", "task.arch.ffn=16", "task.optim.batch=4"]
TINY += ["task.optim.max_steps=20", "task.samples_per_cell=1", "trainer=cpu"]
TINY += ["trainer.validate_every=5", "logger=none"]
RATES = ["model=rope,nope", "task=arithmetic", "task.optim.lr=tag(log,interval(0.001,0.1))"]
ONE_MODEL = ["model=rope", *RATES[1:], *TINY]
LR = "task.optim.lr"
ROPE = "tape_exp.models.positions.rope"


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def search_by(words):
    return search_from(command.options_of(words))


def search_of(*words):
    return search_by([*RATES, *TINY, *words])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("interval(0.1,0.5)", FloatDistribution(0.1, 0.5)),
        ("tag(log, interval(0.1, 0.5))", FloatDistribution(0.1, 0.5, log=True)),
        ("int(interval(1,8))", IntDistribution(1, 8)),
        ("tag(log,int(interval(1,8)))", IntDistribution(1, 8, log=True)),
        ("range(2,9,3)", IntDistribution(2, 8, step=3)),
        ("range(3)", IntDistribution(0, 2)),
        ("choice(a,2,0.5,true)", CategoricalDistribution(["a", 2, 0.5, True])),
        ("choice('0.1')", CategoricalDistribution(["0.1"])),
    ],
)
def test_sets_of_values_are_those_of_hydras_sweeps(text, expected):
    assert distribution_of(LR, text) == expected


def test_a_space_is_a_yaml_of_ours_or_of_ones_own(tmp_path):
    assert list(read_space("rates")) == [LR]
    (tmp_path / "mine.yaml").write_text("task.optim.warmup: choice(0.1, 0.2)\n")
    assert read_space("mine.yaml") == {"task.optim.warmup": "choice(0.1, 0.2)"}
    with pytest.raises(ConfigError, match="Did you mean 'rates'"):
        read_space("rate")


def test_further_models_and_trials_are_of_the_same_search():
    assert search_of().name == search_of("trials=50", "runs=elsewhere").name
    assert search_by([*RATES[1:], "model=tape", *TINY]).name == search_of().name
    assert search_of("seed=0,1").name != search_of().name
    assert search_of("trainer.precision=32-true").name != search_of().name
    keys = ["task.optim.warmup=0.1", "task.optim.decay=0.5"]
    assert search_of(*keys).name == search_of(*keys[::-1]).name != search_of().name


def finish(trials, model, score):
    """Claim a trial and end it with a score; return its values."""
    trial, lock = trials.claim()
    assert trial.study.study_name == model
    trial.study.tell(trial, score)
    lock.release()
    return trials.values(trial)


def states(trials, model="rope"):
    return [STATES[trial.state] for trial in trials.of(model)]


def test_models_take_turns_and_begin_with_the_config():
    trials = Trials(search_of("trials=2"))
    first = [finish(trials, model, 1.0) for model in ("rope", "nope")]
    assert first == [{LR: compose_config(["task=arithmetic"]).task.optim.lr}] * 2
    second = [finish(trials, model, 1.0) for model in ("rope", "nope")]
    assert second[0] == second[1] != first[0]  # the same points for every model
    assert trials.claim() is None


def test_a_default_that_only_a_constructor_has_is_tried_first():
    """That of an encoding's own constructor, and that of the optimizer's schema."""
    words = ["model=tape", "task=arithmetic", *TINY, "++model.theta=interval(5000.0,20000.0)"]
    words += ["++task.optim.position_lr=choice(0.5,1.0)"]
    first = finish(Trials(search_by(words)), "tape", 1.0)
    assert first == {"++model.theta": 10000.0, "++task.optim.position_lr": 1.0}


def test_status_shows_searches_and_how_many_of_their_trials_are_missing(monkeypatch, capsys):
    trials = Trials(search_of("trials=3"))
    finish(trials, "rope", 1.0)
    _, _lock = trials.claim()  # which runs
    name = trials.search.name
    tasks = [ArrayTask(name, 0, "RUNNING", "7"), ArrayTask("another", 0, "PENDING", "8")]
    asked = []

    def tasks_in_queue():
        asked.append("squeue")
        return tasks

    monkeypatch.setattr(queue, "tasks_in_queue", tasks_in_queue)
    assert sweep.main(["status"]) == 0
    line = f"search {name}: 1 finished, 5 missing; workers in the queue: 1 running\n"
    assert capsys.readouterr().out == line
    assert asked == ["squeue"]


def test_what_is_sampled_does_not_depend_on_interruptions(tmp_path):
    def values(runs, reopen):
        search, sampled = search_by([*ONE_MODEL, f"runs={tmp_path / runs}"]), []
        trials = Trials(search)
        for number in range(STARTUP + 2):
            trials = Trials(search) if reopen else trials
            sampled.append(finish(trials, "rope", number * 1.0)[LR])
        return sampled

    undisturbed = values("a", reopen=False)
    assert values("b", reopen=True) == undisturbed
    assert len(set(undisturbed)) == len(undisturbed)


def test_a_trial_of_a_killed_worker_is_resumed_and_one_under_way_is_not():
    search = search_of("trials=3")
    mine, other = Trials(search), Trials(search)
    (first, lock), (second, _second_lock) = mine.claim(), other.claim()
    assert (first.study.study_name, second.study.study_name) == ("rope", "nope")
    first.report(3.0, 5)
    lock.release()  # as when its process ends
    again, _again_lock = other.claim()
    assert (again.study.study_name, again.number, again.params) == ("rope", 0, first.params)
    again.report(2.0, 10)
    assert [*mine.of("rope")[0].intermediate_values] == [5, 10]
    third, _third_lock = other.claim()
    assert third.number == 1


@pytest.mark.slow
def test_a_search_goes_on_after_any_cut_of_the_last_line_of_its_journal():
    """As a full disk or a lost machine leaves it. The last line says how a trial ended."""
    search = search_by([*ONE_MODEL, "trials=3"])
    trials, path = Trials(search), search.folder / "journal.log"
    for score in (2.0, 1.0):
        values = finish(trials, "rope", score)
    written = path.read_bytes()
    last = written.splitlines(keepends=True)[-1]
    for missing in range(1, len(last) + 1):
        path.write_bytes(written[:-missing])
        trials = Trials(search)
        if missing > 1:  # more than the end of the line
            assert states(trials) == ["finished", "running"], missing
            assert finish(trials, "rope", 1.0) == values, "the same trial, resumed"
        assert states(trials) == states(Trials(search)) == ["finished", "finished"], missing
        assert all(value for _, value in read_jsonl(path)), missing


def test_a_worker_goes_on_where_another_has_left_half_a_line():
    search = search_by([*ONE_MODEL, "trials=3"])
    trials, path = Trials(search), search.folder / "journal.log"
    finish(trials, "rope", 2.0)
    with path.open("ab") as file:
        file.write(b'{"op_code":6,"wor')
    assert states(trials) == ["finished"]
    finish(trials, "rope", 1.0)
    assert states(trials) == states(Trials(search)) == ["finished", "finished"]


def test_a_damaged_line_amid_a_journal_is_named():
    search = search_by(ONE_MODEL)
    finish(Trials(search), "rope", 2.0)
    path = search.folder / "journal.log"
    first, second, *others = path.read_text().splitlines(keepends=True)
    path.write_text("".join([first, second[:9] + "\n", *others]))
    with pytest.raises(ConfigError, match=r"journal.log, line 2 is damaged: remove that line"):
        Trials(search)


def fake_run(losses):
    """A run whose validations at steps 5, 10, 15 and 20 are ``losses(lr)``."""

    def run(cfg, further):
        for step, loss in zip((5, 10, 15, 20), losses(cfg.task.optim.lr), strict=True):
            module = SimpleNamespace(validation={"val/loss": loss})
            trainer = SimpleNamespace(global_step=step, max_steps=20)
            for callback in further:
                callback.on_validation_end(trainer, module)
        metrics = {"val/loss": loss}
        return {"run": f"run-{cfg.seed}", "metrics": metrics, "sources": {ROPE: source_hash(ROPE)}}

    return run


def test_scores_are_means_over_seeds_and_a_trial_behind_the_median_is_pruned(monkeypatch):
    calls = []

    def losses(lr):
        calls.append(lr)
        trial = (len(calls) - 1) // 2
        return [9.0] * 4 if trial >= STARTUP else [4.0, 3.0, 2.0, 1.0 + trial]

    monkeypatch.setattr(room, "run", fake_run(losses))
    trials = Trials(search_by([*ONE_MODEL, "trials=5", "seed=0,1"]))
    assert work(trials)
    records = trials.of("rope")
    assert states(trials) == ["finished"] * STARTUP + ["pruned"]
    assert [one.value for one in records[:-1]] == [1.0, 2.0, 3.0, 4.0]
    assert records[0].user_attrs["runs"] == ["run-0", "run-1"]
    assert [*records[0].intermediate_values] == [5, 10, 15, 20, 25, 30, 35, 40]
    assert [*records[-1].intermediate_values.values()] == [9.0]


def test_trials_of_an_edited_encoding_are_told(monkeypatch, capsys):
    monkeypatch.setattr(room, "run", fake_run(lambda lr: [1.0] * 4))
    trials = Trials(search_by([*ONE_MODEL, "trials=1"]))
    assert work(trials)
    print_report(trials)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(plugins, "source_hash", lambda module: "0123456789")
    print_report(trials)
    told = f"another version of rope.py; remove {trials.search.folder} and add rerun=true"
    assert told in capsys.readouterr().err


def test_a_trial_that_fails_costs_no_other(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_a_token_of_this_test")

    def run(cfg, further):
        if cfg.model.name == "rope":
            raise RuntimeError("not finite, hf_a_token_of_this_test")
        return {"run": "r", "metrics": {"val/loss": 1.0}}

    monkeypatch.setattr(room, "run", run)
    trials = Trials(search_of("trials=1"))
    work(trials)
    assert (states(trials, "rope"), states(trials, "nope")) == (["failed"], ["finished"])
    assert trials.of("rope")[0].user_attrs["why"] == "not finite, [hidden]"


def test_a_metric_that_validation_lacks_is_told_before_anything_trains():
    search_of("metric=val/exact_match").check()
    with pytest.raises(ConfigError, match=r"metric val/los is not known\. Did you mean 'val/loss'"):
        search_of("metric=val/los").check()


def test_an_unmeasured_metric_ends_the_search(monkeypatch):
    monkeypatch.setattr(room, "run", fake_run(lambda lr: [1.0] * 4))
    trials = Trials(search_of("trials=1", "metric=val/los"))
    with pytest.raises(ConfigError, match="Did you mean 'val/loss'"):
        work(trials)
    assert states(trials) == ["running"]


@pytest.mark.parametrize(
    "error", [FolderError("another process works on it."), OSError(28, "No space left on device")]
)
def test_what_is_not_the_fault_of_a_trial_leaves_it_open(monkeypatch, error):
    def run(cfg, further):
        raise error

    monkeypatch.setattr(room, "run", run)
    trials = Trials(search_by([*ONE_MODEL, "trials=1"]))
    with pytest.raises(type(error)):
        work(trials)
    monkeypatch.setattr(room, "run", fake_run(lambda lr: [1.0] * 4))
    work(trials)
    assert states(trials) == ["finished"]


@pytest.mark.long
def test_workers_here_share_the_trials_of_a_search(tmp_path):
    """As from a shell: what processes are given must be found in a module that they can import."""
    words = [*RATES, *TINY, "trials=2", f"runs={tmp_path / 'runs'}"]
    done = python("-m", "tape_exp", "tune", *words, "--cores", "2", folder=tmp_path, path=str(ROOT))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(" begins: ") == 4, "two models, two trials each"
    assert done.stdout.count("Best of rope: tape-exp train") == 1
    trials = Trials(search_by(words))
    assert [len(trials.of(model)) for model in ("rope", "nope")] == [2, 2]
    assert command.main([*words, "--cores", "2", "--slurm", "2"]) == 2


@pytest.mark.long
def test_a_search_ends_with_its_trials_and_the_next_command(tmp_path, capsys):
    words = [*RATES, *TINY, "trials=2", f"runs={tmp_path / 'runs'}"]
    assert command.main(words) == 0
    printed = capsys.readouterr().out
    assert "Best of rope: tape-exp train model=rope task=arithmetic" in printed
    trials = Trials(search_by(words))
    assert [len(trials.of(model)) for model in ("rope", "nope")] == [2, 2]
    best = min(trials.of("rope"), key=lambda trial: trial.value)
    assert f"{LR}={trials.values(best)[LR]} seed=1" in printed
    assert command.main(words) == 0  # nothing is left to do
    assert capsys.readouterr().out == printed[printed.index(str(trials.search.folder)) :]


class Signals(Callback):
    """Tells this process to leave, at the end of its first step."""

    def on_train_batch_end(self, *_, **__):
        os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.long
def test_a_search_goes_on_where_it_was_killed_and_leaves_when_it_is_told_to(tmp_path, monkeypatch):
    """Its run goes on from the last checkpoint, as the same trial."""
    words = [*ONE_MODEL, "trials=1", "task.optim.max_steps=100000"]
    words += ["trainer.checkpoint_every=10", "trainer.validate_every=1000"]
    program, paths = [sys.executable, "-m", "tape_exp.tune", *words], os.pathsep.join(sys.path)
    environment = os.environ | {"PYTHONPATH": paths}
    process = subprocess.Popen(program, env=environment, stdout=subprocess.DEVNULL)
    while process.poll() is None and not [*tmp_path.glob("runs/*/*/*/*/checkpoints/*.ckpt")]:
        time.sleep(0.05)
    process.kill()
    process.wait()
    (log,) = tmp_path.glob("runs/arithmetic/smoke/rope/*/log.txt")
    assert log.read_text().count("Resuming from step") == 0
    monkeypatch.setattr(room, "run", lambda cfg, more: run(cfg, [*more, Signals()]))
    assert command.main(words) == 85
    assert log.read_text().count("Resuming from step") == 1
    assert "Stopped by SIGTERM" in log.read_text()
    assert states(Trials(search_by(words))) == ["running"]
