"""Which runs the words of a sweep name."""

import shlex

import pytest

from tape_exp.artifacts import runs as room
from tape_exp.artifacts.artifact import load
from tape_exp.artifacts.requests import requested, specs_of_words
from tape_exp.experiments.bases import spec_of_base
from tape_exp.experiments.grid import combinations, scale_and_seeds
from tape_exp.experiments.run_spec import RunSpec
from tape_exp.experiments.slurm import sweep_folder
from tape_exp.results.record import Record
from tape_exp.runs.directory import RunDirectory
from tape_exp.runs.identity import identity_of, without_folders
from tape_exp.settings.compose import compose_config
from tape_exp.settings.errors import ConfigError
from tests.conftest import finish


def test_commas_ranges_and_globs_are_hydras():
    assert combinations(["model=rope,tape", "seed=range(0,2)", "task.optim.lr=0.1"]) == [
        ["model=rope", "seed=0", "task.optim.lr=0.1"],
        ["model=rope", "seed=1", "task.optim.lr=0.1"],
        ["model=tape", "seed=0", "task.optim.lr=0.1"],
        ["model=tape", "seed=1", "task.optim.lr=0.1"],
    ]
    assert [words[0] for words in combinations(["model=glob(rope_*)"])] == [
        f"model=rope_{name}" for name in ("linear", "ntk", "temperature", "theta", "window", "yarn")
    ]


@pytest.mark.parametrize(
    ("words", "runs"),
    [
        (
            ["model=rope", "slurm.partition=gpu", "seed=0,1"],
            ["model=rope seed=0", "model=rope seed=1"],
        ),
        (["model=rope,nope", "seeds=4", "model=tape"], ["seed=4 model=tape"]),
        (["seed=0,1", "runs=a", "model=tape", "seed=2", "runs=b"], ["model=tape seed=2 runs=b"]),
    ],
)
def test_the_last_word_of_a_key_counts_and_those_for_sbatch_name_no_run(words, runs):
    assert [job.line for job in specs_of_words(words)] == runs


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("model=rope seed=0,1 seeds=5", "seed=0,1 and seeds=5 are of one key: leave one of them"),
        ("model=ropee", "Did you mean 'rope', 'rerope' or 'p_rope'? `tape-exp train --help` lists"),
        ("fig_adition", "Did you mean 'fig_addition', 'fig_addition_20' or 'fig_addition_yarn'? "),
        ("fig_addition scale=digits5", "no runs at scale=digits5: give scale=smoke or scale="),
        ("fig_address", "fig_address has no runs at scale=smoke: give scale=ladder."),
        ("theory", "theory has no runs of models: `tape-exp theory --record` measures it."),
    ],
)
def test_words_that_name_no_runs(words, told):
    with pytest.raises(ConfigError) as error:
        specs_of_words(words.split())
    assert told in str(error.value)


def test_only_artifacts_have_the_scale_of_all_sizes():
    with pytest.raises(ConfigError, match="scale=ladder is not known"):
        scale_and_seeds(["model=rope", "scale=ladder"])
    artifacts, scale, *_ = requested(["fig_address", "scale=ladder"])
    assert ([artifact.name for artifact in artifacts], scale) == (["fig_address"], "ladder")


@pytest.mark.parametrize(
    ("words", "runs"),
    [
        (["model=rope", "seed=0,1,0"], ["model=rope seed=0", "model=rope seed=1"]),
        (["task.optim.lr=0.1,0.2,0.10"], ["task.optim.lr=0.1", "task.optim.lr=0.2"]),
        (["task.optim.betas=[0.9,0.99]", "seed=1"], ["'task.optim.betas=[0.9,0.99]' seed=1"]),
        (["cache='a,b',c"], [r"""'cache='"'"'a,b'"'"''""", "cache=c"]),
        (
            ["~task.optim.lr", "seed=choice(1,2)"],
            ["'~task.optim.lr' seed=1", "'~task.optim.lr' seed=2"],
        ),
    ],
)
def test_each_combination_is_one_run(words, runs):
    assert [shlex.join(choice) for choice in combinations(words)] == runs


@pytest.mark.slow
def test_an_artifacts_runs_follow_those_that_they_begin_from(monkeypatch, tmp_path):
    monkeypatch.setattr(room, "read_records", list)
    jobs = specs_of_words(["tab_shift", "seed=4", f"runs={tmp_path}"])
    models = load("tab_shift").rows[0].dimensions["model"]
    assert [job.level for job in jobs] == [0] * len(models) + [1] * len(models)
    assert {(job.config.task.name, job.config.model.name) for job in jobs[: len(models)]} == {
        ("c4", m) for m in models
    }
    base = jobs[0]
    assert (
        base.folder == RunDirectory(compose_config(base.overrides)).path
    )  # as its task composes it
    assert jobs[-1].folder is None, "it depends on the base, which is not finished"
    directory = RunDirectory(base.config)
    directory.open({})
    (directory.checkpoints / "step00000008.ckpt").touch()
    finish(directory)
    later = specs_of_words(["tab_shift", "seed=4", f"runs={tmp_path}"])
    (started,) = [job for job in later if job.level and job.folder]
    assert started.config.model == base.config.model


@pytest.mark.slow
def test_recorded_runs_of_an_artifact_are_done():
    jobs = specs_of_words(["fig_addition", "scale=smoke", "seed=0"])
    assert len(jobs) == len(load("fig_addition").rows[0].dimensions["model"])
    assert all(job.done for job in jobs)


@pytest.mark.slow
def test_an_artifacts_runs_keep_their_numbers_when_records_appear(monkeypatch, tmp_path):
    words = ["tab_shift", "seed=5,4", f"runs={tmp_path}"]
    monkeypatch.setattr(room, "read_records", list)
    jobs = specs_of_words(words)
    assert not any(job.recorded for job in jobs)
    bases = [i for i, job in enumerate(jobs) if job.level == 0]
    rest = [i for i, job in enumerate(jobs) if job.level == 1]
    assert [jobs[i].config.seed for i in bases] == [5] * (len(bases) // 2) + [4] * (len(bases) // 2)
    monkeypatch.setattr(
        room, "read_records", lambda: [record_of(jobs[i]) for i in (bases[1], rest[0])]
    )
    later = specs_of_words(words)
    assert [job.line for job in later] == [job.line for job in jobs]
    assert sweep_folder(later) == sweep_folder(jobs)
    assert [i for i, job in enumerate(later) if job.recorded] == [bases[0], rest[0]], (
        "what begins from base 1 still needs it"
    )


def record_of(job):
    """Of its record, what says which run it is of."""
    config, name = without_folders(identity_of(job.config)), " ".join(job.overrides)
    facts = {"seed": job.config.seed, "run": name, "metrics": {}, "started": ""}
    return Record({"config": config, **facts})


@pytest.mark.parametrize("plus", ["", "++"])
def test_a_base_has_none_of_the_keys_of_the_task_that_begins_from_it(plus):
    own = f"{plus}task.optim.max_steps=5"
    words = ["model=rope", "task=scrolls", "task.init_from=c4", own, "scale.text=builtin"]
    base = spec_of_base(RunSpec(words, compose_config(words)))
    assert own not in base.overrides
    assert base.config.task.name == "c4"
    assert base.config.task.optim.max_steps == compose_config(["task=c4"]).task.optim.max_steps
