"""What the page is made from: committed records and rendered tables."""

import json

import pytest

from tape_exp.paper import artifacts
from tape_exp.report import __main__ as report
from tape_exp.report import content
from tape_exp.settings.errors import ConfigError


def some_record() -> dict:
    return next(r for r in artifacts.read_records() if r["config"]["task"]["name"] == "arithmetic")


def test_the_curve_of_a_record_is_drawn():
    record = {
        **some_record(),
        "curves": {"train/loss": {"step": [1, 2, 4], "value": [1.0, 0.5, 0.25]}},
    }
    found = content.gather(
        [], [record, {**record, "run": "evaluated", "curves": {}}], artifacts.RESULTS
    )
    trained, evaluated = found.runs
    assert trained.curve is not None
    (line,) = found.figures[trained.curve.id]["lines"]
    assert (line["name"], line["x"], line["y"]) == ("train/loss", [1, 2, 4], [1, 0.5, 0.25])
    assert evaluated.curve is None


def test_records_without_a_rendered_table_are_refused(tmp_path):
    artifact, records = artifacts.load("fig_addition_yarn"), artifacts.read_records()
    with pytest.raises(ConfigError, match=r"fig_addition_yarn at scale smoke .* run `make tables`"):
        content.gather([artifact], records, tmp_path)


def test_commands_of_artifacts():
    found = content.gather(
        list(map(artifacts.load, ("fig_addition_20", "tab_speed"))), [], artifacts.RESULTS
    )
    told = {section.name: section.command for section in found.sections}
    assert (
        told["fig_addition_20"]
        == "python -m tape_exp.paper run fig_addition_20 scale=smoke seeds=0,1,2"
    )
    assert told["tab_speed"] == "python -m tape_exp.speed"


def test_text_of_a_record_cannot_leave_its_place():
    """A record's words are shown as they are, and end no script."""
    record = some_record()
    told = json.loads(json.dumps(record))
    told["run"] = "</script><script>alert(1)</script>"
    told["config"]["model"]["note"] = "<img src=x onerror=alert(1)>"
    told["curves"] = {"</script><script>alert(1)": {"step": [1, 2], "value": [1.0, 1.0]}}
    page = report.page(content.gather([], [told], artifacts.RESULTS))
    assert "alert(1)" in page
    assert "<script>alert" not in page
    assert "<img" not in page
