"""Artifacts: rows, columns and runs of a YAML, their tables, and what captions must say."""

import csv
import dataclasses
import io
import os
import re

import pytest

from tape_exp.artifacts.artifact import load
from tape_exp.artifacts.figures import figures
from tape_exp.artifacts.specs import block_of
from tape_exp.artifacts.view import View
from tape_exp.paper.claims import verdict
from tape_exp.paper.pages import claims_table, judged
from tape_exp.results.store import add_records, read_records
from tape_exp.settings import folders, plugins
from tape_exp.settings.errors import ConfigError
from tests.artifacts.fakes import addition, record, runs, view
from tests.processes import python

RESULTS = folders.RESULTS


def rows_of(text: str) -> list[dict[str, str]]:
    return [*csv.DictReader(io.StringIO(text))]


@pytest.fixture(scope="module")
def records():
    return read_records()


@pytest.mark.slow
def test_the_committed_tables_and_verdicts_are_those_of_the_committed_records(records):
    judgements = []
    for one in judged(records):
        judgements += one.judgements
        for at_scale in one.shown:
            committed = RESULTS / "tables" / f"{one.artifact.name}-{at_scale.scale}.csv"
            assert at_scale.table.csv() == committed.read_text(), "run make tables"
            assert "{" not in at_scale.table.caption
    assert claims_table(judgements).csv() == (RESULTS / "tables" / "claims.csv").read_text()


def test_extended_models_have_the_rates_of_the_lowest_validation_loss(records):
    chosen = {
        (row["positions"], row["method"]): float(row["rate"])
        for row in View(load("tab_extension_rates"), "smoke", records).table.rows
        if row["chosen"]
    }
    view = View(load("fig_passkey"), "smoke", records)
    used = {
        (row.labels["positions"], row.labels["method"]): float(word.partition("=")[2])
        for row in view.rows
        for word in row.overrides
        if word.startswith("peft.lr=")
    }
    assert used == chosen


def test_ranks_are_among_the_models_that_have_every_value(records):
    """A run may lack a metric: its cell is empty, and its model comes last, without a rank."""
    artifact = load("tab_encodings")
    artifact.rows = [block_of({"model": ["fire", "rope", "alibi", "tape"]})]
    heading = "addition, > {n} digits (%)"

    def rows(known):
        view = View(artifact, "ladder", known)
        (column,) = view.columns_named(heading)
        return [(row["model"], row["mean rank"], row[column.name]) for row in view.table.rows]

    assert all(rank and cell for _, rank, cell in rows(records))
    fewer = []
    for run in records:
        if run.config["model"]["name"] == "fire":
            metrics = {k: v for k, v in run["metrics"].items() if k != "ood/exact_match"}
            run = run | {"metrics": metrics}
        fewer.append(run)
    *others, last = rows(fewer)
    assert last == ("fire", None, None)
    assert all(rank and cell for _, rank, cell in others)
    unmeasured = []
    for run in records:
        known = run | {"metrics": {}} if run.config["model"]["name"] == "fire" else run
        unmeasured.append(known)
    assert rows(unmeasured) == others, "a row without any number is not shown"
    renamed = {f"{name} now": spec for name, spec in artifact.columns.items()}
    with pytest.raises(ConfigError, match=r"column addition, > \{n\} digits"):
        _ = View(dataclasses.replace(artifact, columns=renamed), "ladder", records).table


def test_a_table_in_fifteen_lines(tmp_path, monkeypatch):
    """Three models by two metrics with a claim, as docs/results.md has it."""
    text = (folders.ROOT / "docs" / "results.md").read_text()
    yaml = text.partition("```yaml\n")[2].partition("```")[0]
    assert len(yaml.splitlines()) <= 15
    (tmp_path / "paper").mkdir()
    (tmp_path / "paper" / "mine.yaml").write_text(yaml)
    folders_of_conf = [tmp_path, *plugins.conf_folders()]
    monkeypatch.setattr(plugins, "conf_folders", lambda: folders_of_conf)
    made = [*runs("rope", [20.0, 21.0]), *runs("fire", [30.0, 31.0]), *runs("tape", [40.0, 42.0])]
    table = View(load("mine"), "smoke", made).table
    assert [row["model"] for row in table.rows] == ["rope", "fire", "tape"]


@pytest.mark.slow
def test_a_package_is_drawn_into_its_own_results(tmp_path):
    """And outside the clone nothing else is written, the clone's results/ least of all."""
    lab, info = tmp_path / "path" / "lab", tmp_path / "path" / "lab-1.dist-info"
    (lab / "conf" / "paper").mkdir(parents=True)
    info.mkdir()
    (lab / "__init__.py").touch()
    yaml = "title: One\noverrides: [task=arithmetic, task.train_digits=3]\n"
    yaml += "rows: {model: [rope]}\ncolumns: {a: {metric: test/exact_match}}\n"
    (lab / "conf" / "paper" / "tab_lab.yaml").write_text(yaml)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lab\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[tape_exp.tasks]\nlab = lab:Lab\n")
    made = runs("rope", [20.0], words=["task.train_digits=3"])
    add_records(lab / "results" / "records", made)
    here = tmp_path / "here"
    here.mkdir()
    path = f"{folders.ROOT}{os.pathsep}{lab.parent}"
    done = python("-m", "tape_exp.paper", "render", folder=here, path=path)
    results = lab / "results"
    assert (done.returncode, done.stdout.split()) == (0, [str(results / "README.md")]), done.stderr
    drawn = ["tables/tab_lab-smoke.csv", "tables/claims.csv"]
    assert all((results / name).exists() for name in drawn)
    assert not [*here.iterdir()]


@pytest.mark.parametrize(
    ("yaml", "told"),
    [
        ("", "has no keys; an artifact needs title: at least."),
        ("title: Mine\nclaim: {text: TAPE is best.}\n", "claim needs text:, and at: or rule:."),
        ("like: mien\n", "mine.yaml: like=mien is not known. Choose one of: yours."),
    ],
)
def test_what_an_artifact_lacks_is_told(yaml, told, tmp_path, monkeypatch):
    (tmp_path / "paper").mkdir()
    (tmp_path / "paper" / "mine.yaml").write_text(yaml)
    (tmp_path / "paper" / "yours.yaml").write_text("title: Yours\n")
    folders_of_conf = [tmp_path, *plugins.conf_folders()]
    monkeypatch.setattr(plugins, "conf_folders", lambda: folders_of_conf)
    with pytest.raises(ConfigError) as error:
        load("mine")
    assert str(error.value).endswith(told)


def test_a_run_with_further_settings_stays_out_of_the_table():
    """Shortened runs, and those of an artifact of one's own, are no runs of the paper's."""
    for further in ("task.optim.max_steps=4", "+model.window=4"):
        (mine,) = runs("rope", [90.0], words=[further], started="2027-01", run="mine")
        known = [*runs("rope", [20.0]), mine]
        assert view(known).table.rows[0]["ours"].number == 20.0
        asked = view(known, overrides=["task=arithmetic", further])
        assert asked.table.rows[0]["ours"].number == 90.0
        assert not any(view([mine]).runs(row) for row in asked.rows)


def test_cells_are_means_over_seeds_with_their_interval():
    table = view(
        [*runs("rope", [20.0, 21.0, 22.0]), *runs("fire", [30.0, 31.0]), *runs("tape", [40.0])]
    ).table
    rope, fire, tape = rows_of(table.csv())
    assert float(rope["ours"]) == 21
    assert float(rope["ours low"]) == pytest.approx(21 - 4.3027 / 3**0.5, abs=1e-4)
    assert (fire["ours"], fire["ours low"], tape["ours low"]) == ("30.5", "", "")
    assert [rope["seeds"], fire["seeds"], tape["seeds"]] == ["3", "2", "1"]
    text = table.markdown()
    assert "21.00 ± 2.48" in text
    assert "30.50 (30.00, 31.00)" in text
    assert "| TAPE " in text


@pytest.mark.parametrize(
    ("interval", "cell", "low"),
    [
        ("seeds", "75.00 (100.00, 50.00)", ""),
        ("samples", "75.00 (100.00, 50.00)", ""),
        ("trials", "75.00 [53.13, 88.81]", "53.1299"),
        ("error", "75.00 (SE 2.00)", "73"),
    ],
)
def test_two_seeds_are_written_in_the_place_of_an_interval_over_seeds_alone(interval, cell, low):
    made = []
    for run in runs("rope", [100.0, 50.0], task={"trials": 10}):
        metrics = run["metrics"]
        mean = metrics["test/exact_match"]
        ends = {"test/exact_match_low": mean - 3.92, "test/exact_match_high": mean + 3.92}
        made.append(run | {"metrics": metrics | ends})
    columns = {"ours": {"metric": "test/exact_match", "interval": interval}}
    artifact = addition(columns=columns, claim={})
    table = View(artifact, "smoke", made, runs_of=lambda row: made).table
    assert cell in table.markdown()
    assert rows_of(table.csv())[0].get("ours low", "") == low
    assert ("brackets hold the value of each" in table.caption) == (low == "")


def test_a_row_has_the_runs_of_its_overrides_and_no_others():
    every = [
        *runs("rope", [20.0]),
        *runs("rope", [99.0], words=["task.optim.lr=0.003"]),
        *runs("rope", [77.0], words=["scale=digits5"]),
    ]
    at = {"rows": {"model": {"rope": ["model=rope", "task.optim.lr=3e-3"]}}}
    (row,) = rows_of(view(every[1:], **at).table.csv())
    assert row["ours"] == "99"
    assert View(view([]).artifact, "small", every).table is None


def test_of_several_records_of_a_seed_the_newest_counts():
    old, new = runs("rope", [20.0])[0], runs("rope", [21.0])[0]
    new |= {"run": "new", "started": "2027"}
    (row,) = rows_of(view([old, new], rows={"model": ["rope"]}).table.csv())
    assert row["ours"] == "21"


def test_two_folders_of_one_name_are_told_apart_by_what_was_read(capsys):
    """Records call a folder by its last name."""
    (older,) = runs("rope", [20.0], fingerprint_version=3, data_fingerprint="a")
    newer = record("rope", 0, {"test/exact_match": 30.0}, run="again", started="2027")
    same = newer | {"fingerprint_version": 3, "data_fingerprint": "a"}
    other = newer | {"fingerprint_version": 3, "data_fingerprint": "b"}
    for made, warned in ((same, 0), (other, 1), (newer, 0)):
        assert view([older, made]).table.rows[0]["ours"].number == 30
        assert capsys.readouterr().err.count("read other data than") == warned


def test_a_row_says_how_few_seeds_a_cell_of_it_has():
    made = [record("rope", seed, {"test/exact_match": 5.0}) for seed in (0, 1, 2)]
    made[0]["metrics"]["steps"] = 9.0
    columns = {"{who}": {"metric": "test/exact_match"}, "steps": {"metric": "steps"}}
    (row,) = view(made, columns=columns).table.rows[:1]
    assert row["seeds"] == "1 to 3"


def test_columns_are_of_the_runs_that_are_shown():
    """The values of a run with a further setting are no columns."""
    of_rows = runs("rope", [1.0])
    words = ["task.optim.betas=[0.5,0.6]"]
    other = runs("rope", [2.0], words=words, run="first", started="2020")
    columns = {"at {b}": {"metric": "test/exact_match", "each": {"b": "task.optim.betas"}}}
    shown = view([*other, *of_rows], columns=columns, claim={})
    assert [column.name for column in shown.our_columns] == ["at 0.9", "at 0.98"]


def test_columns_are_of_the_values_of_every_row():
    """In ascending order, each once, whichever row has runs first."""
    words = {"first": ["task.optim.betas=[0.5,0.9]"], "second": ["task.optim.betas=[0.5,0.6]"]}
    made = [run for label in words for run in runs("rope", [1.0], words=words[label], run=label)]
    columns = {"at {b}": {"metric": "test/exact_match", "each": {"b": "task.optim.betas"}}}
    rows = {"betas": words, "model": ["rope"]}
    shown = view(made, rows=rows, columns=columns, claim={})
    assert [column.name for column in shown.our_columns] == ["at 0.5", "at 0.6", "at 0.9"]


@pytest.mark.parametrize("name", ["tab_flops", "fig_address", "fig_addition_trend", "tab_ablation"])
def test_a_column_that_is_renamed_changes_no_verdict_in_silence(name, records):
    """Rules, figures and claims that name it say so; others are as before."""
    artifact = load(name)
    scales = [*artifact.scales]

    def outcome(changed):
        found = []
        for scale in scales:
            at_scale = View(changed, scale, records)
            found += [verdict(at_scale, claim).holds for claim in changed.claims]
            found += [suffix for suffix, _ in figures(at_scale)]
        return found

    expected = outcome(artifact)
    told = {}
    for key in artifact.columns:
        columns = {f"{k} now" if k == key else k: spec for k, spec in artifact.columns.items()}
        try:
            assert outcome(dataclasses.replace(artifact, columns=columns)) == expected, key
        except ConfigError as error:
            told[key] = str(error)
    assert told
    assert all(f"column {key}" in text for key, text in told.items())


@pytest.mark.parametrize("key", ["task.optim.lr", "task.arch.width", "task.test_digits"])
def test_a_default_that_has_changed_since_makes_another_experiment(key):
    """Every key of today's config that an old record has must agree, not only what was typed."""
    *sections, name = key.split(".")
    (known,) = runs("rope", [20.0])
    node = known.config
    for section in sections:
        node = node.setdefault(section, {})
    node[name] = 7
    assert view([known]).all_runs == {}


def test_a_claim_among_favourites_names_them_in_the_caption():
    claim = {"text": "", "at": {"{who}": ""}, "better": ["tape", "fire"], "than": ["fire", "tape"]}
    table = view(runs("rope", [20.0]), claim=claim).table
    assert "The claim is tested against FIRE and TAPE only." in table.caption


def test_a_key_in_which_rows_differ_is_in_the_caption():
    def caption(records):
        def runs_of(row):
            return [run for run in records if run.config["model"]["name"] == row.labels["model"]]

        return View(addition(), "smoke", records, runs_of=runs_of).table.caption

    same = [*runs("rope", [20.0]), *runs("tape", [30.0])]
    assert "differ" not in caption(same)
    other = runs("tape", [30.0], task={"optim": {"max_steps": 7}})
    more = runs("rope", [20.0], task={"optim": {"max_steps": 5}})
    assert "Rows also differ in task.optim.max_steps (5, 7)." in caption([*more, *other])
    whole = runs("tape", [30.0], task={"optim": {"clip": 1}})
    decimal = runs("rope", [20.0], task={"optim": {"clip": 1.0}})
    assert "differ" not in caption([*whole, *decimal])


def test_models_of_one_seed_that_read_other_data_cannot_be_compared():
    data = {"fingerprint_version": 1}
    same = [
        *runs("rope", [1.0], data_fingerprint="a", **data),
        *runs("tape", [2.0], data_fingerprint="a", **data),
    ]
    assert "CANNOT" not in view(same).table.caption
    same[1]["data_fingerprint"] = "b"
    assert "they CANNOT BE COMPARED" in view(same).table.caption


def test_that_nothing_tells_which_data_were_read_is_in_the_caption():
    told = "Whether the runs of a seed read the same data is not recorded for all."
    words = ["task=c4", "scale.text=builtin"]
    unknown = [*runs("rope", [1.0], words=words), *runs("tape", [2.0], words=words)]
    at = {"overrides": words}
    assert told in view(unknown, **at).table.caption
    assert told not in view(unknown[:1], **at).table.caption
    known = [run | {"fingerprint_version": 1, "data_fingerprint": "a"} for run in unknown]
    assert told in view([unknown[0], known[1]], **at).table.caption
    assert told not in view(known, **at).table.caption


def test_rows_of_other_sizes_read_other_data_and_are_not_compared():
    sizes = {"three": ["task.train_digits=3"], "four": ["task.train_digits=4"]}
    made = []
    for size, words in sizes.items():
        for model in ("rope", "tape"):
            made += runs(model, [1.0], words=words, data_fingerprint=size, fingerprint_version=1)
    at = {"rows": {"size": sizes, "model": ["rope", "tape"]}}
    assert "CANNOT" not in view(made, **at).table.caption
    made[-1]["data_fingerprint"] = "another"
    assert "they CANNOT BE COMPARED" in view(made, **at).table.caption


def test_a_model_that_knows_digits_is_marked():
    table = view(runs("rope", [20.0], knows_digits=True)).table
    assert table.rows[0]["model"] == "rope†"
    assert "is told which tokens are digits" in table.caption


def test_addition_by_the_digits_of_the_longer_operand():
    grid = [[100.0, 80.0], [60.0, 0.0]]
    task = {"train_digits": 1, "test_digits": 2}
    run = record("rope", 0, {"test/exact_match": 60.0}, task=task, heatmap=grid)
    metrics = run.metrics
    assert metrics["digits/exact_match@100"] == 100
    assert metrics["digits/exact_match@200"] == pytest.approx(140 / 3)
    assert metrics["next/exact_match"] == metrics["digits/exact_match@200"]


def test_extra_length_is_that_of_runs_that_learned():
    metrics = {"id/exact_match": 100.0, "ood/exact_match": 0.0}
    columns = {"extra": {"metric": "extra_length", "digits": 3}}
    learned = View(view([], columns=columns).artifact, "smoke", [record("rope", 0, metrics)])
    assert learned.table.rows[0]["extra"].number == pytest.approx(0)
    metrics["ood/exact_match"] = 100.0
    assert (
        View(learned.artifact, "smoke", [record("rope", 0, metrics)]).table.rows[0]["extra"].number
        == 1
    )
    metrics["id/exact_match"] = 98.0
    assert (
        View(learned.artifact, "smoke", [record("rope", 0, metrics)]).table.rows[0]["extra"] is None
    )


def test_answers_stand_side_by_side():
    asked = {"id": "a", "question": "Which | one?\n(A) x", "references": "x"}
    artifact = load("tab_quality_examples")
    words = View(artifact, "smoke", []).common
    every = [
        record(m, 0, {"a": 1.0}, words, samples=[asked | {"prediction": f"of {m}"}])
        for m in ("rope", "tape")
    ]
    (row,) = View(artifact, "smoke", every).table.rows
    assert row == {
        "question": "Which / one? (A) x",
        "reference": "x",
        "rope": "of rope",
        "tape": "of tape",
    }


def test_an_artifact_may_leave_smoke_out():
    assert [*load("fig_addition_20").scales] == ["digits20", "small", "paper"]
    assert "smoke" in load("fig_addition").scales


def test_a_run_of_another_precision_does_not_stand_for_the_usual_one():
    newer = runs("rope", [9.0], words=["trainer.precision=bf16-mixed"], started="2027", run="b")
    assert view([*runs("rope", [5.0]), *newer]).table.rows[0]["ours"].number == 5


@pytest.mark.parametrize("longest", [10, 14])
def test_who_solves_the_trained_sums_alone_has_no_extra_length(longest):
    metrics = {"id/exact_match": 100.0, "ood/exact_match": 0.0}
    run = record("rope", 0, metrics, task={"test_digits": longest})
    assert run.metrics["extra_length"] == pytest.approx(0)


def double(view, table):
    """A finishing function of one's own."""
    return dataclasses.replace(table, rows=[*table.rows, *table.rows])


def test_a_table_is_finished_by_the_function_that_its_file_names():
    artifact = addition(finish=f"{__name__}.double")
    assert len(View(artifact, "smoke", runs("rope", [20.0])).table.rows) == 6


@pytest.mark.parametrize("path", ["lab.figures.mine", "tape_exp.paper.pages.mine", "pages", "json"])
def test_a_function_that_is_not_there_is_one_sentence(path):
    told = f"^finish of fig_addition: there is no function {re.escape(path)}.*; give its whole path"
    with pytest.raises(ConfigError, match=told):
        _ = View(addition(finish=path), "smoke", runs("rope", [20.0])).table


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"colums": {}}, "colums in an artifact is not known. Did you mean 'columns'?"),
        ({"columns": {"a": {"metrc": "x"}}}, "metrc in column a is not known. Did you mean"),
        ({"columns": {"a": {"lead": {"ovr": "x"}}}}, "ovr in lead of column a is not known."),
        ({"figures": [{"kind": "losses", "of": []}]}, "of in figure losses is not known. Known"),
        ({"figures": [{"kind": "grid"}]}, "figure of kind grid is not known. Did you mean"),
        ({"claim": {"text": "", "at": {}, "lowr": 1}}, "lowr in the claim is not known. Did you"),
    ],
)
def test_a_key_that_nobody_reads_is_refused(keys, told):
    with pytest.raises(ConfigError, match=rf"^conf/paper/mine\.yaml: {re.escape(told)}"):
        addition(name="mine", **keys)
