"""The comparisons that the claim of an artifact makes, and the verdict on it."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise, product
from typing import Any

from tape_exp.paper import special
from tape_exp.paper.claims import Contest, Verdict, decide
from tape_exp.paper.view import Row, View, fill, paper_value
from tape_exp.results.statistics import Value, mean_log
from tape_exp.results.tables import Column
from tape_exp.settings.errors import ConfigError, did_you_mean
from tape_exp.settings.naming import display_name


def verdict(view: View, claim: Mapping[str, Any]) -> Verdict:
    """The verdict on a claim of an artifact at a scale."""
    if "rule" in claim:
        return special.VERDICTS[claim["rule"]](view, claim)
    note = claim.get("builtin", "")
    builtin = view.scale == "smoke" or "builtin" in view.lookup("task.source")
    return decide([*contests(view, claim)], note if builtin else "")


def contests(view: View, claim: Mapping[str, Any]) -> Iterator[Contest]:
    """The comparisons that a claim makes.

    Its keys: ``better`` (default ``[tape]``) and ``than`` (default all others), labels of the
    dimension ``among`` (default the last); ``at``: column -> what it is called, the last of several
    that differ in a length, or ``every`` one; ``rows``: labels of the other dimensions, or
    ``last``; ``pairs``: each label and the one before it; ``pooled``: the mean logarithm over all
    lengths is one comparison; ``lower``: less is better; ``floor``; ``margin``: what it may be
    behind by and still be as good; ``digits``; ``paper_label``: whose numbers the paper has of it.
    """
    rows = view.rows
    among = claim.get("among", (view.dimensions() or ["model"])[-1])
    others = {
        name: [*dict.fromkeys(row.labels[name] for row in rows)] for name in view.dimensions()
    }
    labels = others.pop(among, [])
    better = claim.get("better", ["tape"])
    than = claim.get("than", [label for label in labels if label not in better])
    matches = [(one, [*than]) for one in better]
    if claim.get("pairs"):
        matches = [(deeper, [before]) for before, deeper in pairwise(labels)]
    for name, chosen in claim.get("rows", {}).items():
        others[name] = [last_measured(view, rows, name)] if chosen == "last" else chosen
    for fixed in product(*others.values()):
        fixed_labels = dict(zip(others, fixed, strict=True))
        compared = {
            row.labels[among]: row for row in rows if row.labels.items() >= fixed_labels.items()
        }
        for template, title in claim["at"].items():
            for columns in groups(view, template, claim):
                for favourite, rivals in matches:
                    yield contest(view, claim, compared, columns, title, favourite, rivals)


def groups(view: View, template: str, claim: Mapping[str, Any]) -> list[list[Column]]:
    """The columns of each comparison: one, or the lengths whose mean logarithm is compared."""
    pooled = claim.get("pooled", False)
    columns = places(view, template, claim.get("every", False) or pooled)
    if not pooled:
        return [[column] for column in columns]
    found: dict[tuple[Any, ...], list[Column]] = {}
    for column in columns:
        others = (value for value in column.at.values() if not isinstance(value, int))
        found.setdefault(tuple(others), []).append(column)
    return [*found.values()]


def last_measured(view: View, rows: Sequence[Row], name: str) -> str:
    """The last label of a dimension of which something is measured."""
    columns = [column for column in view.columns if "metric" in column.spec]
    cells = {row.labels[name]: [view.cell(row, column) for column in columns] for row in rows}
    return next((label for label in reversed(cells) if any(cells[label])), "")


def places(view: View, template: str, every_length: bool = False) -> list[Column]:
    """The columns of ours that a claim is about: of those by a length the last, or all, from it."""
    ours = [column for column in view.columns if column.who == "ours"]
    every = [column for column in ours if template in (column.template, column.name)]
    if not every and view.all_runs:
        known = [column.name for column in ours]
        raise ConfigError(
            f"conf/paper/{view.artifact.name}.yaml: {template} in at of the claim"
            f"{did_you_mean(template, known)} Known: {', '.join(known)}."
        )
    by_length = [c for c in every if all(isinstance(value, int) for value in c.at.values())]
    if len(by_length) < len(every):
        return every
    return every[::-1] if every_length else every[-1:]


def contest(
    view: View,
    claim: Mapping[str, Any],
    rows: Mapping[str, Row],
    columns: Sequence[Column],
    title: str,
    favourite: str,
    rivals: list[str],
) -> Contest:
    """One comparison of a claim at a column, or at several together, among rows by their label."""
    column = columns[0]
    among = claim.get("among", "layer")
    shown = {label: f"{among} {label}" if label.isdigit() else label for label in rows}
    measured: dict[str, Value] = {}
    published: dict[str, Value] = {}
    pooled = claim.get("pooled", False)
    for label, row in rows.items():
        ours = [measure(view, row, one) for one in columns]
        theirs = [paper_number(view, claim, row, one) for one in columns]
        for values, found in ((ours, measured), (theirs, published)):
            if value := together(values, pooled):
                found[shown[label]] = value
    some = rows.get(favourite)
    labels = column.at | (some.labels if some else {})
    where = name_of(claim.get("paper_at", title), labels | papers_place(view, column))
    if "published" in claim:
        where, published = special.PUBLISHED[claim["published"]](view)
    if claim.get("pairs"):
        title = f"{among}s {rivals[0]} to {favourite}"
    if claim.get("paper_label", favourite) in published:
        published[favourite] = published[claim.get("paper_label", favourite)]
    return Contest(
        view.filled(name_of(title, labels), view.runs(some, column) if some else []),
        shown.get(favourite, favourite),
        [shown.get(rival, rival) for rival in rivals if rival != favourite],
        measured,
        published,
        where,
        not claim.get("lower", False),
        floor_of(view, claim, column),
        claim.get("digits", column.spec.get("digits", 2)),
        claim.get("margin", 0.0),
    )


def together(values: Sequence[Value | None], pooled: bool) -> Value | None:
    """The one value, or the mean logarithm of several, of which none may be missing."""
    known = [value for value in values if value]
    if len(known) < len(values):
        return None
    return mean_log(known) if pooled else known[0]


def floor_of(view: View, claim: Mapping[str, Any], column: Column) -> float | None:
    """What is reached without solving anything: a number, or a rule's by the column."""
    floor = claim.get("floor")
    return special.FLOORS[floor](view, column) if isinstance(floor, str) else floor


def measure(view: View, row: Row, column: Column) -> Value | None:
    """What a row has in a column, with the interval of its samples where a table shows an error."""
    how = "samples" if column.spec.get("interval") == "error" else ""
    metric = fill(column.spec["metric"], column.at | row.labels)
    return view.measured(view.runs(row, column), metric, column.spec, how)


def paper_number(view: View, claim: Mapping[str, Any], row: Row, column: Column) -> Value | None:
    """The paper's number of a row, at its own length or layer."""
    path = claim.get("paper", column.spec.get("paper", ""))
    known = column.at | row.labels | papers_place(view, column)
    return paper_value(view.artifact.paper, fill(path, known)) if path else None


def papers_place(view: View, column: Column) -> dict[str, Any]:
    """The paper's last layer, or its own length that is as far from its longest as ours is."""
    paper = view.artifact.paper
    if "lengths" in paper:
        shorter = places(view, column.template, True).index(column)
        here = dict(enumerate(reversed(paper["lengths"]))).get(shorter)
        return {name: here for name, n in column.at.items() if isinstance(n, int)}
    return {"layer": paper["layers"][-1]} if "layers" in paper else {}


def name_of(title: str, values: Mapping[str, Any]) -> str:
    """What a comparison is called: data sets as readers know them."""
    return fill(title, {name: display_name(str(value)) for name, value in values.items()})
