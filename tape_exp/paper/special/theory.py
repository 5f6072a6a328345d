"""theory and theory_propositions: the report of ``tape-exp theory --record``."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tape_exp.results.statistics import Value
from tape_exp.results.store import commits
from tape_exp.results.tables import Cell, Column, Table
from tape_exp.settings import folders

if TYPE_CHECKING:
    from tape_exp.paper.view import View


def of_report(make: Callable[[Mapping[str, Any]], Table]) -> Callable[["View"], Table | None]:
    """The table of what ``tape-exp theory --record`` left, which has no scale."""

    def table(view: "View") -> Table | None:
        path = folders.RESULTS / "theory.json"
        if not path.exists():
            return None
        report = json.loads(path.read_text(encoding="utf-8"))
        theorem = report["theorem"]
        facts = {
            **theorem,
            **theorem["exhaustive"],
            "longest": theorem["lengths"][-1],
            "never": f"{theorem['never'][-1]:.2f}",
            "seconds": f"{theorem['seconds']:.2f}",
            "cpu": report["hardware"]["cpu"],
        }
        caption = re.sub(r"\{(\w+)\}", lambda m: str(facts[m[1]]), view.artifact.caption)
        return replace(make(report), caption=f"{view.artifact.title}. {caption}")

    return table


def theorem(report: Mapping[str, Any]) -> Table:
    """theory: accuracy of the construction, as printed, partly and wholly repaired."""
    lengths = report["theorem"]["lengths"]
    rows = []
    for name, form in report["theorem"]["forms"].items():
        row: dict[str, Cell] = {"construction": name}
        for i in range(3, len(lengths), 4):
            row[f"identities right {lengths[i]} (%)"] = Value(form["identity"][i])
        row["positions right (%)"] = Value(form["all"][-1])
        row["exact labels (%)"] = Value(form["exact"])
        row["margin"] = Value(form["margin"])
        row["commit"] = commits([dict(report)])
        rows.append(row)
    return Table([*map(Column, rows[0])], rows, ["construction"])


def propositions(report: Mapping[str, Any]) -> Table:
    """theory_propositions: which variant of TAPE satisfies which equation, with the error."""
    from tape_exp.theory import HOLDS, PROPERTIES

    names = dict(zip(PROPERTIES, PROPERTIES, strict=True))
    names |= {"rotation": "one O(R)", "rotations": "O(R) per block"}
    rows = []
    for variant in report["propositions"]:
        row: dict[str, Cell] = {"model": variant["variant"], "initial": variant["initial"]}
        for key, name in names.items():
            error = variant[key]
            text = f"yes ({error:.0e})" if error < HOLDS else f"no ({error:.2g})"
            row[name] = Value(error, text=text)
        rows.append(row | {"commit": commits([dict(report)])})
    head = ("model", "initial", *names.values(), "commit")
    return Table([*map(Column, head)], rows, ["initial", "model"])
