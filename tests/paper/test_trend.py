"""The ladder: which runs it has, what counts, what is drawn, and what its claim is judged by."""

import json
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.figure import Figure

from tape_exp.paper import artifacts
from tape_exp.paper.claims import FLOOR, NO, UNCLEAR, UNTESTED, YES
from tape_exp.paper.records import read_records
from tape_exp.paper.trend import Rung, Trend, Variant, extra
from tape_exp.paper.words import requested
from tape_exp.runs.identity import identity_of
from tape_exp.settings.compose import compose_config
from tape_exp.settings.errors import ConfigError


@pytest.fixture
def artifact():
    loaded = artifacts.load("fig_addition_trend")
    loaded.models, loaded.variants = ["rope", "fire", "tape"], {}
    loaded.rungs = {name: replace(rung, further={}) for name, rung in loaded.rungs.items()}
    return loaded


def records_of(artifact, grid: dict[str, float], learned: float = 100.0) -> list[dict]:
    """A record of each run whose label begins with a key of ``grid``; each seed adds a point."""
    records = []
    for seed in range(max(rung.seeds for rung in artifact.rungs.values())):
        for label, words in artifact.lines("ladder", [f"seed={seed}"], []):
            if value := next((v for key, v in grid.items() if label.startswith(key)), None):
                beyond = max(value + seed - 25, 0) / 0.75
                metrics = {"test/exact_match": value + seed, "id/exact_match": learned}
                metrics["ood/exact_match"] = beyond
                told = json.loads(json.dumps(identity_of(compose_config(words))))
                record = {"config": told, "seed": seed, "metrics": metrics, "parameters": 250_000}
                record["precision"] = "32-true"
                record |= {"started": "2026-01-01", "git": {"commit": "0" * 10, "dirty": False}}
                records.append(record)
    return records


def test_extra_length_of_solved_squares():
    """A model that solves all sums of up to L of 2n digits solves (L / 2n)² of the grid."""
    n = 12
    for solved in range(n, 2 * n + 1):
        assert extra((solved / (2 * n)) ** 2) == pytest.approx(solved / n - 1)
    assert extra(np.array([0.25, 1.0])).tolist() == [0.0, 1.0]


def test_every_rung_has_its_models_and_seeds():
    whole = artifacts.load("fig_addition_trend")
    found = [(label, cfg.seed) for label, cfg in whole.configs("ladder", range(9))]
    seeds = {label: sum(name == label for name, _ in found) for label in whole.wanted("ladder")}
    assert (seeds["tape rung5"], seeds["tape rung8"], seeds["tape rung12"]) == (5, 3, 2)
    assert (seeds["path rung5"], seeds["tape_randpe rung5"], seeds["path rung8"]) == (5, 3, 3)
    assert seeds["tape rung5 wide"] == 2, "a variant has seeds of its own"
    precision = {label: cfg.trainer.precision for label, cfg in whole.configs("ladder", [0])}
    assert (precision["tape rung5"], precision["tape rung8"]) == ("auto", "bf16-mixed")
    assert (precision["randpe rung8"], precision["randpe rung8 fp32"]) == ("bf16-mixed", "32-true")
    assert "nope rung8 short" in seeds
    assert "nope rung8 fp32" not in seeds, "a variant has models of its own"
    assert "path rung12" not in seeds
    assert list(whole.configs("smoke", [0])) == []
    with pytest.raises(ConfigError, match="scale=ladder has"):
        requested(["fig_addition_trend"])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"rates": {"ropee": 0.1}}, "rates has ropee, which no rung runs"),
        ({"rivals": ["ropo"]}, "rivals has ropo, which no rung runs"),
        ({"favourites": ["tapir"]}, "favourites has tapir, which no rung runs"),
        ({"favourites": ["tape", "fire"]}, "favourites must have one model"),
        ({"rates": {"rope": "x"}}, "rates.rope=x must be a number above 0"),
        ({"rates": {"rope": -1}}, "rates.rope=-1 must be a number above 0"),
        ({"rungs": {"rung5": Rung(seeds=5, further={"tape": 2})}}, "rung5 runs tape twice"),
        ({"variants": {"rung9 wide": Variant(1, ["a=1"])}}, "variants.rung9 wide must be called"),
        ({"variants": {"rung5": Variant(1, ["a=1"])}}, "variants.rung5 must be called by a rung"),
        ({"variants": {"rung5 wide": Variant(1, [])}}, "variants.rung5 wide needs overrides"),
        ({"variants": {"rung5 wide": Variant(0, ["a=1"])}}, "seeds=0 of rung5 wide must be"),
        ({"rungs": {"rung5": Rung(-1)}, "variants": {}}, "seeds=-1 of rung5 must be at least 1"),
        (
            {"rungs": {"rung5": Rung(2, further={"path": 3})}, "variants": {}},
            "path: 3 of rung5 must",
        ),
    ],
)
def test_a_key_without_an_effect_is_refused(artifact, changed, message):
    with pytest.raises(ConfigError, match=rf"conf/paper/fig_addition_trend\.yaml: {message}"):
        Trend(**(vars(artifact) | {"rates": {}} | changed))


def test_variants_change_parameters_or_steps_by_four_and_nothing_else():
    configs = dict(artifacts.load("fig_addition_trend").configs("ladder", [0]))
    plain, wide, long = (configs[f"tape rung5{name}"].task for name in ("", " wide", " long"))
    assert wide.arch.width == 2 * plain.arch.width
    assert wide.arch.ffn == 2 * plain.arch.ffn
    assert long.optim.max_steps == 4 * plain.optim.max_steps
    assert (wide.arch.layers, long.arch) == (plain.arch.layers, plain.arch)
    assert wide.optim == plain.optim


def test_the_lead_is_paired_by_seed(artifact):
    found = artifact.collect("ladder", records_of(artifact, {"rope rung5": 25, "tape rung5": 36}))
    table = artifact.table("ladder", found)
    lead = table.values(("lead", "rope"), rung="rung5")["tape"]
    expected = [extra((36 + s) / 100) - extra((25 + s) / 100) for s in range(5)]
    assert lead.number == pytest.approx(np.mean(expected))
    assert lead.high - lead.low < 0.02, "what all seeds share leaves the difference"
    assert "pair" not in str(lead), "the row has its seeds"


@pytest.mark.parametrize(("seeds", "told"), [([0], "(1 pair)"), ([0, 3], "(2 pairs)")])
def test_a_lead_of_fewer_pairs_than_its_row_has_seeds_says_so(artifact, seeds, told):
    records = records_of(artifact, {"rope rung5": 25, "tape rung5": 36})
    ran = [r for r in records if r["config"]["model"]["name"] == "tape" or r["seed"] in seeds]
    table = artifact.table("ladder", artifact.collect("ladder", ran))
    assert str(table.values(("lead", "rope"), rung="rung5")["tape"]).endswith(told)


def test_a_run_that_has_not_learned_does_not_count(artifact):
    records = records_of(artifact, {"tape rung5": 36}) + records_of(
        artifact, {"rope rung5": 20}, learned=98.9
    )
    found = artifact.collect("ladder", records)
    table = artifact.table("ladder", found)
    assert table.values("extra", rung="rung5").keys() == {"tape"}
    assert table.values("grid", rung="rung5").keys() == {"rope", "tape"}
    assert "RoPE rung5 seed 4 (98.9 %, extra length 0.000)" in table.caption
    assert "bf16" not in table.caption
    assert artifact.verdict("ladder", found).holds == UNTESTED
    (figure,) = artifact.figures("ladder", found)
    drawn = [line.name for line in figure.panels[0].lines if line.each]
    assert drawn == ["TAPE"]


def test_the_caption_names_the_rungs_of_another_precision(artifact):
    records = records_of(artifact, {"tape rung5": 36, "tape rung8": 30})
    for record in records:
        if record["config"]["scale"] == "rung8":
            record["precision"] = "bf16-mixed"
    table = artifact.table("ladder", artifact.collect("ladder", records))
    assert "The figure's points of rung8 are of bf16-mixed." in table.caption


def test_trained_sums_are_no_extra_length(artifact):
    """One of a thousand trained sums more is no reach, and a few longer sums are chance."""
    artifact.rungs = {"rung5": Rung(3)}
    records = records_of(artifact, {"tape": 25}) + records_of(artifact, {"rope": 25}, learned=99.2)
    records += records_of(artifact, {"fire": 25}, learned=99.3)
    for solved, holds in ((0.0, FLOOR), (0.01, UNCLEAR)):
        for record in records:
            record["metrics"]["ood/exact_match"] = solved * record["seed"]
        assert artifact.verdict("ladder", artifact.collect("ladder", records)).holds == holds


def test_the_legend_names_a_model_of_which_the_paper_alone_has_points(
    artifact, tmp_path, monkeypatch
):
    told = []
    monkeypatch.setattr(Figure, "legend", lambda _, handles, names, **__: told.extend(names))
    found = artifact.collect("ladder", records_of(artifact, {"rope": 30.0}))
    (figure,) = artifact.figures("ladder", found)
    figure.draw(tmp_path / "trend.png")
    assert {"RoPE", "FIRE (paper)", "TAPE (paper)"} <= set(told)
    assert "RoPE (paper)" not in told, "the filled marker has told its colour"


def test_no_line_joins_fewer_than_three_rungs(artifact):
    few = {f"{model} {rung}": 30.0 for model in ("rope", "tape") for rung in ("rung5", "rung8")}
    for grid, joined in ((few, False), ({"rope": 30.0, "tape": 30.0}, True)):
        (figure,) = artifact.figures(
            "ladder", artifact.collect("ladder", records_of(artifact, grid))
        )
        for panel in figure.panels:
            assert {line.joined for line in panel.lines if not line.hollow} == {joined}
            assert not any(line.joined for line in panel.lines if line.hollow)


def test_dots_are_seeds_and_their_band_holds_the_mean(artifact):
    found = artifact.collect("ladder", records_of(artifact, {"tape": 30.0}))
    (figure,) = artifact.figures("ladder", found)
    (line,) = (line for line in figure.panels[0].lines if line.each)
    assert line.x == [5, 8, 12, 20]
    assert [sum(x == n for x, _ in line.each) for n in line.x] == [5, 3, 2, 1]
    for low, y, high in [*zip(line.low, line.y, line.high, strict=True)][:2]:
        assert low < y < high
    assert line.low[2:] == line.high[2:] == [None, None], (
        "a bootstrap over two seeds is their range"
    )


def test_the_papers_points_are_those_of_its_captions(artifact):
    papers = artifact.papers()
    assert papers["tape", 40] == pytest.approx(2 * np.sqrt(0.3282) - 1)
    assert papers["nope", 40] < 0
    assert papers["tape", 20] == pytest.approx(2 * np.sqrt(0.4142) - 1)
    assert ("nope", 20) not in papers


@pytest.mark.parametrize(("tape", "holds"), [(45.0, YES), (26.0, NO)])
def test_every_rung_decides(artifact, tape, holds):
    artifact.rungs = {"rung5": Rung(3), "rung8": Rung(3)}
    grid = {"rope": 28.0, "fire": 34.0, "tape": tape}
    verdict = artifact.verdict("ladder", artifact.collect("ladder", records_of(artifact, grid)))
    assert verdict.holds == holds
    assert "5 digits" in verdict.ours
    assert "8 digits" in verdict.ours


def test_without_runs_nothing_is_drawn(artifact):
    assert artifact.figures("ladder", {}) == []
    assert artifact.verdict("ladder", {}).holds == UNTESTED


def test_every_model_trains_at_the_rate_that_the_search_chose():
    """Once fig_rates has tried all rates of a model with the same seeds."""
    search, whole = artifacts.load("fig_rates"), artifacts.load("fig_addition_trend")
    found = search.collect("rung5", read_records())
    trained = {
        label.split()[0]: cfg.task.optim.lr
        for label, cfg in whole.configs("ladder", [0])
        if label.endswith(" rung8")
    }
    assert trained.keys() >= set(search.models)
    for model in search.models:
        if choice := search.choice(model, found):
            assert (trained[model], 1.0) == choice, f"set rates: {{{model}: {choice[0]}}}"
