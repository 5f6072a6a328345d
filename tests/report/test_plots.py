"""Figures of the page: lines of a table's values, heatmaps of records, words for those who do not
see them.
"""

import numpy as np
import pytest

from tape_exp.drawing.curves import Line, Panel
from tape_exp.drawing.looks import GUIDE, look_of
from tape_exp.paper import artifacts
from tape_exp.paper.tables import Column, Table, curves, plain
from tape_exp.paper.values import NOT_RUN, Value, over_seeds
from tape_exp.report import plots


def numbers(label: str, **cells: list) -> dict:
    """A row with values at lengths of 1, 2, 3 … times its first one; None is missing."""
    row = {"method": label}
    for whose, (first, *values) in cells.items():
        for n, value in enumerate(values, 1):
            row[whose, first * n] = NOT_RUN if value is None else value
    return row


def table(rows: list[dict], *lengths: int, whose=("paper", "ours"), **options) -> Table:
    head = [
        Column((name, first * n))
        for name, first in zip(whose, lengths, strict=True)
        for n in (1, 2, 3)
    ]
    return Table([Column("method"), *head], rows, label="method", **options)


def test_lines_are_the_rows_of_columns_that_differ_by_a_number():
    interval = Value(9.5, 9.0, 11.0, 1, "{number:.1f} [{low:.1f}, {high:.1f}]")
    paper_of_lora = [1024, Value(3.5), Value(3.4), Value(3.3)]
    rows = [
        numbers(
            "lora",
            paper=paper_of_lora,
            ours=[64, over_seeds({0: 10.0, 1: 11.0}), Value(10.0), interval],
        ),
        numbers("base", paper=[1024, None, None, None], ours=[64, Value(12), None, Value(11)]),
    ]
    ours, paper = curves(table(rows, 1024, 64, quantity="perplexity"))
    assert (ours.title, paper.title) == ("ours", "paper")
    assert (ours.xlabel, ours.ylabel) == ("length (tokens)", "perplexity")
    lora, base = ours.lines
    assert (lora.name, lora.x, lora.y) == ("LoRA", [64, 128, 192], [10.5, 10.0, 9.5])
    assert lora.low == [pytest.approx(10.5 - 6.353, abs=1e-3), None, 9.0]
    assert lora.high == [pytest.approx(10.5 + 6.353, abs=1e-3), None, 11.0]
    assert (base.x, base.y) == ([64, 192], [12, 11])
    assert base.look != lora.look
    assert [line.name for line in paper.lines] == ["LoRA"], "a row without numbers is no line"


def test_a_part_of_the_table_has_a_panel_of_its_own():
    ours = [1, Value(1), Value(2), Value(3)]
    rows = [
        numbers(method, ours=ours) | {"corpus": corpus}
        for corpus in ("pg19", "proof_pile")
        for method in ("lora", "tape")
    ]
    found = curves(table(rows, 1, whose=["ours"], part="corpus"))
    assert [panel.title for panel in found] == ["PG-19: ours", "Proof-pile: ours"]
    assert [line.name for line in found[0].lines] == ["LoRA", "TAPE"]


def test_two_lengths_are_no_curve():
    head = [Column("method"), Column("paper"), Column(("ours", 64)), Column(("ours", 128))]
    row = {"method": "tape", "paper": Value(1), ("ours", 64): Value(3), ("ours", 128): Value(4)}
    assert curves(Table(head, [row], label="method")) == []


def test_a_line_far_above_the_others_is_hidden_at_first():
    heights = {"a": 1, "b": 2, "unigram": 9}
    rows = [numbers(name, ours=[1, *[Value(y)] * 3]) for name, y in heights.items()]
    (panel,) = curves(table(rows, 1, whose=["ours"]))
    assert [line.hidden for line in panel.lines] == [False, False, True]


def test_numbers_of_a_table_are_numbers_where_they_are_sent():
    rows = [
        {"model": "a", "ours": over_seeds({0: 1.0, 1: 2.0, 2: 3.0})},
        {"model": "b", "ours": NOT_RUN},
    ]
    headings, cells = plain(Table([Column("model"), Column("ours", unit="%")], rows))
    of = "(95 % interval over seeds)"
    ends = [f"ours (%), low {of}", f"ours (%), high {of}"]
    assert headings == ["model", "ours (%)", *ends]
    assert cells == [
        ["a", 2.0, pytest.approx(-0.484, abs=1e-3), pytest.approx(4.484, abs=1e-3)],
        ["b", None, None, None],
    ]


def test_an_unknown_artifact_shows_every_grid_of_its_records():
    new = artifacts.RunArtifact(name="new", title="New", task="arithmetic", models=["tape"])
    records = {
        "tape": [{"heatmap": [[1.0, None], [2.0, 3.0]], "matrices": {"products@1": [[0.5]]}}]
    }
    found = [plot for figure in new.figures("smoke", records) for plot in plots.plots_of(figure)]
    assert [plot.title for plot in found] == ["TAPE", "TAPE, E·Eᵀ, layer 1"]
    assert found[0].z == [[1.0, None], [2.0, 3.0]]


def test_a_line_looks_on_the_page_as_in_the_picture():
    looks = [look_of("tape"), GUIDE]
    lines = [Line("a", [1], [1], look=look) for look in looks]
    drawn = plots.as_json(Panel("", "", "", lines))["lines"]
    keys = ("colour", "dark", "marker", "dash")
    assert [[line[key] for key in keys] for line in drawn] == [
        [*vars(look).values()] for look in looks
    ]


def test_pattern_has_both_encodings_and_their_difference():
    artifact = artifacts.load("fig_pattern")
    random = np.random.default_rng(0)
    kinds = ("products@1", "products@3", "attention@1", "attention@3")
    matrices = {
        model: {kind: random.random((3, 3)) for kind in kinds} for model in ("tape", "rope")
    }
    records = {
        model: [{"seed": 0, "matrices": {kind: values.tolist() for kind, values in found.items()}}]
        for model, found in matrices.items()
    }
    figures = artifact.figures("smoke", records)
    found = {plot.title: plot for figure in figures for plot in plots.plots_of(figure)}
    assert len(found) == 5
    difference = found["attention, TAPE − RoPE, layer 3"]
    assert difference.signed
    assert difference.z[0][1] is None, "keys after the query are not looked at"
    expected = matrices["tape"]["attention@3"][2, 1] - matrices["rope"]["attention@3"][2, 1]
    assert abs(difference.z[2][1] - expected) < 1e-4
    assert set(difference.x) == {"0", "1", "2"}


def test_words_for_a_heatmap():
    grid = plots.Grid(
        "tape",
        [[0.0, 50.0], [100.0, None]],
        ["1", "2"],
        ["1", "2"],
        "b",
        "a",
        "%",
        (0, 100),
        trained=(1, 2),
    )
    told = plots.describe(grid)
    assert "2 rows (a) by 2 columns (b)" in told
    assert "from 0 to 100, mean 50" in told
    assert "first 1 rows and 2 columns" in told


def test_what_the_paper_reports_of_an_artifact_that_has_not_run():
    addition = artifacts.load("fig_addition_20").table("smoke", {})
    assert str(addition.values("paper")["tape"]) == "41.42"
    assert addition.values("ours") == {}
    table = artifacts.load("tab_tune_ppl").table("smoke", {})
    assert str(table.values(("paper", 8192), corpus="pg19")["tape"]) == "7.063"
    assert all(len(row) == len(table.columns) for row in table.cells())
    bench = artifacts.load("tab_bench").table("smoke", {})
    assert str(bench.values(("paper", "arc_easy"))["tape"]) == "74.16 (SE 0.90)"


@pytest.mark.parametrize("name", artifacts.names())
def test_every_artifact_has_a_table_without_records_or_none_at_all(name):
    table = artifacts.load(name).table("smoke", {})
    if table is not None:
        assert table.caption.endswith(": not run.")
        for row in table.cells():
            for column, cell in zip(table.columns, row, strict=True):
                assert "ours" not in column.heading.split() or not isinstance(cell, Value)
