"""The comparisons that the claim of an artifact makes, and the verdict on it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any

from tape_exp.paper import special
from tape_exp.paper.verdicts import Contest, Verdict, decide
from tape_exp.paper.view import Row, View, fill, paper_value
from tape_exp.results.statistics import Value, mean_log
from tape_exp.results.tables import Column
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
    among = claim.get("among", (view.dimensions() or ["model"])[-1])
    labels = labels_of(view, among)
    better = claim.get("better", ["tape"])
    than = claim.get("than", [label for label in labels if label not in better])
    matches = [Match(favourite, [*than]) for favourite in better]
    if claim.get("pairs"):
        matches = [Match(deeper, [before]) for before, deeper in pairwise(labels)]
    for rows in rows_compared(view, claim, among):
        by_label = {row.labels[among]: row for row in rows}
        for template, title in claim["at"].items():
            for columns in groups(view, template, claim):
                for match in matches:
                    yield contest(view, claim, by_label, Comparable(columns, title), match)


@dataclass(frozen=True)
class Match:
    """Labels of the rows that are compared."""

    favourite: str
    rivals: list[str]


@dataclass(frozen=True)
class Comparable:
    """At what they are compared: a column, or several together, and what a claim calls it."""

    columns: Sequence[Column]
    title: str


def labels_of(view: View, dimension: str) -> list[str]:
    """The labels of a dimension, in order; none of one that the artifact has not."""
    if dimension not in view.dimensions():
        return []
    return list(dict.fromkeys(row.labels[dimension] for row in view.rows))


def rows_compared(view: View, claim: Mapping[str, Any], among: str) -> Iterator[list[Row]]:
    """The rows of each choice of the other dimensions, those that differ in ``among`` alone."""
    others = {name: labels_of(view, name) for name in view.dimensions() if name != among}
    for name, chosen in claim.get("rows", {}).items():
        others[name] = [last_measured(view, name)] if chosen == "last" else chosen
    for choice in product(*others.values()):
        labels = dict(zip(others, choice, strict=True))
        yield [row for row in view.rows if row.labels.items() >= labels.items()]


def groups(view: View, template: str, claim: Mapping[str, Any]) -> list[list[Column]]:
    """The columns of each comparison: one, or the lengths whose mean logarithm is compared."""
    pooled = claim.get("pooled", False)
    columns = places(view, template, claim.get("every", False) or pooled)
    if not pooled:
        return [[column] for column in columns]
    by_corpus: dict[tuple[Any, ...], list[Column]] = {}
    for column in columns:
        corpus = tuple(value for value in column.at.values() if not isinstance(value, int))
        by_corpus.setdefault(corpus, []).append(column)
    return [*by_corpus.values()]


def last_measured(view: View, name: str) -> str:
    """The last label of a dimension of which something is measured."""
    columns = [column for column in view.columns if "metric" in column.spec]
    rows = {row.labels[name]: row for row in view.rows}
    for label, row in reversed(rows.items()):
        if any(view.cell(row, column) for column in columns):
            return label
    return ""


def places(view: View, template: str, every_length: bool = False) -> list[Column]:
    """The columns of ours that a claim is about: of those by a length the last, or all, from it."""
    columns = [column for column in view.columns_named(template) if column.who == "ours"]
    if not all(is_by_length(column) for column in columns):
        return columns
    return columns[::-1] if every_length else columns[-1:]


def is_by_length(column: Column) -> bool:
    """Whether a column is told from its neighbours by numbers alone."""
    return all(isinstance(value, int) for value in column.at.values())


def contest(
    view: View,
    claim: Mapping[str, Any],
    rows: Mapping[str, Row],
    at: Comparable,
    match: Match,
) -> Contest:
    """One comparison of a claim, among rows by their label."""
    column = at.columns[0]
    among = claim.get("among", "layer")
    names = {label: f"{among} {label}" if label.isdigit() else label for label in rows}
    pooled = claim.get("pooled", False)
    measured: dict[str, Value] = {}
    published: dict[str, Value] = {}
    for label, row in rows.items():
        ours = together([measure(view, row, column) for column in at.columns], pooled)
        paper = together([paper_number(view, claim, row, column) for column in at.columns], pooled)
        if ours is not None:
            measured[names[label]] = ours
        if paper is not None:
            published[names[label]] = paper
    row_of_favourite = rows.get(match.favourite)
    labels = column.at | (row_of_favourite.labels if row_of_favourite else {})
    where = name_of(claim.get("paper_at", at.title), labels | papers_place(view, column))
    if "published" in claim:
        where, published = special.PUBLISHED[claim["published"]](view)
    paper_label = claim.get("paper_label", match.favourite)
    if paper_label in published:
        published = {**published, match.favourite: published[paper_label]}
    title = at.title
    if claim.get("pairs"):
        title = f"{among}s {match.rivals[0]} to {match.favourite}"
    runs = view.runs(row_of_favourite, column) if row_of_favourite else []
    rivals = [rival for rival in match.rivals if rival != match.favourite]
    return Contest(
        where=view.filled(name_of(title, labels), runs),
        favourite=names.get(match.favourite, match.favourite),
        rivals=[names.get(rival, rival) for rival in rivals],
        measured=measured,
        published=published,
        published_where=where,
        higher=not claim.get("lower", False),
        floor=floor_of(view, claim, column),
        digits=claim.get("digits", column.spec.get("digits", 2)),
        margin=claim.get("margin", 0.0),
    )


def together(values: Sequence[Value | None], pooled: bool) -> Value | None:
    """The one value, or the mean logarithm of several, of which none may be missing."""
    complete = [value for value in values if value is not None]
    if len(complete) < len(values):
        return None
    return mean_log(complete) if pooled else complete[0]


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
    values = column.at | row.labels | papers_place(view, column)
    return paper_value(view.artifact.paper, fill(path, values)) if path else None


def papers_place(view: View, column: Column) -> dict[str, Any]:
    """The paper's last layer, or its own length that is as far from its longest as ours is."""
    paper = view.artifact.paper
    if "lengths" in paper:
        from_longest = places(view, column.template, every_length=True).index(column)
        lengths = paper["lengths"][::-1]
        length = lengths[from_longest] if from_longest < len(lengths) else None
        return {name: length for name, n in column.at.items() if isinstance(n, int)}
    return {"layer": paper["layers"][-1]} if "layers" in paper else {}


def name_of(title: str, values: Mapping[str, Any]) -> str:
    """What a comparison is called: data sets as readers know them."""
    return fill(title, {name: display_name(str(value)) for name, value in values.items()})
