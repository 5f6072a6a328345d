"""What the page is made from: committed records."""

import html
import json
import re

import pytest

from tape_exp.paper import artifacts
from tape_exp.paper.records import read_records
from tape_exp.paper.values import Missing, Value, over_seeds
from tape_exp.report import __main__ as report
from tape_exp.report import content
from tape_exp.settings import folders


def some_record() -> dict:
    return next(r for r in read_records() if r["config"]["task"]["name"] == "arithmetic")


def test_the_curve_of_a_record_is_drawn():
    record = {
        **some_record(),
        "curves": {"train/loss": {"step": [1, 2, 4], "value": [1.0, 0.5, 0.25]}},
    }
    found = content.gather([], [record, {**record, "run": "evaluated", "curves": {}}])
    trained, evaluated = found.runs
    assert trained.curve is not None
    (line,) = found.figures[trained.curve.id]["lines"]
    assert (line["name"], line["x"], line["y"]) == ("training loss", [1, 2, 4], [1, 0.5, 0.25])
    assert evaluated.curve is None


def test_the_page_needs_no_rendered_file(tmp_path, monkeypatch):
    """Its tables and figures are made from the records."""
    (tmp_path / "paper.yaml").write_text((artifacts.RESULTS / "paper.yaml").read_text())
    monkeypatch.setattr(artifacts, "RESULTS", tmp_path)
    artifact, records = artifacts.load("fig_addition_yarn"), read_records()
    section, *_ = content.gather([artifact], records).sections
    (at_scale,) = section.scales
    tape = at_scale.table.values("ours")["TAPE"]
    of_tape = artifact.collect("smoke", records)["tape"]
    means = [record["metrics"]["test/exact_match"] for record in of_tape]
    assert (tape.number, tape.n) == (pytest.approx(sum(means) / len(means)), len(means))
    assert len(at_scale.plots) == len(artifact.models)


def test_models_whose_runs_no_artifact_shows_have_a_table(monkeypatch):
    """One for each setting; runs of an artifact, and single models, are in no other."""
    records = [
        record
        for record in read_records()
        if (config := record["config"])["task"]["name"] == "arithmetic"
        and config["scale"] == "smoke"
        and config["model"]["name"] in ("rope", "tape")
    ]
    (section,) = content.gather([], records).sections
    assert [row["model"] for row in section.scales[0].table.rows] == ["RoPE", "TAPE"]
    command = "tape-exp paper compare task=arithmetic model=rope,tape scale=smoke"
    assert section.scales[0].command == f"{command} seeds=0,1,2"
    assert len(section.scales[0].runs) == len(records) == 6
    others = json.loads(json.dumps(records))
    for record in others:
        record["run"] += "-other"
        record["config"]["task"]["optim"]["lr"] = 0.5
    plain, other = content.gather([], [*others, *records]).sections
    assert plain.scales[0].command == f"{command} seeds=0,1,2"
    assert other.scales[0].command == (
        f"{command} seeds=0,1,2 task.optim.lr=0.5 --name=compare_arithmetic_2"
    )
    of_rope = [record for record in records if record["config"]["model"]["name"] == "rope"]
    assert not content.gather([], of_rope).sections
    addition = artifacts.load("fig_addition")
    assert [s.name for s in content.gather([addition], records).sections] == ["fig_addition"]
    monkeypatch.setattr(folders, "INSTALLED", True)  # where the paper's sections would be empty
    assert not content.gather([addition], of_rope[:0]).sections


def test_pages_of_benches_are_inside(tmp_path, monkeypatch):
    """Whole, and apart from the page: their scripts cannot reach it."""
    assert "<iframe" not in report.page(content.Content())
    (tmp_path / "bench").mkdir()
    text = "<title>A &amp; B</title><script>alert('\"')</script>"
    (tmp_path / "bench" / "quick-smoke.html").write_text(text)
    monkeypatch.setattr(artifacts, "RESULTS", tmp_path)
    found = content.Content(benches=report.read_benches())
    assert found.benches == [("A & B", text)]
    page = report.page(found)
    assert "<script>alert" not in page
    (frame,) = re.findall(r"<iframe (.*?)></iframe>", page)
    assert html.unescape(frame) == f'title="A & B" sandbox="allow-scripts" srcdoc="{text}"'


def test_a_cell_says_its_number_its_interval_or_why_it_is_empty():
    assert content.attributes(over_seeds({0: 1.0, 1: 2.0})) == (
        ' data-value="1.5" title="95 % interval over seeds: -4.853 to 7.853, n = 2"'
    )
    assert content.attributes(Value(1 / 3)) == ' data-value="0.333333"'
    assert content.attributes(Value(0.25)) == ""  # its text is the number
    assert content.attributes(Missing('a "reason"')) == ' title="a &#34;reason&#34;"'
    assert content.attributes("<b>") == ""


def test_the_page_of_all_records_stays_small(tmp_path, capsys):
    path = tmp_path / "index.html"
    assert report.main(["--out", str(path)]) == 0
    assert path.stat().st_size < report.LIMIT
    assert "warning" not in capsys.readouterr().err


def test_commands_of_artifacts():
    found = content.gather(list(map(artifacts.load, ("fig_addition_20", "tab_speed"))), [])
    told = {section.name: section.command for section in found.sections}
    assert told["fig_addition_20"] == "tape-exp paper run fig_addition_20 scale=smoke seeds=0,1,2"
    assert told["tab_speed"] == "python -m benchmarks.speed"


def test_text_of_a_record_cannot_leave_its_place():
    """A record's words are shown as they are, and end no script."""
    record = some_record()
    told = json.loads(json.dumps(record))
    told["run"] = "</script><script>alert(1)</script>"
    told["config"]["model"]["note"] = "<img src=x onerror=alert(1)>"
    told["curves"] = {"</script><script>alert(1)": {"step": [1, 2], "value": [1.0, 1.0]}}
    page = report.page(content.gather([], [told]))
    assert "alert(1)" in page
    assert "<script>alert" not in page
    assert "<img" not in page
