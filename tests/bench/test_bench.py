"""The bench: what it runs, which rate it chooses, ranks by hand, and its tables and pictures."""

import csv
import json
import shlex

import numpy as np
import pytest

from tape_exp.bench import command, figures, plan, ranks, tasks
from tape_exp.bench.board import Board, within
from tape_exp.data.problems import PROBLEMS
from tape_exp.paper.runner import Outcome, missing
from tape_exp.paper.values import Value
from tape_exp.runs.identity import identity_of
from tape_exp.settings import folders, plugins
from tape_exp.settings.compose import compose_config
from tape_exp.settings.errors import ConfigError
from tests.conftest import SMALL, knows_digits

TINY = [*SMALL, "task.train_length=3", "task.lengths=[3,6]", "task.samples_per_length=2"]
TINY += ["task.optim.max_steps=2", "trainer=cpu", "trainer.progress=none", "logger=none"]


@pytest.fixture(autouse=True)
def no_committed_records(tmp_path, monkeypatch):
    monkeypatch.setattr(folders, "RECORDS", tmp_path / "committed")


def record_of(cfg, score: float, loss: float, measure: str = "token_accuracy") -> dict:
    """A record as a run of the config would leave; the test says the opposite of the loss."""
    metrics = {f"ood/{measure}": score, f"ood/{measure}_stderr": 1.0, "val/loss": loss}
    metrics |= {f"test/{measure}@16": 100.0, f"test/{measure}@32": score}
    config = json.loads(json.dumps(identity_of(cfg)))
    made = {"run": f"run-{score}-{loss}", "config": config, "seed": cfg.seed, "metrics": metrics}
    commit = {"git": {"commit": "0123456789", "dirty": False}}
    made |= {"knows_digits": True} if knows_digits(cfg) else {}
    return made | commit | {"started": "2026-01-01", "data_fingerprint": str(cfg.seed)}


def board_of(bench: plan.Bench, number) -> Board:
    """Made-up records of all runs; ``number(model, task, seed)`` is the score at the best rate."""
    records = []
    for seed in bench.seeds:
        for name, cfg in bench.configs("smoke", [seed]):
            model, task, rate = name.split("/")
            best = rate == f"{bench.rates[-1]:g}"
            value = number(model, task, seed) if best else 99.0
            loss, measure = 0.1 if best else 0.2, tasks.ENTRIES[task].measure
            records.append(record_of(cfg, value, loss, measure))
        bench.choose(bench.collect("smoke", records))
    return Board(bench, "smoke", bench.collect("smoke", records))


def test_names_and_sets():
    assert [entry.name for entry in tasks.chosen("quick")] == [*tasks.QUICK]
    more = [entry.name for entry in tasks.chosen("copy,quick,copy")]
    assert sorted(more) == sorted(["copy", *tasks.QUICK]), "each once"
    assert tasks.chosen("quick,copy") == tasks.chosen("copy,quick,copy"), "in any order"
    assert {*tasks.SETS["retrieval"]} | {*tasks.SETS["algorithmic"]} == {*tasks.SETS["all"]}
    assert {*tasks.RETRIEVAL} < {*tasks.SETS["retrieval"]}
    with pytest.raises(ConfigError, match=r"tasks=revers is not known. Did you mean 'reverse'"):
        tasks.chosen("revers")


def test_all_rates_run_at_the_first_seed_and_the_chosen_one_at_the_others():
    bench, scale = plan.requested(["rope", "tape", "tasks=sort", "seeds=1,2", "rates=0.01,0.001"])
    first = missing([bench], scale, [1], records=[])
    assert [job.cfg.task.optim.lr for job in first.values()] == [0.001, 0.01, 0.001, 0.01]
    assert len({job.cfg.task.optim.max_steps for job in first.values()}) == 1, "equal steps"
    assert not missing([bench], scale, [2], records=[]), "no rate is chosen yet"
    tried = {"rope": (0.5, 0.4), "tape": (0.3, 0.6)}
    records = []
    for name, cfg in bench.configs(scale, [1]):
        model, _, rate = name.split("/")
        loss = tried[model][rate == "0.01"]
        records.append(record_of(cfg, 100 * loss, loss))  # the test prefers the other rate
    bench.choose(bench.collect(scale, records[:-1]))
    assert bench.choices == {("rope", "sort"): 0.01}, "only where all rates have run"
    bench.choose(bench.collect(scale, records))
    assert bench.choices == {("rope", "sort"): 0.01, ("tape", "sort"): 0.001}
    further = missing([bench], scale, [2], records=records)
    assert [job.cfg.task.optim.lr for job in further.values()] == [0.01, 0.001]
    effort = bench.effort(bench.collect(scale, records))
    assert effort["tasks"]["sort"]["rope"]["chosen"] == 0.01
    assert effort["tasks"]["sort"]["tape"]["tried"]["0.01"]["val/loss"] == 0.6


def test_ranks_by_hand():
    """Three methods on two tasks: the mean over seeds is ranked, and equals share their ranks."""
    scores = np.array([[[9, 7], [4, 4]], [[8, 8], [5, 5]], [[1, 1], [6, 6]]], float)
    assert ranks.ranked(scores.mean(-1)).tolist() == [[1.5, 3], [1.5, 2], [3, 1]]
    assert ranks.mean_ranks(scores).tolist() == [2.25, 1.75, 2.0]


def test_each_choice_of_tasks_has_tables_of_its_own():
    groups = [plan.requested([f"tasks={tasks}"])[0].group for tasks in ("quick", "sort,copy")]
    assert groups == ["quick", "copy-sort"]
    many = {plan.requested([f"tasks=sort,copy,{more}"])[0].group for more in ("s3,a5", "s3,s5")}
    assert len(many) == 2
    assert all(group.startswith("copy-and-3-more-") for group in many)


def test_what_changes_the_runs_wants_a_folder_of_its_own(capsys):
    assert command.main(["rope", "tasks=copy", "task.optim.max_steps=5"]) == 2
    assert "and task.optim.max_steps=5 changes it; name another folder" in capsys.readouterr().err


def test_friedman_and_nemenyi_by_hand():
    """n tasks that all agree on k methods: χ² = n (k - 1). Values of q: Demšar (2006), table 5."""
    agreed = np.array([[1, 1, 1, 1], [2, 2, 2, 2], [3, 3, 3, 3]], float)
    statistic, p = ranks.friedman(agreed)
    assert (statistic, p) == pytest.approx((8.0, np.exp(-4)))
    assert ranks.friedman(np.array([[1, 3, 2], [2, 1, 3], [3, 2, 1]], float)) == (0.0, 1.0)
    assert ranks.friedman(np.full((3, 4), 2.0)) == (0.0, 1.0)
    for k, q in ((2, 1.960), (4, 2.569), (10, 3.164)):
        expected = q * (k * (k + 1) / 60) ** 0.5
        assert ranks.critical_difference(k, 10) == pytest.approx(expected, rel=1e-3)
    assert ranks.cliques([1.0, 1.5, 2.2, 4.0], 1.0) == [(0, 1), (1, 2)]
    assert ranks.cliques([1.0, 3.0], 1.0) == []


def test_a_bootstrap_takes_tasks_and_seeds_the_same_for_all():
    """A method that is always 2 ahead is so in every draw; what varies by task has an interval."""
    hard = np.array([[10.0, 12], [50, 52], [90, 92]])
    drawn = ranks.bootstrap(np.stack([hard, hard + 2, hard[::-1]]))
    assert np.allclose(drawn.leads[1], 2)
    assert (drawn.ranks[0] > drawn.ranks[1]).all()
    low, high = np.quantile(drawn.leads[2], (0.025, 0.975))
    assert low < -20
    assert high > 20


MULTI_KEY = tasks.ENTRIES["multi_key"].words


def test_an_interval_over_few_tasks_holds_the_truth_in_95_of_100():
    """Of six tasks the quantiles of the draws alone would hold it in 85."""
    generator, held = np.random.default_rng(3), 0
    for _ in range(100):
        scores = generator.normal(size=(2, 6, 1))
        low, high = ranks.interval(ranks.bootstrap(scores).leads[1], 6)
        held += low <= 0 <= high
    assert held >= 91


def test_a_record_that_no_table_can_show_is_left_out(capsys):
    bench, _ = plan.requested(["rope", "tasks=sort"])
    board = board_of(bench, lambda *_: 50.0)
    runs = board.records["rope/sort/0.001"]
    broken = json.loads(json.dumps(runs[0]))
    del broken["config"]["task"]["train_length"]
    board.records["rope/sort/0.001"] = [broken, *runs]
    assert bench.sound("smoke", board.records)["rope/sort/0.001"] == runs
    assert "is drawn without the record" in capsys.readouterr().err


def test_scores_have_intervals_even_where_all_is_right():
    entry, cfg = tasks.ENTRIES["parity"], compose_config(["model=rope", "task=word_problem"])
    value = entry.score(record_of(cfg, 50.0, 0.1, "state"))
    assert (value.low, value.high) == pytest.approx((48.04, 51.96))
    value = entry.score(record_of(cfg, 100.0, 0.1, "state"))
    assert (value.number, value.high) == (100, pytest.approx(100))
    assert 98 < value.low < 99, "Wilson's of 256 words"
    (entry,), rows = tasks.chosen("multi_key"), compose_config(["model=rope", *MULTI_KEY])
    asked = record_of(rows, 0.0, 0.1, "accuracy")
    asked["metrics"] |= {f"retrieval/accuracy@{n}": 0.0 for n in (64, 128, 256)}
    assert entry.by_length(asked) == {64: 0, 128: 0, 256: 0}
    assert entry.score(asked).high == pytest.approx(3.7, abs=0.05), "Wilson's of 100 questions"
    clipped = within(Value(90.0, 70.0, 110.0, 3, "{number:.1f} ± {half:.1f}"))
    assert str(clipped) == "90.0 [70.0, 100.0]"
    assert within(Value(50.0, 40.0, 60.0)).high == 60


def test_tables_and_pictures_of_made_up_records(tmp_path, monkeypatch):
    """Every file; models without every task, and those that know digits, have no rank."""
    words = ["nope", "rope", "tape", "abacus", "tasks=sort,copy,stack,parity,multi_addition"]
    bench, _ = plan.requested([*words, "seeds=0,1,2"])
    bench.unfit = {("abacus", task): "no digits" for task in ("sort", "copy", "stack", "parity")}
    ahead = {"nope": 0.0, "rope": 10.0, "tape": 20.0, "abacus": 30.0}
    board = board_of(bench, lambda model, task, seed: 50 + ahead[model] + seed)
    assert board.order == ["tape", "rope", "nope", "abacus"]
    place = command.Place(tmp_path, "chosen-smoke")
    command.write(board, place)
    names = {path.name.removeprefix("chosen-smoke") for path in tmp_path.iterdir()}
    tables = {f"{part}.{kind}" for part in ("", "-differences", "-rates") for kind in KINDS}
    drawn = {f"{end}.{kind}" for end in ("", "-ranks") for kind in ("png", "pdf", "svg")}
    assert names == tables | drawn | {"-search.json"}
    rows = {row["model"]: row for row in csv.DictReader(place.table.with_suffix(".csv").open())}
    ends = ("", " low", " high")
    assert [rows["tape"][f"mean rank{end}"] for end in ends] == ["1", "1", "1"]
    lead = [float(rows["tape"][f"mean difference to rope{end}"]) for end in ends]
    assert lead == pytest.approx([10, 10, 10])
    low, middle, high = (float(rows["tape"][f"sort{end}"]) for end in (" low", "", " high"))
    assert low < middle == 71 < high
    assert rows["abacus†"]["mean rank"] == rows["abacus†"]["sort"] == ""
    assert float(rows["abacus†"]["multi_addition"]) == 81
    text = place.table.read_text()
    assert "Friedman's χ² is 10.00, p = 0.0067: mean ranks do differ" in text
    assert "read the same data" in text
    assert board.guesses["sort"] == pytest.approx(PROBLEMS["sort"].guessed(32))
    assert f" sort {board.guesses['sort']:.0f}, " in board.caption()
    assert "Whole rows" not in board.caption()
    for run in board.runs_of(tasks.ENTRIES["stack"]):
        run["metrics"]["ood/exact_match"] = run["seed"] / 10
    assert "Whole rows: no run has more right than 0.2 % of stack." in board.caption()
    assert command.outdated(board, place) == []
    monkeypatch.setattr(plugins, "changed", lambda *_: "The code of my_pe has changed.")
    assert len(command.outdated(board, place)) == 4, "a sentence for each model"
    place.refuse_another(bench.settings("smoke"))
    with pytest.raises(
        ConfigError, match="holds a bench of other settings than this one: Scale paper --out="
    ):
        place.refuse_another("Scale paper")
    before = (tmp_path / "chosen-smoke.pdf").read_bytes()
    figures.heatmap(board, tmp_path / "chosen-smoke")
    assert (tmp_path / "chosen-smoke.pdf").read_bytes() == before
    few, _ = plan.requested(["nope", "rope", "tasks=sort"])
    board = board_of(few, lambda model, task, seed: 50 + ahead[model])
    assert "that takes 3 methods (2) and 5 tasks (1) and 2 seeds (1)." in board.caption()
    command.write(board, place)
    assert not (tmp_path / "chosen-smoke-ranks.png").exists(), "of an earlier call"


KINDS = ("md", "tex", "csv")


def test_a_real_bench_goes_on_and_adds_a_model(tmp_path, capsys, monkeypatch):
    """It is stopped after the first run, goes on without repeating it, and keeps earlier rows."""
    words = ["tasks=copy", "rates=0.003", *TINY, f"runs={tmp_path}/runs"]
    words += ["--out", str(tmp_path / "bench")]
    real = command.work
    with monkeypatch.context() as patch:

        def stopped(*given):
            real(*given)
            return Outcome(left=1)

        patch.setattr(command, "work", stopped)
        assert command.main(["rope", "seeds=0,1", *words]) == 85
    assert "runs left: 2; the same command goes on." in capsys.readouterr().err
    records = tmp_path / "bench" / "records"
    (kept,) = records.glob("*.json")
    when = kept.stat().st_mtime_ns
    assert command.main(["rope", "seeds=0,1", *words]) == 0
    assert (kept.stat().st_mtime_ns, len([*records.glob("*.json")])) == (when, 2)
    assert command.main(["nope", *words]) == 0
    assert "| RoPE " in capsys.readouterr().out, "a row of an earlier command"
    assert command.main(["nope", "--minutes", "0", *words]) == 0
    assert capsys.readouterr().out.count("| NoPE ") == 1
    assert len([*records.glob("*.json")]) == 3
    assert command.main(["alibi", "--minutes", "0", *words]) == 2
    assert "Of alibi no search of learning rates is recorded" in capsys.readouterr().err
    assert command.main(["tasks=sort", *words[1:]]) == 2
    told = capsys.readouterr().err
    hint = told.partition(f"{records.parent} has ")[2].strip().rstrip(".")
    assert hint.startswith("tasks=copy scale=smoke rates=0.003 seeds=0 ")
    assert command.main([*shlex.split(hint), *words[-2:]]) == 0, "as it says"
    assert capsys.readouterr().out.count("| RoPE ") == 1


def test_what_a_model_cannot_have_is_left_out_with_its_reason(capsys):
    bench, scale = plan.requested(["rope", "abacus", "tasks=copy,multi_addition"])
    command.leave_out(bench, scale)
    assert [*bench.unfit] == [("abacus", "copy")]
    assert capsys.readouterr().err.startswith("left out: abacus on copy: Abacus must be told")
    assert len(missing([bench], scale, [0], records=[])) == 3 * len(plan.RATES)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["roep"], "model=roep is not known. Did you mean 'rope'?"),
        (["rope", "rope"], "models name rope twice"),
        (["rope", "task=c4"], "task=c4 is no word of a bench"),
        (["rope", "task.problem=copy"], "task.problem=copy is no word of a bench"),
        (["rope", "++task.optim.lr=1"], "++task.optim.lr=1 is no word of a bench"),
        (["rope", "tasks=copy", "tasks=sort"], "tasks=copy and tasks=sort exclude each other"),
        (["rope", "rates=0.1,0.10000000001"], "rates=0.1,0.10000000001 agree to six digits"),
        (["rope", "rates=0"], "rates=0 must be numbers above 0"),
        (["abacus", "tasks=copy"], "Abacus must be told which tokens are digits"),
        (["rope", "tasks=copy", "task.lengths=[100000]"], "task.lengths=[100000] has 100000"),
        (["rope", "--minutes", "0"], "and --minutes 0 runs none; leave --minutes out"),
        ([], "No search of learning rates is recorded for tasks=reverse,"),
    ],
)
def test_mistakes_are_one_sentence(words, message, tmp_path, capsys):
    assert command.main([*words, "--out", str(tmp_path / "bench")]) == 2
    told = capsys.readouterr().err
    assert message in told
    assert told.count("\n") == 1
