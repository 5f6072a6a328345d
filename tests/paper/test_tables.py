"""How a table is written."""

import io

import pandas

from tape_exp.paper.tables import Table, columns, comma, markdown, on_terminal
from tape_exp.paper.values import NOT_RUN, Value, over_seeds


def test_a_wide_table_is_turned_on_a_narrow_terminal():
    names = ["model", *(f"test/a_long_name_of_a_metric_{n}" for n in range(4)), "seeds"]
    rows = [{name: f"{model} {name[-1]}" for name in names} for model in ("rope", "tape")]
    table = Table(columns(names), rows, "A caption. " * 30)
    wide, narrow = on_terminal(table, 1000), on_terminal(table, 60)
    assert wide.splitlines()[0].count("|") == len(names) + 1
    assert [
        line.split("|")[1].strip()
        for line in narrow.splitlines()
        if "rope" in line or "RoPE" in line
    ][1:] == names[1:]
    assert max(map(len, narrow.splitlines())) <= 60
    assert " ".join(narrow.split()).endswith("A caption. A caption.")


def test_a_pipe_in_a_cell_starts_no_column():
    table = Table(columns(["model", "loss"]), [{"model": "a|b", "loss": "1"}])
    head, _, row, *_ = markdown(table).splitlines()
    assert row.replace(r"\|", "").count("|") == head.count("|") == 3
    assert r"a\|b" in row
    assert "a|b" in on_terminal(table, 80)


def test_numbers_for_programs_are_plain_and_have_their_ends():
    few, many = Value(0.25, 0.125, 0.5, 3, "{number:.1f} [{low}, {high}]"), Value(1_234_567)
    rows = [
        {"model": "rope", "loss": few, "parameters": many},
        {"model": "tape", "loss": NOT_RUN, "parameters": Value(2 / 3)},
        {"model": "fire", "loss": over_seeds({0: 1.0, 1: 2.0}), "parameters": Value(2)},
    ]
    read = pandas.read_csv(io.StringIO(comma(Table(columns(rows[0]), rows))))
    assert list(read) == ["model", "loss", "loss low", "loss high", "parameters"]
    assert list(read.loc[0]) == ["rope", 0.25, 0.125, 0.5, 1_234_567]
    assert read.loc[1].isna().tolist() == [False, True, True, True, False]
    assert read.loc[1, "parameters"] == 0.666667
    assert read.loc[2].isna().tolist() == [False, False, True, True, False]  # two seeds
