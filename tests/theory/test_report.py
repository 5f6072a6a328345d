"""``python -m tape_exp.theory``: what it measures is what it prints, writes and draws."""

import json
from types import SimpleNamespace

import pytest
import torch

from tape_exp.artifacts.artifact import load
from tape_exp.artifacts.view import View
from tape_exp.settings import folders
from tape_exp.theory import PROPERTIES
from tape_exp.theory import __main__ as report


def test_report_is_printed_written_and_drawn(tmp_path, monkeypatch, capsys):
    found = report.theorem(2, tuple(2**n for n in range(1, 9)))
    case = SimpleNamespace(variant="tape", initial="rotations")
    monkeypatch.setattr(report, "theorem", lambda rows: found)
    monkeypatch.setattr(report, "cases", lambda: [case])
    monkeypatch.setattr(report, "measure", lambda case: dict.fromkeys(PROPERTIES, 1e-12))
    monkeypatch.setattr(folders, "RESULTS", tmp_path)
    threads = torch.get_num_threads()
    assert report.main([]) == 0
    assert not [*tmp_path.iterdir()], "looking writes nothing"
    assert report.main(["--record"]) == 0
    assert torch.get_num_threads() == threads
    record = json.loads((tmp_path / "theory.json").read_text())
    repaired = record["theorem"]["forms"]["repaired"]
    assert repaired["all"] == repaired["identity"] == [100.0] * 8
    assert repaired["exact"] == 100
    assert repaired["margin"] >= 1 - 1e-9
    assert record["theorem"]["exhaustive"] == {
        "swaps": 4,
        "sequences": 11_111,
        "positions": 54_321,
        "wrong": 0,
    }
    assert record["theorem"]["forms"]["printed"]["identity"] == [0.0] * 8
    assert [row["variant"] for row in record["propositions"]] == ["tape"]
    assert all(set(PROPERTIES) < set(row) for row in record["propositions"])
    printed = capsys.readouterr().out
    assert "yes (" in printed
    assert printed.count("| repaired ") == 2
    view = View(load("theory"), "smoke", [])
    assert "wrong at 0 of the 54321 positions of all 11111 sequences" in view.table.caption
    assert len(view.table.rows) == len(report.FORMS)


def test_outcome_counts_by_hand():
    argument = torch.tensor([[1.5, -0.25, 0.7, 0.6]])
    labels = torch.tensor([[True, False, True, False]])
    found = report.outcome(argument, labels, (2, 4))
    assert found["all"] == [100, 75]
    assert found["identity"] == [100, 100]
    assert found["exact"] == 50
    assert found["margin"] == pytest.approx(-0.6)
