"""Where runs are made is an option: the same words run here, are submitted, or are collected."""

import shlex
from argparse import Namespace
from pathlib import Path

import pytest

from tape_exp.artifacts import __main__ as compare
from tape_exp.artifacts import comparison
from tape_exp.artifacts import runs as room
from tape_exp.artifacts.artifact import load
from tape_exp.artifacts.requests import specs_of_words
from tape_exp.bench import __main__ as bench
from tape_exp.experiments import cluster as cluster_module
from tape_exp.experiments import local, queue, slurm
from tape_exp.experiments.execute import execute
from tape_exp.experiments.run_spec import read_specs
from tape_exp.paper import __main__ as paper
from tape_exp.results.store import read_records
from tape_exp.settings import folders
from tape_exp.settings.folders import ROOT
from tape_exp.sweep import main
from tape_exp.tune import __main__ as tune
from tests.artifacts.fakes import train_here
from tests.conftest import SMALL

TINY = [*SMALL, "task.train_digits=2", "task.test_digits=3", "task.samples_per_cell=2"]
TINY += ["task.optim.max_steps=2", "logger=none", "trainer=cpu"]


@pytest.fixture
def cluster(monkeypatch, tmp_path):
    """A SLURM that takes every job: the arguments that sbatch is given. Nothing runs here."""
    calls = []

    def sbatch(arguments):
        calls.append(list(arguments))
        return str(40 + len(calls))

    monkeypatch.setattr(queue, "tasks_in_queue", list)
    monkeypatch.setattr(slurm, "sbatch", sbatch)
    monkeypatch.setattr(slurm, "require_sbatch", lambda: None)
    monkeypatch.setattr(cluster_module, "CLUSTER", tmp_path / "cluster.yaml")
    monkeypatch.setattr(slurm, "snapshot", lambda folder: ROOT)
    monkeypatch.setattr(local, "start", None)
    return calls


def sweep_of(arguments: list[str]) -> Path:
    """The folder of the sweep whose script sbatch was given."""
    return Path(arguments[-1]).parent


def test_a_comparison_is_submitted_with_each_of_its_values(cluster, tmp_path, capsys):
    words = ["task=arithmetic", "model=rope,nope", "task.optim.lr=0.011,0.022", "seed=0,1"]
    words += [f"runs={tmp_path}", "slurm.mem=7G"]
    assert compare.main([*words, "--slurm", "--after", "17:18"]) == 0
    (arguments,) = cluster
    assert arguments[0] == "--array=0,1,2,3,4,5,6,7%64"
    assert arguments[1] == "--dependency=afterany:17:18"
    specs = read_specs(sweep_of(arguments))
    chosen = {
        tuple(word for word in spec.overrides if word.startswith(("model", "task.optim", "seed")))
        for spec in specs
    }
    assert len(chosen) == 8
    assert "#SBATCH --mem=7G" in (sweep_of(arguments) / "script.sh").read_text()
    assert "tape-exp status --runs" in capsys.readouterr().out


def test_values_of_other_keys_are_rows_of_a_comparison():
    words = ["task=arithmetic", "model=rope", "task.optim.lr=0.001,0.002", "seed=0,1"]
    artifact, scale, seeds = comparison.requested(words)
    assert (scale, seeds) == ("smoke", [0, 1])
    assert [*artifact.rows[0].dimensions] == ["task.optim.lr", "model"]
    assert artifact.overrides == ["task=arithmetic"]
    specs = room.specs_of_artifacts([artifact], scale, seeds, records=[])
    assert [spec.config.task.optim.lr for spec in specs] == [0.001, 0.002] * 2


def test_what_an_artifact_lacks_is_one_sweep_whatever_names_it(cluster, monkeypatch, tmp_path):
    monkeypatch.setattr(room, "read_records", list)
    words = ["fig_dp_layers", "seed=5", f"runs={tmp_path}"]
    assert paper.main(["run", *words, "--slurm"]) == 0
    assert main(["sweep", *words]) == 0
    assert [arguments[0] for arguments in cluster] == ["--array=0%64", "--array=1%64"] * 2
    assert len({sweep_of(arguments) for arguments in cluster}) == 1


def test_a_bench_is_submitted_and_goes_on_with_the_same_command(cluster, tmp_path):
    """Only the rates at the first seed are known before any has run."""
    words = ["model=rope,nope", "seed=0,1", "--tasks", "copy,sort", "--rates", "0.001,0.003"]
    words += [f"runs={tmp_path}/runs", "--out", str(tmp_path / "bench"), "--slurm"]
    assert bench.main(words) == 0
    (arguments,) = cluster
    specs = read_specs(sweep_of(arguments))
    assert len(specs) == 8
    assert all("seed=0" in spec.overrides for spec in specs)


def test_workers_of_a_search_give_its_command(cluster, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["rope", "model=nope", "task=arithmetic", "--space", "rates", "trials=3", "seed=4"]
    assert tune.main([*words, "--slurm", "3", "slurm.time=60"]) == 0
    (arguments,) = cluster
    assert arguments[0] == "--array=0-2"
    script = (sweep_of(arguments) / "script.sh").read_text()
    assert f"export PYTHONPATH={ROOT}$" in script
    assert "-P -m tape_exp.tune)" in script
    assert "#SBATCH --time=60" in script
    lines = (sweep_of(arguments) / "jobs.tsv").read_text().splitlines()
    assert len(lines) == 3
    given = tune.options_of(shlex.split(lines[0].partition("\t")[0]))
    assert (given.space, given.trials, given.slurm) == ("rates", "3", None)
    assert given.words == ["rope", "model=nope", "task=arithmetic", "seed=4"]


@pytest.mark.slow
def test_a_grid_runs_here_once_and_is_collected(tmp_path, monkeypatch, capsys):
    """sweep trains and records nothing in results/; collect records and trains nothing."""
    monkeypatch.setattr(folders, "RESULTS", tmp_path / "results")
    words = ["task=arithmetic", "model=nope", "seed=0,1", *TINY, f"runs={tmp_path}/runs"]
    assert main(["collect", *words]) == 1
    assert "0 collected, 0 recorded before, 2 not finished." in capsys.readouterr().out
    monkeypatch.setattr(local, "start", train_here)
    assert main(["sweep", *words, "--cores", "2"]) == 0
    assert all(spec.done for spec in specs_of_words(words))
    assert not (tmp_path / "results").exists()
    monkeypatch.setattr(local, "start", None)  # nothing runs again
    assert main(["sweep", *words, "--cores", "2"]) == 0
    assert main(["collect", *words]) == 0
    assert "2 collected" in capsys.readouterr().out
    seeds = [run.seed for run in read_records(tmp_path / "results" / "records")]
    assert sorted(seeds) == [0, 1]


@pytest.mark.slow
def test_paper_run_collects_what_is_finished_before_anything_runs(tmp_path, monkeypatch):
    """An artifact's run that train.py made is recorded, not made again."""
    artifact = load("fig_addition")
    extra = [*TINY, f"runs={tmp_path}/runs"]
    specs = room.specs_of_artifacts([artifact], "smoke", [0], extra, records=[])[:2]
    train_here(specs[0], False)
    began = []

    def start(spec, quiet):
        began.append(spec)
        return train_here(spec, quiet)

    monkeypatch.setattr(local, "start", start)
    options = Namespace(slurm=False, cores=1, minutes=None, dry_run=False)
    outcome = execute(specs, options, ["paper", "run"], tmp_path / "records")
    assert (outcome.left, outcome.failed) == (0, {})
    assert began == [specs[1]]
    models = {run.config["model"]["name"] for run in read_records(tmp_path / "records")}
    assert models == {spec.config.model.name for spec in specs}


@pytest.mark.parametrize(
    ("main", "words", "count"),
    [
        (main, ["sweep", "task=arithmetic", "model=rope,nope", "--cores=2"], 2),
        (compare.main, ["task=arithmetic", "model=rope,nope", "seed=70,71"], 4),
        (paper.main, ["run", "fig_addition", "--only=rope", "seed=70"], 1),
        (bench.main, ["model=rope,nope", "--tasks=copy,sort", "--rates=0.001", "seed=70,71"], 4),
    ],
)
def test_a_dry_run_shows_what_is_missing_and_begins_nothing(main, words, count, tmp_path, capsys):
    assert main([*words, f"runs={tmp_path}", "--dry-run"]) == 0
    assert f"missing runs: {count}\n" in capsys.readouterr().out
    assert not [*tmp_path.iterdir()]


def test_a_dry_run_with_slurm_submits_nothing(cluster, tmp_path, capsys):
    words = ["task=arithmetic", "model=rope", "seed=70", f"runs={tmp_path}", "--slurm"]
    assert compare.main([*words, "--dry-run"]) == 0
    assert "1 runs: 0 done, 0 in the queue, 1 to submit." in capsys.readouterr().out
    assert cluster == []


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--cores=0"], "--cores: 0 must be a whole number from 1."),
        (["--cap=0"], "--cap: 0 must be a whole number from 1."),
        (
            ["--cpa", "3"],
            "--cpa is not known. Did you mean '--cap'? `tape-exp sweep --help` explains",
        ),
        (["--cap"], "--cap needs a value; "),
        (["--cores=2", "slurm.mem=7G"], "slurm.mem=7G is for jobs of SLURM: add --slurm, or leave"),
        (["--cores=2", "--after=41"], "--after is for jobs of SLURM: add --slurm, or leave it out"),
        (["--cores=2", "--slurm"], "--cores runs here, and --slurm submits: leave one of them out"),
        (["--minutes=5"], "--minutes is for runs here: slurm.time=<minutes> is the time of a job."),
    ],
)
def test_a_wrong_option_is_one_sentence(words, told, capsys):
    assert main(["sweep", "task=arithmetic", "model=rope", "--dry-run", *words]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: {told}")
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("main", "words"),
    [
        (paper.main, ["run", "fig_addition"]),
        (compare.main, ["task=arithmetic", "model=rope"]),
        (bench.main, ["model=rope"]),
        (tune.main, ["model=rope", "task=arithmetic", "--space=rates"]),
    ],
)
def test_words_for_sbatch_need_slurm(main, words, capsys):
    assert main([*words, "slurm.time=60"]) == 2
    told = "error: slurm.time=60 is for jobs of SLURM: add --slurm, or leave it out.\n"
    assert capsys.readouterr().err == told
