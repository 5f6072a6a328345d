"""The tables of ``tape-exp theory``: the artifacts theory and theory_propositions."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tape_exp.results.statistics import Value
from tape_exp.results.store import commits
from tape_exp.results.tables import Cell, Column, Table
from tape_exp.settings import folders
from tape_exp.theory import HOLDS, PROPERTIES

if TYPE_CHECKING:
    from tape_exp.artifacts.view import View


def theorem_of_record(view: "View") -> Table | None:
    """Make the table of theory; None where nothing is recorded."""
    return of_record(view, theorem)


def propositions_of_record(view: "View") -> Table | None:
    """Make the table of theory_propositions; None where nothing is recorded."""
    return of_record(view, propositions)


def of_record(view: "View", make: Callable[[Mapping[str, Any]], Table]) -> Table | None:
    """Make a table of what ``tape-exp theory --record`` left, which has no scale."""
    path = folders.RESULTS / "theory.json"
    if not path.exists():
        return None
    report = json.loads(path.read_text(encoding="utf-8"))
    proved = report["theorem"]
    facts = {
        **proved,
        **proved["exhaustive"],
        "longest": proved["lengths"][-1],
        "never": f"{proved['never'][-1]:.2f}",
        "seconds": f"{proved['seconds']:.2f}",
        "cpu": report["hardware"]["cpu"],
    }
    caption = re.sub(r"\{(\w+)\}", lambda m: str(facts[m[1]]), view.artifact.caption)
    return replace(make(report), caption=f"{view.artifact.title}. {caption}")


def theorem(report: Mapping[str, Any]) -> Table:
    """Show the accuracy of the construction, as printed, partly and wholly repaired."""
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
    """Show which variant of TAPE satisfies which equation, with the error."""
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
