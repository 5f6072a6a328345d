"""The page of all tables, figures and runs is made from the records."""

import json
import shutil

import pytest

from tape_exp.paper import artifacts
from tape_exp.paper.records import read_records
from tape_exp.paper.values import Missing, over_seeds
from tape_exp.report import __main__ as report
from tape_exp.settings import folders


@pytest.fixture
def drawn(monkeypatch):
    """Names of figures that would be drawn."""
    names = []
    for kind in ("curves.Curves", "heatmap.Heatmaps", "patterns.Patterns"):
        where = f"tape_exp.drawing.{kind}.draw"
        monkeypatch.setattr(where, lambda self, path, mark="", kinds=(): names.append(path.name))
    return names


def page_of(records, names, out, monkeypatch):
    monkeypatch.setattr(report, "known_records", lambda: records)
    monkeypatch.setattr(artifacts, "names", lambda: names)
    assert report.main(["--out", str(out)]) == 0
    return (out / "index.html").read_text()


def addition():
    return [
        record
        for record in read_records()
        if record["config"]["task"]["name"] == "arithmetic" and record["config"]["scale"] == "smoke"
    ]


def test_an_artifact_has_its_verdict_figures_table_and_command(tmp_path, monkeypatch, drawn):
    page = page_of(addition(), ["fig_addition", "tab_ablation"], tmp_path, monkeypatch)
    assert [name for name in drawn if name.startswith("fig_")] == ["fig_addition-smoke-0.svg"]
    assert 'src="figures/fig_addition-smoke-0.svg"' in page
    assert "25.25 ± 0.92" in page, "a cell of the table"
    assert "95 % interval over seeds" in page
    assert "tape-exp paper run fig_addition scale=smoke seeds=0,1,2" in page
    assert "No run is recorded yet. To run it: <code>tape-exp paper run tab_ablation" in page


def test_models_whose_runs_no_artifact_shows_have_a_table(tmp_path, drawn, monkeypatch):
    """One for each setting; runs of an artifact, and single models, are in no other."""
    records = [r for r in addition() if r["config"]["model"]["name"] in ("rope", "tape")]
    monkeypatch.setattr(artifacts, "names", list)
    (section,) = report.sections_of(records, tmp_path)
    (at,) = section.scales
    assert [row["model"] for row in at.table.rows] == ["RoPE", "TAPE"]
    command = "tape-exp paper compare task=arithmetic model=rope,tape scale=smoke"
    assert at.command == f"{command} seeds=0,1,2"
    assert len(at.runs) == len(records) == 6
    of_rope = [record for record in records if record["config"]["model"]["name"] == "rope"]
    assert not report.sections_of(of_rope, tmp_path)
    monkeypatch.setattr(artifacts, "names", lambda: ["fig_addition"])
    (section,) = report.sections_of(records, tmp_path)
    assert section.artifact.name == "fig_addition"
    monkeypatch.setattr(folders, "INSTALLED", True)  # where the paper's sections would be empty
    assert not report.sections_of([], tmp_path)


def test_text_of_a_record_is_shown_as_it_is(tmp_path, monkeypatch, drawn):
    record = json.loads(json.dumps(addition()[0]))
    record["run"] = "</script><script>alert(1)</script>"
    page = page_of([record], [], tmp_path, monkeypatch)
    assert "alert(1)" in page
    assert "<script>alert" not in page


def test_the_bench_is_on_the_page(tmp_path, monkeypatch, drawn):
    bench = tmp_path / "results" / "bench"
    shutil.copytree(artifacts.RESULTS / "bench", bench, ignore=shutil.ignore_patterns("records"))
    monkeypatch.setattr(artifacts, "RESULTS", bench.parent)
    page = page_of([], [], tmp_path, monkeypatch)
    assert "<h3>quick-smoke</h3>" in page
    assert (tmp_path / "figures" / "quick-smoke.svg").exists()


def test_a_cell_says_its_interval_or_why_it_is_empty():
    assert report.why(over_seeds({0: 1.0, 1: 2.0})) == (
        "95 % interval over seeds: -4.853 to 7.853, n = 2"
    )
    assert report.why(Missing("a reason")) == "a reason"
    assert report.why("text") == ""
