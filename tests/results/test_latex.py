"""Tables in LaTeX: what they escape, and that wide ones fit a page."""

import re

import pytest

from tape_exp.results.latex import heads_of, latex, tex
from tape_exp.results.statistics import Value
from tape_exp.results.tables import Column, Table


def table(lengths: list[int], caption: str = "Title. Ours: mean ± error. More. And more.") -> Table:
    """Two positions of two models, and a number of the paper and one of ours at each length."""
    columns = [Column("positions"), Column("model")]
    for n in lengths:
        columns += [Column("{who} PG-19 {n}", who, {"n": n}) for who in ("paper", "ours")]
    columns += [Column("seeds"), Column("scale"), Column("commit")]
    rows = []
    for position, model in [("a", "rope"), ("a", "nope"), ("b", "rope"), ("b", "nope")]:
        numbers = {column.name: Value(12.345) for column in columns if column.who}
        facts = {"seeds": "3", "scale": "smoke", "commit": "0123456"}
        rows.append({"positions": position, "model": model} | numbers | facts)
    return Table(columns, rows, ["positions", "model"], caption)


def cells(line: str) -> int:
    """The columns that a line of a table fills."""
    spans = [int(count) - 1 for count in re.findall(r"\\multicolumn\{(\d+)\}", line)]
    return line.count("&") + 1 + sum(spans)


def test_what_latex_takes_for_commands_is_escaped():
    assert tex("50 % & a_b ± 1") == r"50 \% \& a\_b $\pm$ 1"


@pytest.mark.parametrize(
    ("lengths", "kind", "scaled"),
    [([64], "table", False), ([64, 128, 256], "table*", False), ([*range(9)], "table*", True)],
)
def test_a_table_fits_its_page(lengths, kind, scaled):
    text = latex(table(lengths), "tab_a-smoke")
    lines = text.splitlines()
    (sides,) = re.findall(r"\\begin\{tabular\}\{(\w+)\}", text)
    assert sides == "ll" + "rr" * len(lengths) + "r"
    filled = [line for line in lines if line.endswith(r"\\")]
    assert {cells(line) for line in filled} == {len(sides)}
    assert lines.count(r"\resizebox{\textwidth}{!}{%") == lines.count(r"\end{tabular}}") == scaled
    assert rf"\begin{{{kind}}}[t]" in lines
    assert lines[-1] == rf"\end{{{kind}}}"
    assert r"\label{tab:tab_a-smoke}" in lines
    assert r"\caption{Title. Ours: mean $\pm$ error.}" in lines
    assert {"% More.", "% And more.", "% Commits: 0123456"} <= {*lines}
    assert [line.split(" & ")[0] for line in filled[-4:]] == ["a", "", "b", ""]


def test_columns_of_one_quantity_are_below_one_heading():
    lines = latex(table([64, 128]), "a").splitlines()
    begin = lines.index(r"\toprule") + 1
    assert lines[begin : begin + 3] == [
        r" &  & \multicolumn{4}{c}{PG-19} &  \\",
        r"\cmidrule(lr){3-6}",
        r"positions & model & paper 64 & ours 64 & paper 128 & ours 128 & seeds \\",
    ]
    lone = [Column("{who} words of {n}", "ours", {"n": 8}), Column("{who}", "paper")]
    assert [head.own for head in heads_of(lone, ["ours words of 8", "paper"])] == [
        "ours words of 8",
        "paper",
    ]
