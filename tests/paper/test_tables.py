"""How a table is written."""

from tape_exp.paper.tables import Table, columns, on_terminal


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
