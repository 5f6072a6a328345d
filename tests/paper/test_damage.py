"""Damaged files: each is named, the others are shown, and nothing ends in a traceback."""

import errno
import itertools
import json
import shutil
from pathlib import Path

import pytest

from tape_exp.paper import __main__ as paper
from tape_exp.paper import artifacts, costs, efficiency, theory
from tape_exp.paper.figure_kinds import Curves, Heatmaps
from tape_exp.report import __main__ as report
from tape_exp.settings import folders
from tests.paper.test_artifacts import fake_record


@pytest.fixture
def results(tmp_path, monkeypatch):
    folder = tmp_path / "results"
    (folder / "records").mkdir(parents=True)
    for name in ("paper.yaml", "costs.json", "theory.json"):
        shutil.copy(artifacts.RESULTS / name, folder)
    shutil.copytree(artifacts.RESULTS / "speed", folder / "speed")
    for module in (artifacts, paper, efficiency, theory):
        monkeypatch.setattr(module, "RESULTS", folder)
    monkeypatch.setattr(folders, "RECORDS", folder / "records")
    record = fake_record("tape", 0, 31.4159)
    (folder / "records" / "good.json").write_text(json.dumps(record))
    return folder


DAMAGE = {
    "empty": "",
    "cut": '{"a": [1, ',
    "list": "[]",
    "number": "3",
    "nan": '{"rows": NaN, "artifacts": NaN}',
    "huge": '{"artifacts": {"x": {"runs": 1e999, "gpu_hours": 1}}, "rows": 1' + "0" * 5000 + "}",
    "wrong": '{"artifacts": {"fig_addition": {"runs": "x"}}, "fig_addition": {"values": []}}',
}
FILES = {
    "records/bad.json": 0,
    "speed/speed-amd-epyc--2-threads.json": 0,
    "theory.json": 0,
    "paper.yaml": 2,
    "costs.json": 2,
}


@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_is_named(name, results, capsys, monkeypatch):
    """A single one of many is left out; what everything depends on ends the command."""
    monkeypatch.setattr(paper, "names", lambda: ["fig_addition", "tab_speed", "theory"])
    for kind in (Curves, Heatmaps):  # which take most of the time
        monkeypatch.setattr(kind, "draw", lambda figure, path, *_, **__: path)
    commands = {"list": paper.main, "render": paper.main, "report": report_of(results)}
    path = results / name
    cases = itertools.product([*DAMAGE, "folder"], commands)
    for damage, command in (c for c in cases if c[1] != "report" or c[0] == "cut"):
        if damage == "folder":
            if not path.is_dir():
                path.unlink(missing_ok=True)
                path.mkdir()
        else:
            path.write_text(DAMAGE[damage])
        artifacts._numbers.cache_clear()
        status = commands[command]([command])
        told = capsys.readouterr()
        uses_costs = command == "render" or name != "costs.json"
        assert status in (0, FILES[name])
        if uses_costs:
            assert path.name.removesuffix(".json") in told.err, (damage, command)
        if status == 0 and command == "list":
            assert "tape: 1" in told.out
    artifacts._numbers.cache_clear()


def test_a_record_that_may_not_be_read_is_named_and_the_rest_is_drawn(results, capsys, monkeypatch):
    path = results / "records" / "bad.json"
    path.write_text((results / "records" / "good.json").read_text())
    read = Path.read_text

    def refuse(file, *options, **further):
        if file == path:
            raise PermissionError(errno.EACCES, "Permission denied", str(file))
        return read(file, *options, **further)

    monkeypatch.setattr(paper, "names", lambda: ["fig_addition"])
    monkeypatch.setattr(Heatmaps, "draw", lambda figure, path, *_, **__: path)
    monkeypatch.setattr(Path, "read_text", refuse)
    assert paper.main(["render"]) == 0
    assert capsys.readouterr().err == (
        f"warning: {path} cannot be read (Permission denied); restore or remove it. "
        "It is left out.\n"
    )
    assert "31.42" in (results / "tables" / "fig_addition-smoke.md").read_text()


def test_a_folder_of_records_that_may_not_be_read_costs_no_table(results, capsys, monkeypatch):
    table = results / "tables" / "fig_addition-smoke.md"
    table.parent.mkdir()
    table.write_text("kept")

    def refuse(folder):
        raise PermissionError(errno.EACCES, "Permission denied", str(folder))

    monkeypatch.setattr(Path, "iterdir", refuse)
    assert paper.main(["render", "fig_addition"]) == 1
    assert capsys.readouterr().err == f"error: {results / 'records'}: Permission denied.\n"
    assert table.read_text() == "kept"


def test_records_on_a_disk_that_is_not_there_cost_no_table(results, capsys):
    table = results / "tables" / "fig_addition-smoke.md"
    table.parent.mkdir()
    table.write_text("kept")
    shutil.rmtree(results / "records", ignore_errors=True)
    (results / "records").symlink_to(results / "not" / "mounted")
    assert paper.main(["render", "fig_addition"]) == 1
    assert "records: it is a link that leads nowhere" in capsys.readouterr().err
    assert table.read_text() == "kept"


def test_a_comparison_never_takes_the_place_of_an_artifact(capsys):
    words = ["task=arithmetic", "model=rope", "--record", "--name", "fig_pattern"]
    assert paper.main(["compare", *words]) == 2
    assert "fig_pattern is an artifact" in capsys.readouterr().err


def report_of(results):
    return lambda _: report.main(["--out", str(results / "page")])


def test_costs_that_are_not_there_are_none(tmp_path):
    assert costs.read(tmp_path) == {"artifacts": {}}
