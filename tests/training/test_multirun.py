"""What a sweep on one machine says: each run's number, and a table at its end."""

from types import SimpleNamespace

import pytest
from hydra import initialize_config_dir

from tape_exp.settings.compose import register
from tape_exp.settings.folders import CONF
from tape_exp.training import multirun

LOCAL = {"_target_": "hydra._internal.core_plugins.basic_launcher.BasicLauncher"}
CLUSTER = {"_target_": "hydra_plugins.hydra_submitit_launcher.submitit_launcher.SlurmLauncher"}


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setattr(multirun, "_runs", [])
    monkeypatch.setattr(multirun, "_total", 0)
    register()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        yield


def job(number: int, words: list[str], launcher=LOCAL, **params):
    return SimpleNamespace(
        job=SimpleNamespace(num=number),
        launcher=launcher,
        sweeper={"params": params},
        overrides=SimpleNamespace(task=words),
    )


def test_runs_are_numbered_and_end_with_a_table_with_the_best_first(capsys):
    arguments = ["-m", "model=rope,tape", "seed=0"]
    for number, (model, score) in enumerate({"rope": 1.0, "tape": 20.0}.items()):
        words = [f"model={model}", "seed=0", "hydra.job.name=x"]
        multirun.begin(job(number, words), arguments)
        metrics = {"val/loss": 1.0, "ood/exact_match": score, "ood/exact_match_stderr": 0.1}
        multirun.add(multirun.words_of(job(number, words)), {"metrics": metrics})
        multirun.end(job(number, words))
    lines = [line for line in capsys.readouterr().out.splitlines() if line]
    assert lines[:2] == ["Run 1 of 2: model=rope seed=0", "Run 2 of 2: model=tape seed=0"]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
    assert [cells[0], *cells[2:]] == [
        ["run", "ood/exact_match"],
        ["model=tape", "20.00"],
        ["model=rope", "1.00"],
    ]


def test_of_losses_the_least_is_the_best_and_other_results_have_their_own_table(capsys):
    for number, metrics in enumerate(
        [{"test/perplexity": 9.0}, {"test/perplexity": 4.0}, {"id/state": 0.001}]
    ):
        multirun.add([f"seed={number}"], {"metrics": metrics})
    multirun._total = 3
    multirun.add(["seed=3"], {})  # another process of a run
    multirun.end(job(2, []))
    rows = [line for line in capsys.readouterr().out.splitlines() if "seed=" in line]
    assert [row.split()[1:4:2] for row in rows] == [
        ["seed=1", "4.00"],
        ["seed=0", "9.00"],
        ["seed=2", "1.0e-03"],
    ]


def test_runs_of_the_configs_own_sweep_count_and_those_of_a_cluster_say_nothing(capsys):
    multirun.begin(job(0, [], model="rope,tape"), ["seed=0,1,2"])
    assert "Run 1 of 6" in capsys.readouterr().out
    multirun._total = 0
    multirun.begin(job(0, [], launcher=CLUSTER), ["seed=0,1,2"])
    multirun.end(job(0, []))
    assert capsys.readouterr().out == ""
