"""Artifacts: which records they take, what they write, and their command line."""

import csv
import json
import re
import shutil

import pytest

from tape_exp.drawing.plots import Line, Panel
from tape_exp.paper import __main__ as paper
from tape_exp.paper import artifacts, efficiency, identities, page, tables, theory, values
from tape_exp.paper.addition import Addition
from tape_exp.paper.artifacts import RESULTS
from tape_exp.paper.ceilings import ceilings, marked_figure
from tape_exp.paper.figure_kinds import Curves
from tape_exp.paper.records import read_records
from tape_exp.paper.words import requested
from tape_exp.runs.identity import identity_of
from tape_exp.runs.record import dump_record
from tape_exp.settings import folders
from tape_exp.settings.compose import compose_config
from tape_exp.settings.errors import ConfigError

TINY = [
    "task.arch.layers=1",
    "task.arch.width=16",
    "task.arch.heads=2",
    "task.arch.ffn=16",
    "task.optim.batch=4",
]
TINY += [
    "task.optim.max_steps=2",
    "task.samples_per_cell=2",
    "trainer=cpu",
    "logger=none",
    "trainer.progress=none",
]


def fake_record(
    model: str,
    seed: int,
    value: float,
    task: str = "arithmetic",
    started: str = "2026-01-01",
    **changes,
):
    """A record as a run of the current config at scale smoke would leave."""
    cfg = compose_config([f"model={model}", f"task={task}", f"seed={seed}"])
    config = json.loads(json.dumps(identity_of(cfg)))
    config["task"] |= changes
    n = config["task"]["test_digits"]
    metrics = {f"{split}/exact_match": value for split in ("test", "id", "ood")}
    metrics |= {f"{metric}_stderr": 0.1 for metric in metrics}
    return {
        "config": config,
        "seed": seed,
        "metrics": metrics,
        "started": started,
        "git": {"commit": "0123456789", "dirty": False},
        "heatmap": [[value] * n for _ in range(n)],
    }


def shown(artifact, records) -> list[dict[str, str]]:
    """The rows of an artifact's table at scale smoke, as they are written."""
    table = artifact.table("smoke", artifact.collect("smoke", records))
    return [dict(zip(table.headings(), map(str, row), strict=True)) for row in table.cells()]


def test_models_that_are_told_where_digits_are_are_marked_and_no_rivals():
    models = ["tape", "rope", "abacus"]
    shown = Addition(name="fig_addition", title="Sums", task="arithmetic", models=models, claim="c")
    numbers = {"tape": 50.0, "rope": 30.0, "abacus": 90.0}
    records = {m: [fake_record(m, seed, n + seed) for seed in (0, 1)] for m, n in numbers.items()}
    records["abacus"] = [record | {"knows_digits": True} for record in records["abacus"]]
    table, (figure,) = shown.table("smoke", records), shown.shown("smoke", records)
    assert [row["model"] for row in table.rows] == ["tape", "rope", "abacus†"]
    assert "† told which tokens are digits; the others must find out" in table.caption
    assert [name.split()[0] for name in figure.panels] == ["TAPE", "RoPE", "Abacus†"]
    assert figure.title.endswith("(† told which tokens are digits)")
    assert r"Abacus$\dagger$" in tables.latex(table)
    assert "abacus†" in tables.comma(table)
    verdict = shown.verdict("smoke", records)
    rivals = {name: records[name] for name in ("tape", "rope")}
    assert "Abacus" not in verdict.ours
    assert verdict == Addition(**vars(shown) | {"models": models[:2]}).verdict("smoke", rivals)
    lines = [Line(name, [1.0], [2.0]) for name in ("Abacus rung5", "Abacus_fire")]
    curves = marked_figure(Curves("t", [Panel("Abacus", "x", "y", lines)]), {"abacus"})
    (panel,) = curves.panels
    assert panel.title == "Abacus†"
    assert [line.name for line in panel.lines] == ["Abacus† rung5", "Abacus_fire"]
    assert "†" not in tables.markdown(shown.table("smoke", rivals))
    assert ceilings({"speed": [{}], "word": [{"config": {}}]}) == set()


@pytest.mark.parametrize("name", artifacts.names())
def test_every_artifact_composes_and_has_the_papers_numbers(name):
    artifact = artifacts.load(name)
    assert artifact.name == name
    scales = ("paper", *artifact.scales()) if not artifact.needs else artifact.scales()[::-1]
    configs = next((found for s in scales if (found := list(artifact.configs(s, [0])))), [])
    named = dict.fromkeys(re.split("[/ ]", label)[0] for label, _ in configs)
    source = getattr(artifact, "source", artifact)  # of another artifact's runs
    models = list(getattr(source, "models", []))
    rungs = getattr(source, "rungs", {}).values()
    models += dict.fromkeys(further for rung in rungs for further in rung.further)
    assert list(named) == models
    known = {
        *models,
        *getattr(artifact, "datasets", []),
        "rope",
        "tape",
        "tape_separate",
        "fire",
        "t5",
    }
    known |= {"lora", "longlora", "theta"}  # methods of extension
    known |= {*getattr(artifact, "columns", [])}
    assert set(models_of(artifact.paper())) <= known


@pytest.mark.parametrize("name", ["fig_addition", "fig_rates", "tab_scrolls", "tab_tune_ppl"])
def test_words_of_a_scale_are_in_every_run(name, monkeypatch):
    artifact = artifacts.load(name)
    monkeypatch.setattr(artifact, "words", lambda scale: [f"runs=at_{scale}"])
    scale = artifact.scales()[0]
    assert next(artifact.configs(scale, [0]))[1].runs == f"at_{scale}"


def models_of(numbers: dict) -> list[str]:
    """The keys that lead to numbers inside the groups of an artifact."""
    found = []
    for group in (value for value in numbers.values() if isinstance(value, dict)):
        found += (
            models_of(group)
            if any(isinstance(value, dict) for value in group.values())
            else list(group)
        )
    return found


def test_paper_numbers_are_those_of_the_paper():
    """The captions of the three figures."""
    assert artifacts.load("fig_addition").paper()["values"] == {
        "rope": 26.32,
        "randpe": 26.56,
        "nope": 22.45,
        "fire": 26.98,
        "tape": 32.82,
    }
    assert artifacts.load("fig_addition_20").paper()["values"]["tape"] == 41.42
    assert artifacts.load("fig_addition_yarn").paper()["values"]["tape_yarn"] == 33.92


def test_collect_takes_matching_records_and_the_newest_of_each_seed():
    artifact = artifacts.load("fig_addition")
    records = [
        fake_record("tape", 0, 1.0, started="2026-01-01"),
        fake_record("tape", 0, 2.0, started="2026-02-01"),
        fake_record("tape", 1, 3.0),
        fake_record("tape", 2, 4.0, samples_per_cell=7),  # another protocol
        fake_record("rope", 0, 5.0, task="arithmetic_20"),
        fake_record("xpos", 0, 6.0),  # not of this figure
    ]
    debugged = fake_record("fire", 0, 9.0)
    debugged["config"]["debug"] = {"name": "one_batch"}
    grown = fake_record("nope", 0, 8.0)
    del grown["config"]["task"]["rows_per_batch"]  # made before the key existed
    found = artifact.collect("smoke", [*records, debugged, grown])
    assert {
        model: [r["metrics"]["test/exact_match"] for r in mine] for model, mine in found.items()
    } == {"nope": [8.0], "tape": [2.0, 3.0]}
    assert artifact.collect("paper", records) == {}


def test_records_are_found_by_the_name_in_a_yaml_not_by_that_of_its_file(tmp_path, monkeypatch):
    (tmp_path / "model").mkdir()
    path = tmp_path / "model" / "mine.yaml"
    path.write_text("name: tape\n")
    monkeypatch.setattr(folders, "CONF", tmp_path)
    assert artifacts._model_of(["model=mine", "task=arithmetic"]) == "tape"
    path.with_name("other.yaml").write_text("name: ${task.name}\n")
    for words in (["model=other"], ["model=[rope,nope]"], ["task=c4"], ["model=mine", "model.x=1"]):
        assert artifacts._model_of(words) is None, words


def test_addition_table_and_figure(tmp_path):
    artifact = artifacts.load("fig_addition")
    records = {
        "tape": [fake_record("tape", s, v) for s, v in ((0, 30.0), (1, 34.0), (2, 32.0))],
        "rope": [fake_record("rope", s, v) for s, v in ((0, 25.0), (1, 27.0))],
    }
    written = page.render(artifact, "smoke", records, tmp_path)
    assert {p.suffix for p in written} == {".png", ".pdf", ".svg", ".md", ".tex", ".csv"}
    with (tmp_path / "tables" / "fig_addition-smoke.csv").open() as file:
        rows = {row["model"]: row for row in csv.DictReader(file)}
    assert list(rows) == artifact.models
    assert rows["tape"]["paper"] == "32.82"
    ends = [float(rows["tape"][f"ours{end}"]) for end in (" low", "", " high")]
    half = 4.302653 * 2 / 3**0.5  # Student's t for three seeds
    assert ends == pytest.approx([32 - half, 32, 32 + half], rel=1e-5)
    assert rows["tape"]["seeds"] == "3"
    assert rows["tape"]["scale"] == "smoke"
    assert (rows["rope"]["ours"], rows["rope"]["ours low"]) == ("26", ""), "of two seeds"
    assert (rows["nope"]["paper"], rows["nope"]["ours"], rows["nope"]["seeds"]) == ("22.45", "", "")
    markdown = (tmp_path / "tables" / "fig_addition-smoke.md").read_text()
    assert "5 → 10 digits" in markdown
    assert "40 → 80 digits" in markdown
    latex = (tmp_path / "tables" / "fig_addition-smoke.tex").read_text()
    assert r"32.00 $\pm$ 4.97" in latex
    assert "26.00 (25.00, 27.00)" in latex
    assert latex.count(r"\\") == 6


def test_interval_matches_a_textbook_value():
    centre, half = values.interval([1.0, 2.0, 3.0, 4.0])
    assert centre == 2.5
    assert half == pytest.approx(3.182446 * 1.290994 / 2, rel=1e-5)
    assert values.interval([7.0]) == (7.0, None)


@pytest.fixture
def results(tmp_path, monkeypatch):
    """results/ and runs/ in a temporary folder."""
    folder = tmp_path / "results"
    folder.mkdir()
    shutil.copy(artifacts.RESULTS / "paper.yaml", folder)
    monkeypatch.setattr(artifacts, "RESULTS", folder)
    monkeypatch.setattr(paper, "RESULTS", folder)
    monkeypatch.setattr(folders, "RECORDS", folder / "records")
    return folder


def test_run_makes_what_is_missing_and_renders(results, tmp_path, capsys):
    arguments = [
        "run",
        "fig_addition_yarn",
        "scale=smoke",
        "seeds=0",
        f"runs={tmp_path}/runs",
        *TINY,
    ]
    assert paper.main(arguments) == 0
    assert len(list((results / "records").glob("*.json"))) == 3
    capsys.readouterr()
    assert paper.main(arguments) == 0
    said = capsys.readouterr().out
    assert said.count("recorded.") == 3
    assert "DONE" not in said


def test_a_failed_run_does_not_cost_the_others(results, tmp_path, capsys):
    arguments = ["run", "fig_addition_yarn", "scale=smoke", f"runs={tmp_path}/runs", *TINY]
    assert (
        paper.main(
            [
                *arguments,
                "task.optim.lr=1000",
                "task.optim.weight_decay=1e30",
                "trainer.log_every=1",
            ]
        )
        == 1
    )
    assert capsys.readouterr().err.count("failed: ") == 3
    assert not list((results / "records").glob("*.json")) or not (results / "records").exists()


def test_render_and_list_from_records(results, capsys):
    (results / "records").mkdir()
    for model in ("rope", "tape"):
        (results / "records" / f"{model}.json").write_text(dump_record(fake_record(model, 0, 30.0)))
    assert paper.main(["render"]) == 0
    assert (results / "figures" / "fig_addition-smoke.png").exists()
    index = (results / "README.md").read_text()
    assert "figures/fig_addition-smoke.png" in index
    assert "fig_addition-paper.png" not in index
    capsys.readouterr()
    assert paper.main(["list"]) == 0
    listed = capsys.readouterr().out.splitlines()
    wide = max(map(len, artifacts.names()))
    at = listed.index(f"{'fig_addition':{wide}} {artifacts.load('fig_addition').title}")
    assert listed[at + 1] == f"{'':{wide}}   smoke  rope: 1, tape: 1"
    assert listed[at + 2].startswith("fig_addition_20 ")
    assert listed[at + 3].strip() == "nothing recorded"
    assert all(len(line.split()) > 1 for line in listed)


def test_a_wrong_name_is_told_before_records_are_read(monkeypatch, capsys):
    monkeypatch.setattr(paper, "collect", lambda: pytest.fail("the records were collected"))
    assert paper.main(["render", "tab_scrols"]) == 2
    assert "artifact tab_scrols is not known. Did you mean 'tab_scrolls'?" in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "fig_additon"], "artifact fig_additon is not known. Did you mean 'fig_addition'?"),
        (["run", "fig_addition", "scale=tiny"], "scale=tiny is not known."),
        (["run", "fig_addition", "seeds=a"], "seeds=a must be integers"),
        (["run", "fig_addition", "seeds=0,-1"], "seeds=-1 must be at least 0"),
        (["run", "scale=smoke"], "name an artifact to run, or all."),
        (["run", "fig_addition", "task.lr=3"], "task.lr is not known."),
        (["run", "fig_addition", "model.name='a b'"], "model.name=a b must be a name"),
        (["run", "fig_addition", "task.optim.lr=-1"], "error: task.optim.lr=-1"),
    ],
)
def test_mistakes_are_one_sentence(arguments, message, capsys, results):
    assert paper.main(arguments) == 2
    assert message in capsys.readouterr().err


def test_a_broken_record_is_named_and_left_out(results, capsys):
    (results / "records").mkdir()
    (results / "records" / "broken.json").write_text('{"config": ')
    (results / "records" / "whole.json").write_text(json.dumps(fake_record("rope", 0, 1.0)))
    assert [record["seed"] for record in read_records()] == [0]
    assert "broken.json cannot be read (" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"metrics": {}}, "metrics"),
        ({"metrics": {"id/exact_match": "1.0"}}, "metrics.id/exact_match"),
        ({"metrics": {"id/exact_match": float("nan")}}, "metrics.id/exact_match"),
        ({"seed": "0"}, "seed"),
        ({"started": 3}, "started"),
        ({"config": None}, "config"),
        ({"config": {"precision": "auto"}}, "config.scale"),
    ],
)
def test_a_record_of_wrong_types_is_named(change, reason, results, capsys):
    (results / "records").mkdir()
    path = results / "records" / "wrong.json"
    path.write_text(json.dumps(fake_record("rope", 0, 1.0) | change))
    assert read_records() == []
    assert f"{path} is not a record ({reason}:" in capsys.readouterr().err


@pytest.mark.parametrize("word", ["seed=1", "model=tape", "task=c4", "peft=lora"])
def test_what_an_artifact_names_itself_is_refused(word):
    with pytest.raises(ConfigError, match=f"{word}: an artifact names its tasks and models itself"):
        requested(["fig_addition", word])


@pytest.mark.parametrize("word", ["debug=one_batch", "debug.steps=3"])
def test_a_debug_run_is_no_run_of_an_artifact(word):
    with pytest.raises(ConfigError, match=f"{word} has no place in a table of results"):
        requested(["fig_addition", word])


def test_a_dry_run_names_the_missing_runs_and_begins_none(capsys, monkeypatch):
    monkeypatch.setattr("tape_exp.paper.__main__.work", lambda *_: pytest.fail("it ran"))
    assert paper.main(["run", "fig_addition", "seeds=8,9", "--dry-run"]) == 0
    *lines, count = capsys.readouterr().out.splitlines()
    models = artifacts.load("fig_addition").models
    assert len(lines) == 2 * len(models)
    assert lines[0] == f"fig_addition: {models[0]}, scale smoke, seed 8"
    assert count == f"{len(lines)} runs are missing"


def test_only_runs_whose_name_fits_a_pattern_are_asked_for(capsys):
    ladder = ["run", "fig_addition_trend", "scale=ladder", "seeds=0", "task.optim.warmup=0.01"]
    only = ["--only", "*[!y] rung12", "--only", "tape rung5 *"]
    assert paper.main([*ladder, *only, "--dry-run"]) == 0
    *lines, _ = capsys.readouterr().out.splitlines()
    names = [re.match(r"fig_addition_trend: (.+), scale", line)[1] for line in lines]
    assert names == [
        *(f"{model} rung12" for model in artifacts.load("fig_addition_trend").models),
        *("tape rung5 wide", "tape rung5 long", "tape rung5 equal"),
    ]
    assert paper.main([*ladder, "--only", "tape rung6", "--dry-run"]) == 2
    told = capsys.readouterr().err
    assert "--only: 'tape rung6' is not known. Did you mean 'tape rung" in told
    assert "of which there are: rope rung5, nope rung5" in told


def test_seeds_of_several_precisions_are_told_apart():
    records = [fake_record("tape", seed, 20.0) | {"precision": "32-true"} for seed in (0, 1)]
    cells = tables.origin(records, "small")
    assert (str(cells["seeds"]), cells["scale"]) == ("2", "small")
    records[1]["precision"] = "bf16-mixed"
    cells = tables.origin(records, "small")
    assert (str(cells["seeds"]), cells["scale"]) == ("2", "small (32-true, bf16-mixed)")


def test_latex_holds_nothing_that_it_does_not_know():
    rows = [{"a_b": "50 % ± 1", "x^2": "#1 & {2}"}, {"a_b": "≤ 3 → 4", "x^2": "a~b\\c $1"}]
    table = tables.Table(tables.columns(["a_b", "x^2"]), rows, "E·Eᵀ – 2^20 √<3>")
    text = tables.latex(table)
    body = text.split(r"\caption", 1)[1]
    assert r"50 \% $\pm$ 1 & \#1 \& \{2\} \\" in text
    assert r"E$\cdot$E$^\top$ -- 2\textasciicircum{}20 $\surd$$<$3$>$" in text
    assert body.count("$") % 2 == 1, "one of them is text"
    for path in sorted((artifacts.RESULTS / "tables").glob("*.tex")):
        assert path.read_text().isascii(), path


def test_records_of_a_scale_reach_only_the_artifacts_of_that_scale():
    """A rung has sizes for addition only: others must not even compose their configs there."""
    at_rung = fake_record("rope", 0, 50.0)
    at_rung["config"]["scale"] = "rung5"
    for name in artifacts.names():
        artifact = artifacts.load(name)
        scales = artifact.at_scales([at_rung])
        assert ("rung5" in scales) == (name == "fig_rates")


def test_every_command_line_is_composed_once(monkeypatch):
    """However many records there are, and however often their tables are made."""
    lines = []

    def counted(words):
        lines.append(tuple(words))
        return compose_config(words)

    identities.identity.cache_clear()
    monkeypatch.setattr(identities, "compose_config", counted)
    artifact = artifacts.load("fig_addition")
    records = [fake_record(model, seed, 1.0) for model in artifact.models for seed in range(20)]
    for _ in range(3):
        collected = artifact.at_scales(records)
        artifact.table("smoke", collected["smoke"])
        artifact.gaps(collected)
    assert len(lines) == len(set(lines)) == len(artifact.models)


def test_the_caption_says_what_was_chosen_and_what_differs():
    artifact = artifacts.load("fig_addition")
    first, second = (fake_record("tape", 0, 1.0, started=f"2026-0{n}-01") for n in (1, 2))
    second |= {"run": "second", "hardware": {"threads": 2}, "git": {"commit": "b", "dirty": False}}
    other = fake_record("rope", 0, 3.0) | {"hardware": {"threads": 1}}
    found = artifact.collect("smoke", [second, first, other])
    caption = artifact.table("smoke", found).caption
    assert "Of TAPE, seed 0, there are 2 records: the newest, second of 2026-02-01," in caption
    assert caption.endswith("The runs are of 2 commits, with 1 or 2 threads.")
    assert "there are" not in artifact.table("smoke", artifact.collect("smoke", [first])).caption


def test_what_has_no_scale_is_under_none(monkeypatch):
    for module in (
        theory,
        efficiency,
    ):  # which another test may have imported in a folder of its own
        monkeypatch.setattr(module, "RESULTS", RESULTS)
    _, collected = paper.collect()
    for name, heading in (("tab_flops", ""), ("theory", ""), ("tab_speed", "### On a CPU")):
        text = page.section(artifacts.load(name), collected[name], {"artifacts": {}}, RESULTS)
        assert "scale smoke" not in text.lower()
        assert heading in text


def test_identities_are_kept_until_a_config_changes(tmp_path, monkeypatch):
    """The second command composes nothing; a changed config, or a damaged file, composes anew."""
    composed, words = [], ("model=rope", "task=arithmetic")

    def counted(given):
        composed.append(given)
        return compose_config(given)

    def identity():
        with identities.kept_on_disk(tmp_path):
            return identities.identity(words)

    monkeypatch.setattr(identities, "compose_config", counted)
    first = identity()
    assert identity() == first == identity_of(compose_config(words))
    assert len(composed) == 1
    (tmp_path / "identities.json").write_text("{")
    assert identity() == first
    assert len(composed) == 2
    monkeypatch.setattr(identities, "_state", lambda: "another")
    assert identity() == first
    assert len(composed) == 3
    tmp_path.joinpath("identities.json").unlink()
    tmp_path.chmod(0o500)
    assert identity() == first
