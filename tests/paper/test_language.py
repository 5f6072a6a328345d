"""The language tables and figures: what stands in which column, what stays empty, and runs that
need another first.
"""

import json

import numpy as np
import pytest

from tape_exp.paper import artifacts, page, runner
from tape_exp.runs.directory import RunDirectory
from tape_exp.runs.identity import identity_of, without_folders
from tape_exp.settings import folders
from tape_exp.settings.compose import compose_config
from tests.conftest import SMALL
from tests.paper.test_artifacts import shown


def record(artifact, model: str, seed: int, metrics: dict, **facts) -> dict:
    config = compose_config(dict(artifact.lines("smoke", [f"seed={seed}"], []))[model])
    told = json.loads(json.dumps(without_folders(identity_of(config))))
    origin = {
        "git": {"commit": "0123456789", "dirty": False},
        "started": "2026-01-01",
        "seed": seed,
    }
    return {
        "config": told,
        "metrics": metrics,
        "parameters": 475_712,
        "positional_parameters": 2048,
        "tokens": 2e6,
        **origin,
        **facts,
    }


def rendered(artifact, records, tmp_path):
    found = artifact.collect("smoke", records)
    return page.render(artifact, "smoke", found, tmp_path)


def test_comparison_has_intervals_and_the_unigram_row(tmp_path):
    artifact = artifacts.load("tab_perplexity")
    records = []
    for seed in range(3):
        metrics = {f"pg19/perplexity@{n}": 100.0 - n / 64 + seed for n in (64, 128, 256, 512)}
        metrics |= {
            "pg19/tokens": 65_536.0,
            "pg19/unigram_perplexity": 381.0,
            "pg19/bits_per_byte@256": 2.0,
            "pg19/bits_per_byte@64": 9.0,
        }
        records.append(record(artifact, "rope", seed, metrics, data_fingerprint=f"of seed {seed}"))
    markdown, *_ = rendered(artifact, records, tmp_path)
    assert "read the same data in the same order" in markdown.read_text()
    assert (
        "trained at 256 tokens on 2.0 M tokens. Scored: the first 65,536 tokens of each set, the "
        "same for all seeds, so that intervals over seeds leave out what other documents would "
        "give. "
    ) in markdown.read_text()
    other = record(artifact, "nope", 0, metrics, data_fingerprint="of another corpus")
    assert "is not recorded" in rendered(artifact, [*records, other], tmp_path)[0].read_text()
    for one in (*records, other):
        one["fingerprint_version"] = 2
    assert "CANNOT BE COMPARED" in rendered(artifact, [*records, other], tmp_path)[0].read_text()
    records[0]["fingerprint_version"] = 3
    assert "is not recorded" in rendered(artifact, [*records, other], tmp_path)[0].read_text()
    markdown, *_ = rendered(artifact, records, tmp_path)
    rows = shown(artifact, records)
    assert [row["model"] for row in rows] == [*artifact.models, "unigram"]
    rope, unigram = rows[0], rows[-1]
    assert rope["pg19 64"] == "100.00 ± 2.48"  # t(0.975, 2) / √3
    assert rope["pg19 bits/byte 256"] == "2.000 ± 0.000"
    assert "pg19 bits/byte 64" not in rope
    assert unigram["pg19 512"] == "381.00"
    assert rows[-2]["pg19 64"] == ""  # tape has not run
    assert (rope["seeds"], rope["scale"], rope["commit"]) == ("3", "smoke", "0123456")


@pytest.mark.parametrize("name", ["tab_ablation", "tab_ablation_I"])
def test_ablation_has_the_paper_beside_ours(name, tmp_path):
    artifact = artifacts.load(name)
    metrics = {f"github/perplexity@{n}": 1000.0 / n for n in (32, 64, 128, 256)} | {
        "shift/attention": 3e-5,
        "github/unigram_perplexity": 441.0,
    }
    rows = shown(artifact, [record(artifact, "tape", 0, metrics)])
    assert set(artifact.labels) == set(artifact.models) == {row["model"] for row in rows}
    (tape,) = [row for row in rows if row["model"] == "tape"]
    assert [tape[f"paper {n}"] for n in (128, 256, 512, 1024)] == ["132.0", "86.6", "63.9", "52.2"]
    assert [tape[f"ours {n}"] for n in (32, 64, 128, 256)] == ["31.25", "15.62", "7.81", "3.91"]
    assert tape["shift error ours (%)"] == "3.0e-05"
    assert tape["added ours (M)"] == "0.0020"
    others = [row for row in rows if row["model"] != "tape"]
    assert all(
        row["ours 256"] == row["shift error ours (%)"] == row["seeds"] == "" for row in others
    )


def test_shift_table_pairs_layers_with_the_papers(tmp_path):
    artifact = artifacts.load("tab_shift")
    metrics = {
        f"{case}/{shift}/{measure}@{layer}": layer / 1000
        for case in ("trained_fp32", "random_bf16")
        for shift in ("add_tokens", "shift_ids")
        for measure in ("attention_relative", "products", "blocks")
        for layer in (1, 2, 4)
    }
    rows = shown(artifact, [record(artifact, "tape", 0, metrics)])
    (row,) = [
        r
        for r in rows
        if (r["measure"], r["shift"], r["model"], r["layer"])
        == ("products", "add_tokens", "tape", "4")
    ]
    assert (row["paper (%)"], row["ours trained fp32 (%)"], row["ours trained bf16 (%)"]) == (
        "2.75",
        "0.40",
        "",
    )
    blocks = [r for r in rows if r["measure"] == "blocks"]
    assert all(r["paper (×0.01)"] == r["paper (%)"] == "" for r in blocks)


@pytest.mark.parametrize("name", ["tab_ablation", "tab_shift", "tab_tune_ppl", "tab_scrolls"])
def test_every_table_of_language_models_says_whether_all_read_the_same(name):
    artifact = artifacts.load(name)
    labels = [label for label, _ in artifact.configs("smoke", [0])]
    first, second = [label for label in labels if label.endswith(labels[0].partition("/")[2])][:2]

    def said(*fingerprints: str | None) -> str:
        facts = [
            {"fingerprint_version": 2} | ({} if f is None else {"data_fingerprint": f})
            for f in fingerprints
        ]
        records = [
            record(artifact, label, 0, {"a/b@1": 1.0}, **told)
            for label, told in zip((first, second), facts, strict=True)
        ]
        return artifact.notes(artifact.collect("smoke", records))

    assert "Of each seed, the runs of all models read the same data" in said("a", "a")
    assert "CANNOT BE COMPARED" in said("a", "b")
    assert "is not recorded: fingerprints of their data are missing" in said("a", None)


def test_data_sets_of_a_table_may_differ():
    artifact = artifacts.load("tab_tune_ppl")
    facts = {f"lora/{corpus}": {"data_fingerprint": corpus} for corpus in artifact.corpora}
    records = [record(artifact, label, 0, {}, **told) for label, told in facts.items()]
    assert artifacts.same_data(artifact.collect("smoke", records))


def test_of_several_records_the_newest_with_the_data_of_the_others_is_taken():
    artifact = artifacts.load("tab_ablation")

    def made(model: str, data: str, day: int) -> dict:
        named = {"run": f"{model} {day}", "data_fingerprint": data, "started": f"2026-01-0{day}"}
        return record(artifact, model, 0, {"github/perplexity@256": 50.0}, **named)

    others = [
        made("tape", "common", 1),
        made("tape_neither", "common", 1),
        made("rope", "common", 1),
    ]
    both = [made("rope", "common", 2), made("rope", "own", 3)]
    found = artifact.collect("smoke", [*both, *others])
    assert found["rope"][0]["run"] == "rope 2"
    assert (
        "Of RoPE, seed 0, there are 3 records: the newest that read the same data as the "
        "others, rope 2 of 2026-01-02, was taken." in artifact.notes(found)
    )
    alone = artifact.collect("smoke", both)
    assert alone["rope"][0]["run"] == "rope 3", "there is nothing to agree with"


def test_figures_take_both_models(tmp_path):
    pattern, layers = artifacts.load("fig_pattern"), artifacts.load("fig_dp_layers")
    grids = {
        f"{kind}@{n}": np.eye(8).tolist() for kind in ("products", "attention") for n in (1, 4)
    }
    tape = record(pattern, "tape", 0, {}, matrices=grids)
    rope = record(pattern, "rope", 0, {}, matrices=grids | {"attention@4": np.tri(8).tolist()})
    assert rendered(pattern, [tape], tmp_path) == []
    picture, on_page = pattern.figures("smoke", {"tape": [tape], "rope": [rope]})
    (difference,) = picture.signed
    assert np.array_equal(picture.panels[difference], np.eye(8) - np.tri(8))
    assert len(picture.panels) == 3
    assert [*on_page.panels] == ["attention of TAPE, layer 4", "attention of RoPE, layer 4"]
    assert np.array_equal(on_page.panels["attention of RoPE, layer 4"], np.tri(8))
    (layered,) = layers.figures("smoke", {"tape": [tape]})
    assert list(layered.panels) == ["layer 1", "layer 4"]
    written = rendered(pattern, [tape, rope], tmp_path)
    files = [f"fig_pattern-smoke.{kind}" for kind in ("pdf", "svg", "png")]
    assert [path.name for path in written] == files, "the rest is on the page"
    assert rendered(layers, [tape], tmp_path)[-1].name == "fig_dp_layers-smoke.png"


def test_a_run_that_needs_another_makes_it_first(tmp_path, monkeypatch, text_folder):
    """Stability begins from the pre-training run of its model, scale and seed; both leave a record;
    none is run twice.
    """
    monkeypatch.setattr(folders, "RECORDS", tmp_path / "records")
    artifact = artifacts.load("tab_shift")
    artifact.models = ["rope"]
    settings = [
        "trainer=cpu",
        "trainer.progress=none",
        "logger=none",
        f"runs={tmp_path}/runs",
        f"cache={text_folder}/cache",
    ]
    original = compose_config

    def small(words):
        if "task=c4" in words:
            words = [
                *words,
                "task.optim.max_steps=2",
                "task.optim.batch=2",
                "task.windows.tokens=64",
                "task.validation_rows=1",
            ]
            words = [*words, f"task.tests.github.path={text_folder}"]
        sizes = [s for s in SMALL if "batch" not in s]
        words = [
            *words,
            *sizes,
            "scale.text=local",
            f"task.text.path={text_folder}",
            "task.tokenizer.kind=byte",
        ]
        return original([*words, "task.train_length=24"])

    for module in (artifacts, runner):
        monkeypatch.setattr(module, "compose_config", small)
    assert runner.work(runner.missing([artifact], "smoke", [0], settings)) == runner.Outcome()
    names = sorted(path.name.split("-")[0] for path in (tmp_path / "records").glob("*.json"))
    assert names == ["c4", "stability"]
    monkeypatch.setattr(
        runner, "run_and_record", lambda cfg, _: pytest.fail(f"{RunDirectory(cfg).name} ran again")
    )
    assert runner.work(runner.missing([artifact], "smoke", [0], settings)) == runner.Outcome()


def test_a_table_finds_builtin_text_under_either_name_and_says_so():
    artifact = artifacts.load("tab_ablation")
    metrics = {"github/perplexity@256": 50.0, "github/unigram_perplexity": 400.0}
    named = {f"builtin_{name}": value for name, value in metrics.items()}
    for given in (metrics, named):
        found = artifact.collect("smoke", [record(artifact, "tape", 0, given)])
        table = artifact.table("smoke", found)
        assert str(table.values(("ours", 256))["tape"]) == "50.00"
        assert "In place of c4 and github: text that Python carries." in table.caption
