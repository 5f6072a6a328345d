"""The bench: which runs it needs, how scores become ranks, and a real one."""

import numpy as np
import pytest
from scipy import stats

from tape_exp.bench import tasks
from tape_exp.bench.__main__ import main
from tape_exp.bench.bench import OUT, Bench
from tape_exp.bench.tables import scores_table
from tape_exp.experiments import local
from tape_exp.results.store import add_records, read_records
from tape_exp.settings.compose import compose_config
from tape_exp.settings.errors import ConfigError
from tests.artifacts.fakes import record, train_here
from tests.conftest import SMALL

TINY = [*SMALL, "task.optim.max_steps=2", "task.samples_per_length=4", "task.train_length=4"]
TINY += ["task.lengths=[4,8]", "logger=none", "trainer=cpu"]


def run_of(model: str, task: str, rate: float, seed: int, score: float, loss: float = 1.0):
    """A record of a run of the battery."""
    entry = tasks.ENTRIES[task]
    metrics = {entry.metric: score, f"{entry.metric}_stderr": 1.0, "val/loss": loss}
    metrics |= {entry.trained: 100.0, f"test/{entry.measure}@128": score}
    words = [*entry.words, f"task.optim.lr={rate}"]
    return record(model, seed, metrics, words, run=f"{task}-{model}-{rate}-{seed}")


@pytest.fixture
def bench(tmp_path):
    """Three models on five tasks with three rates and two seeds."""
    names = ("reverse", "sort", "flip_flop", "stack", "induction")
    better = {"fire": 90.0, "nope": 60.0, "rope": 30.0}
    records = [
        run_of(model, task, rate, seed, score + 2 * seed + place, abs(rate - 0.003))
        for model, score in better.items()
        for place, task in enumerate(names)
        for rate in (0.001, 0.003, 0.01)
        for seed in (0, 1)
        if seed == 0 or rate == 0.003
    ]
    add_records(tmp_path / "records", records)
    return Bench(["seed=0,1"], tmp_path, tasks=",".join(names))


def test_models_are_named_as_everywhere(tmp_path):
    for words in (["rope", "tape"], ["model=rope,tape"], ["rope", "model=tape", "rope"]):
        assert Bench(words, tmp_path).models == ["rope", "tape"]
    with pytest.raises(ConfigError, match=r"model=tpae is not known\. Did you mean 'tape'"):
        Bench(["model=rope,tpae"], tmp_path)
    with pytest.raises(ConfigError, match=r"\+model=rope is no word of a bench"):
        Bench(["+model=rope"], tmp_path)


def test_the_lowest_validation_loss_chooses_the_rate_and_further_seeds_run_there_alone(bench):
    board = bench.board(shown=True)
    assert set(board.choices.values()) == {"0.003"}
    assert [run["seed"] for run in board.chosen["rope", "sort"]] == [0, 1]
    assert len([*board.at_choice()]) == 15


@pytest.mark.slow
def test_ranks_and_their_test_are_scipys(bench):
    board = bench.board(shown=True)
    assert board.ranks == {"fire": 1.0, "nope": 2.0, "rope": 3.0}
    test = board.rank_test()
    assert test.p == pytest.approx(stats.friedmanchisquare(*board.numbers.mean(-1)).pvalue)
    assert test.difference == pytest.approx(2.343 * (3 * 4 / (6 * 5)) ** 0.5, abs=1e-3)
    assert np.array_equal(board.numbers.shape, (3, 5, 2))
    rows = scores_table(board).rows
    assert [row["model"] for row in rows] == ["fire", "nope", "rope"]
    assert rows[0]["mean difference to rope"].number == pytest.approx(60)


def test_too_few_seeds_are_not_tested(bench):
    some = Bench([], bench.out, tasks="sort").board(shown=True)
    assert some.rank_test() is None
    assert "Ranks are not tested" in scores_table(some).caption


def test_scores_have_intervals_even_where_all_is_right():
    entry = tasks.ENTRIES["parity"]
    task = {"name": "word_problem", "words": 256}
    value = entry.score(record("rope", 0, {"ood/state": 100.0, "ood/state_stderr": 0.1}, task=task))
    assert 98 < value.low < 99, "Wilson's of 256 words"
    value = entry.score(record("rope", 0, {"ood/state": 50.0, "ood/state_stderr": 0.1}, task=task))
    assert (value.low, value.high) == pytest.approx((49.804, 50.196), abs=1e-3)


@pytest.mark.slow
def test_names_and_sets():
    assert [entry.name for entry in tasks.chosen("sort,copy,sort")] == ["copy", "sort"]
    for entry in tasks.chosen("all"):
        assert compose_config(["model=rope", *entry.words]).task.name


def test_only_what_changes_the_recipe_needs_a_folder_of_its_own():
    Bench(["rope", "rerun=true", "logger=none", "runs=elsewhere"], OUT)
    with pytest.raises(ConfigError, match=r"unchanged, and task\.optim\.batch=8 changes it"):
        Bench(["rope", "rerun=true", "task.optim.batch=8"], OUT)


@pytest.mark.long
def test_a_real_bench_resumes_and_adds_a_model(tmp_path, capsys, monkeypatch):
    words = ["tasks=copy", "rates=0.003", *TINY, f"runs={tmp_path}/runs"]
    words += ["--out", str(tmp_path / "bench")]
    monkeypatch.setattr(local, "start", train_here)
    assert main(["rope", "seed=0,1", *words]) == 0
    assert len(read_records(tmp_path / "bench" / "records")) == 2
    with monkeypatch.context() as patch:
        patch.setattr(local, "start", None)  # nothing may run again
        assert main(["rope", "seed=0,1", *words]) == 0
    capsys.readouterr()
    assert main(["nope", *words]) == 0
    printed = capsys.readouterr().out
    assert printed.count("| RoPE ") == printed.count("| NoPE ") == 1
    assert {p.suffix for p in (tmp_path / "bench").glob("copy-smoke*")} == {".csv", ".svg"}
