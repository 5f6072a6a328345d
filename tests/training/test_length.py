"""What keeps training/ readable: functions are short."""

import ast

import pytest

from tape_exp.settings.folders import ROOT

LONGEST = 40  # lines, the docstring included


@pytest.mark.parametrize(
    "path", sorted((ROOT / "tape_exp" / "training").glob("*.py")), ids=lambda path: path.name
)
def test_no_function_is_longer_than_a_screen(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or 0) - node.lineno + 1
            assert lines <= LONGEST, f"{path.name}: {node.name} has {lines} lines"
