"""Refuse statements that hold two thoughts: ``python .ci/one_thought.py <folder>``.

These are ``a, b = x, y``, but for a swap, and a comprehension within a comprehension.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def faults(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the line of each such statement, and what to do."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and assigns_several(node):
            yield node.lineno, "several values are assigned at once; give each its own statement."
        if isinstance(node, COMPREHENSIONS) and holds_another(node):
            yield node.lineno, "a comprehension is in this one; write one of them as a loop."


def assigns_several(node: ast.Assign) -> bool:
    """Say whether a tuple is assigned to a tuple of other names: ``a, b = b, a`` is a swap."""
    target = node.targets[0]
    if not isinstance(target, ast.Tuple) or not isinstance(node.value, ast.Tuple):
        return False
    return sorted(map(ast.unparse, target.elts)) != sorted(map(ast.unparse, node.value.elts))


def holds_another(node: ast.AST) -> bool:
    """Say whether a comprehension has another one in it."""
    return any(isinstance(inner, COMPREHENSIONS) for inner in ast.walk(node) if inner is not node)


def main(folder: str) -> int:
    """Print every fault in a folder; 1 where there is one."""
    status = 0
    for path in sorted(Path(folder).rglob("*.py")):
        for line, advice in faults(ast.parse(path.read_text(encoding="utf-8"))):
            print(f"{path}:{line}: {advice}")
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
