"""Figures of the page: lines read from a table, heatmaps from records, words for those who do not
see them.
"""

import numpy as np

from tape_exp.paper import artifacts
from tape_exp.report import content, plots


def test_lines_are_the_rows_of_columns_that_differ_by_a_number():
    columns = [
        "method",
        "paper 1024",
        "ours 64",
        "paper 2048",
        "ours 128",
        "paper 4096",
        "ours 256",
        "seeds",
    ]
    rows = [
        ["lora", "3.5", "10.5 ± 0.5", "3.4", "10.0", "3.3", "9.5 [9.0, 11.0]", "1"],
        ["base", "", "12", "", "", "", "11", "1"],
    ]
    ours, paper = plots.lines(columns, rows, "Perplexity by length in tokens.")
    assert (ours.title, paper.title) == ("ours", "paper")
    assert (ours.xlabel, ours.ylabel) == ("length (tokens)", "perplexity")
    lora, base = ours.lines
    assert (lora.name, lora.x, lora.y) == ("lora", [64, 128, 256], [10.5, 10.0, 9.5])
    assert (lora.low, lora.high) == ([10.0, None, 9.0], [11.0, None, 11.0])
    assert (base.x, base.y, base.style) == ([64, 256], [12, 11], 1)
    assert [line.name for line in paper.lines] == ["lora"], "a row without numbers is no line"


def test_the_first_column_chooses_the_figure_where_two_tell_rows_apart():
    rows = [
        [corpus, method, "1", "2", "3"]
        for corpus in ("pg19", "proof_pile")
        for method in ("lora", "tape")
    ]
    found = plots.lines(["corpus", "method", "ours 1", "ours 2", "ours 3"], rows, "")
    assert [figure.title for figure in found] == ["pg19: ours", "proof_pile: ours"]
    assert [line.name for line in found[0].lines] == ["lora", "tape"]


def test_a_table_without_such_columns_has_no_lines():
    assert (
        plots.lines(
            ["model", "paper", "ours", "ours 64", "ours 128"], [["tape", "1", "2", "3", "4"]], ""
        )
        == []
    )


def test_a_line_far_above_the_others_is_hidden_at_first():
    rows = [["a", "1", "1", "1"], ["b", "2", "2", "2"], ["unigram", "9", "9", "9"]]
    (figure,) = plots.lines(["model", "ours 1", "ours 2", "ours 3"], rows, "")
    assert [line.hidden for line in figure.lines] == [False, False, True]


def test_an_unknown_artifact_shows_every_grid_of_its_records():
    class New(artifacts.Artifact):
        def render(self, scale, records, into):
            return []

    records = {
        "tape": [{"heatmap": [[1.0, None], [2.0, 3.0]], "matrices": {"products@1": [[0.5]]}}]
    }
    found = plots.grids(New("new", "New", "arithmetic", ["tape"]), records)
    assert [figure.title for figure in found] == ["tape", "tape products@1"]
    assert found[0].z == [[1.0, None], [2.0, 3.0]]


def test_pattern_has_both_encodings_and_their_difference():
    artifact = artifacts.load("fig_pattern")
    random = np.random.default_rng(0)
    kinds = ("products@1", "products@3", "attention@1", "attention@3")
    matrices = {
        model: {kind: random.random((3, 3)) for kind in kinds} for model in ("tape", "rope")
    }
    records = {
        model: [{"matrices": {kind: values.tolist() for kind, values in found.items()}}]
        for model, found in matrices.items()
    }
    found = {figure.title: figure for figure in plots.grids(artifact, records)}
    assert len(found) == 5
    difference = found["attention, TAPE − RoPE, layer 3"]
    assert difference.signed
    assert difference.z[0][1] is None, "keys after the query are not looked at"
    expected = matrices["tape"]["attention@3"][2, 1] - matrices["rope"]["attention@3"][2, 1]
    assert abs(difference.z[2][1] - expected) < 1e-4
    assert set(plots.grids(artifact, {"tape": records["tape"]})[0].x) == {"0", "1", "2"}


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
    told = content.describe(grid)
    assert "2 rows (a) by 2 columns (b)" in told
    assert "from 0 to 100, mean 50" in told
    assert "first 1 rows and 2 columns" in told


def test_what_the_paper_reports_of_an_artifact_that_has_not_run():
    addition = content.expected(artifacts.load("fig_addition_20"))
    assert ["tape", "41.42", ""] in addition.rows
    table = content.expected(artifacts.load("tab_tune_ppl"))
    assert ["pg19", "tape", "8192", "7.063", ""] in table.rows
    assert all(len(row) == len(table.columns) for row in table.rows)
    bench = content.expected(artifacts.load("tab_bench"))
    assert ["tape", "arc_easy", "74.16 ± 0.9", ""] in bench.rows
