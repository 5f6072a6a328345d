"""Figures of artifacts, as files, and the pages of the site."""

import re
from itertools import product

import numpy as np
import pytest

from tape_exp.artifacts import comparison
from tape_exp.artifacts.artifact import load, names
from tape_exp.artifacts.figures import figures
from tape_exp.artifacts.view import View
from tape_exp.paper.report import runs_table, write
from tape_exp.results.store import add_records, read_records
from tape_exp.settings import folders
from tests.artifacts.fakes import addition, record, runs


@pytest.mark.slow
def test_every_committed_figure_has_its_artifact_and_every_artifact_its_figures():
    records, stems = read_records(), set()
    for name in names():
        artifact = load(name)
        for scale in artifact.scales:
            view = View(artifact, scale, records)
            if view.table is not None:
                stems |= {f"{name}-{scale}{suffix}" for suffix, _ in figures(view)}
    drawn = {path.stem for path in (folders.ROOT / "results" / "figures").glob("*.svg")}
    assert drawn == stems


AXES = {"title": "hits (%)", "row_label": "depth", "column_label": "width", "trained": [2, 2]}


def test_a_heatmap_is_drawn_and_one_that_would_show_nothing_is_not(tmp_path):
    artifact = addition(figures=[{"kind": "grids"}])
    half, none = (
        runs("tape", [value], heatmap=np.full((9, 9), value).tolist(), axes=AXES)
        for value in (50.0, 0.0)
    )
    ((suffix, draw),) = figures(View(artifact, "smoke", half))
    assert suffix == ""
    text = draw(tmp_path / "a.svg").read_text()
    assert {"hits (%)", "depth", "width"} <= {*re.findall(r">([^<]+)</text>", text)}
    assert draw(tmp_path / "b.svg").read_text() == text
    assert [*figures(View(artifact, "smoke", none))] == []


RATES = ("0.001", "0.003")


def compared(**parts) -> View:
    """Two models with equal results at each of two rates, as ``tape-exp compare`` shows them."""
    artifact, *_ = comparison.requested(
        ["task=arithmetic", "model=rope,nope", f"task.optim.lr={','.join(RATES)}", "scale=smoke"]
    )
    records = []
    for rate, model in product(RATES, ("rope", "nope")):
        words = [f"task.optim.lr={rate}"]
        name = f"{model}-{rate}"
        records.append(record(model, 0, {"test/exact_match": 50.0}, words, run=name, **parts))
    return comparison.view_of(artifact, records)


def test_equal_heatmaps_have_a_panel_each_named_by_all_in_which_rows_differ():
    draws = dict(figures(compared(heatmap=np.full((9, 9), 50.0).tolist(), axes=AXES)))
    (panels,) = draws["-grids"].args
    assert [panel.title for panel in panels] == [
        "0.001, RoPE  50.0 %",
        "0.001, NoPE  50.0 %",
        "0.003, RoPE  50.0 %",
        "0.003, NoPE  50.0 %",
    ]


def test_a_task_with_one_axis_is_a_curve_over_its_lengths(tmp_path):
    metrics = {f"test/accuracy@{n}": 100.0 - n for n in (8, 16, 32)}
    axes = {"title": "right (%)", "row_label": "", "column_label": "length (letters)"}
    axes |= {"rows": ["accuracy"], "columns": ["8", "16", "32"], "trained": [1, 1]}
    every = [
        record(model, seed, metrics, axes=axes) for model in ("rope", "tape") for seed in (0, 1)
    ]
    artifact = addition(figures=[{"kind": "lengths"}], columns={"a": {"metric": "test/accuracy@8"}})
    ((_, draw),) = figures(View(artifact, "smoke", every))
    text = draw(tmp_path / "a.svg").read_text()
    assert {"accuracy (%)", "length (letters)"} <= {*re.findall(r">([^<]+)</text>", text)}
    assert "RoPE" in text


@pytest.mark.parametrize(("points", "drawn"), [(2, 0), (3, 1)])
def test_a_curve_of_losses_has_three_points_or_more(points, drawn):
    curve = {"step": [*range(points)], "value": [1.0] * points}
    every = runs("rope", [50.0, 60.0], curves={"val/loss": curve})
    artifact = addition(figures=[{"kind": "losses"}])
    assert len([*figures(View(artifact, "smoke", every))]) == drawn


def test_losses_of_each_choice_of_the_outer_labels_have_a_panel():
    curve = {"step": [0, 1, 2], "value": [3.0, 2.0, 1.0]}
    draws = dict(figures(compared(curves={"val/loss": curve})))
    (panels,) = draws["-losses"].args
    lines = {panel.title: [line.name for line in panel.lines] for panel in panels}
    assert lines == {"0.001": ["RoPE", "NoPE"], "0.003": ["RoPE", "NoPE"]}


def test_figures_of_one_kind_have_a_file_each():
    curve = {"step": [0, 1, 2], "value": [3.0, 2.0, 1.0]}
    every = runs("rope", [50.0, 60.0], curves={"val/loss": curve})
    artifact = addition(figures=[{"kind": "losses"}] * 3)
    found = [suffix for suffix, _ in figures(View(artifact, "smoke", every))]
    assert found == ["", "-losses", "-losses-2"]


@pytest.fixture
def outside(tmp_path, monkeypatch):
    """A working directory with one run of one's own."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "runs" / "arithmetic" / "smoke" / "rope" / "mine"
    add_records(tmp_path / "made", runs("rope", [12.5]))
    folder.mkdir(parents=True)
    text = next((tmp_path / "made").glob("*.jsonl")).read_text()
    (folder / "record.json").write_text(text.replace('"run":"', '"run":"mine-'))
    return tmp_path


@pytest.mark.parametrize(
    ("metrics", "shown"),
    [
        ({"state/accuracy": 1.0}, ["", ""]),
        ({}, ["", ""]),
        ({"val/loss": 2.0, "state/accuracy": 1.0}, ["val/loss", "2"]),
        ({"val/loss": 2.0, "test/exact_match": 12.5}, ["test/exact_match", "12.5"]),
    ],
)
def test_a_run_is_in_the_table_with_its_result_or_an_empty_cell(metrics, shown):
    row = runs_table([record("rope", 0, metrics)]).splitlines()[-1]
    assert [cell.strip() for cell in row.split("|")][5:7] == shown


@pytest.mark.long
def test_pages_have_every_artifact_and_the_runs_of_ones_own(outside):
    write(outside / "pages")
    assert {*names(), "index", "runs", "bench"} <= {
        path.stem for path in outside.glob("pages/*.md")
    }
    index = (outside / "pages" / "index.md").read_text()
    for name in names():
        assert f"[{name}]({name}.md)" in index
    runs_page = (outside / "pages" / "runs.md").read_text()
    assert "| 12.5 " in runs_page
    assert "`tape-exp train model=rope task=arithmetic scale=smoke`" in runs_page
    page = (outside / "pages" / "fig_addition.md").read_text()
    assert "Holds: no (2 of 3 comparisons)." in page
    for part in ("![", "| TAPE ", "tape-exp paper run fig_addition"):
        assert part in page
    assert (outside / "pages" / "figures" / "fig_addition-smoke.svg").exists()
