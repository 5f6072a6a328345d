"""The comparisons that a claim of an artifact makes, and the verdict on it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any

from tape_exp.artifacts.artifact import Claim, paper_value
from tape_exp.artifacts.rows import Row, fill
from tape_exp.artifacts.view import View
from tape_exp.paper.verdicts import Contest, Verdict, decide
from tape_exp.results.statistics import Value, mean_log
from tape_exp.results.tables import Column
from tape_exp.settings.construct import function_at
from tape_exp.settings.naming import display_name


def verdict(view: View, claim: Claim) -> Verdict:
    """Judge a claim of an artifact at a scale."""
    if claim.rule:
        return function_at(claim.rule, f"rule of {view.artifact.name}")(view, claim)
    on_builtin = view.scale == "smoke" or "builtin" in view.lookup("task.source")
    return decide([*contests(view, claim)], claim.builtin if on_builtin else "")


@dataclass(frozen=True)
class Match:
    """Labels of the rows that are compared."""

    favourite: str
    rivals: list[str]


@dataclass(frozen=True)
class Comparable:
    """At what they are compared: a column, or several together, and what the claim calls it."""

    columns: Sequence[Column]
    title: str


def contests(view: View, claim: Claim) -> Iterator[Contest]:
    """Yield the comparisons that a claim makes: at each choice of the other dimensions, in each
    column, of each pair of a favourite and its rivals.

    Of ``better: [tape]``, ``at: {"{n}": "{n} tokens"}`` and the models rope, fire and tape there is
    one: tape against rope and fire, in the column of the longest length.
    """
    last = view.dimensions()[-1] if view.dimensions() else "model"
    among = claim.among or last
    matches = matches_of(claim, labels_of(view, among))
    for rows in rows_compared(view, claim, among):
        by_label = {row.labels[among]: row for row in rows}
        for at in comparables(view, claim):
            for match in matches:
                yield contest(view, claim, by_label, at, match)


def matches_of(claim: Claim, labels: Sequence[str]) -> list[Match]:
    """Say who is compared with whom."""
    if claim.pairs:
        return [Match(deeper, [before]) for before, deeper in pairwise(labels)]
    others = [label for label in labels if label not in claim.better]
    rivals = others if claim.than is None else claim.than
    return [Match(favourite, [*rivals]) for favourite in claim.better]


def labels_of(view: View, dimension: str) -> list[str]:
    """List the labels of a dimension, in order; none of one that the artifact has not."""
    if dimension not in view.dimensions():
        return []
    return list(dict.fromkeys(row.labels[dimension] for row in view.rows))


def rows_compared(view: View, claim: Claim, among: str) -> Iterator[list[Row]]:
    """Yield the rows of each choice of the other dimensions: they differ in ``among`` alone."""
    others = {name: labels_of(view, name) for name in view.dimensions() if name != among}
    for name, chosen in claim.rows.items():
        others[name] = [last_measured(view, name)] if chosen == "last" else chosen
    for choice in product(*others.values()):
        labels = dict(zip(others, choice, strict=True))
        yield [row for row in view.rows if row.labels.items() >= labels.items()]


def last_measured(view: View, name: str) -> str:
    """Find the last label of a dimension of which something is measured."""
    columns = [column for column in view.columns if "metric" in column.spec]
    rows = {row.labels[name]: row for row in view.rows}
    for label, row in reversed(rows.items()):
        for column in columns:
            if view.cell(row, column):
                return label
    return ""


def comparables(view: View, claim: Claim) -> Iterator[Comparable]:
    """Yield each column at which the claim compares, or the lengths of a corpus together."""
    for name, title in claim.at.items():
        if claim.pooled:
            by_corpus: dict[tuple[Any, ...], list[Column]] = {}
            for column in places(view, name, every_length=True):
                corpus = tuple(at for at in column.at.values() if not isinstance(at, int))
                by_corpus.setdefault(corpus, []).append(column)
            for columns in by_corpus.values():
                yield Comparable(columns, title)
        else:
            for column in places(view, name, claim.every):
                yield Comparable([column], title)


def places(view: View, name: str, every_length: bool = False) -> list[Column]:
    """List the columns of ours that a claim is about: of those by a length the last, or all, from
    it.
    """
    columns = [column for column in view.columns_named(name) if column.who == "ours"]
    if not all(is_by_length(column) for column in columns):
        return columns
    return columns[::-1] if every_length else columns[-1:]


def is_by_length(column: Column) -> bool:
    """Say whether a column is told from its neighbours by numbers alone."""
    return all(isinstance(value, int) for value in column.at.values())


def contest(
    view: View, claim: Claim, rows: Mapping[str, Row], at: Comparable, match: Match
) -> Contest:
    """Make one comparison of a claim, among rows by their label."""
    column = at.columns[0]
    measured: dict[str, Value | None] = {}
    published: dict[str, Value | None] = {}
    for label, row in rows.items():
        ours = [measure(view, row, one) for one in at.columns]
        papers = [paper_number(view, claim, row, one) for one in at.columns]
        measured[label] = together(ours, claim.pooled)
        published[label] = together(papers, claim.pooled)
    of_favourite = rows.get(match.favourite)
    labels = {**column.at, **(of_favourite.labels if of_favourite else {})}
    published_where = name_of(claim.paper_at or at.title, labels | papers_place(view, column))
    if claim.published:
        papers_numbers = function_at(claim.published, f"published of {view.artifact.name}")
        published_where, published = papers_numbers(view)
    if published.get(claim.paper_label):
        published[match.favourite] = published[claim.paper_label]
    title = at.title
    if claim.pairs:
        title = f"{claim.among or 'layer'}s {match.rivals[0]} to {match.favourite}"
    runs = view.runs(of_favourite, column) if of_favourite else []
    digits = column.spec.get("digits", 2) if claim.digits is None else claim.digits
    return Contest(
        where=view.filled(name_of(title, labels), runs),
        favourite=called(match.favourite, claim),
        rivals=[called(rival, claim) for rival in match.rivals if rival != match.favourite],
        measured=known(measured, claim),
        published=known(published, claim),
        published_where=published_where,
        higher=not claim.lower,
        floor=floor_of(view, claim, column),
        digits=digits,
        margin=claim.margin,
    )


def called(label: str, claim: Claim) -> str:
    """Say what a verdict calls a label: ``layer 3`` in the place of a bare number."""
    return f"{claim.among or 'layer'} {label}" if label.isdigit() else label


def known(values: Mapping[str, Value | None], claim: Claim) -> dict[str, Value]:
    """Keep the values that there are, by what a verdict calls their labels."""
    there = {}
    for label, value in values.items():
        if value is not None:
            there[called(label, claim)] = value
    return there


def together(values: Sequence[Value | None], pooled: bool) -> Value | None:
    """Take the one value, or the mean logarithm of several, of which none may be missing."""
    complete = [value for value in values if value is not None]
    if len(complete) < len(values):
        return None
    return mean_log(complete) if pooled else complete[0]


def floor_of(view: View, claim: Claim, column: Column) -> float | None:
    """Say what is reached without solving anything: a number, or a rule's by the column."""
    if isinstance(claim.floor, str):
        return function_at(claim.floor, f"floor of {view.artifact.name}")(view, column)
    return claim.floor


def measure(view: View, row: Row, column: Column) -> Value | None:
    """Say what a row has in a column, with the interval of its samples where a table shows an
    error.
    """
    how = "samples" if column.spec.get("interval") == "error" else ""
    metric = fill(column.spec["metric"], column.at | row.labels)
    return view.measured(view.runs(row, column), metric, column.spec, how)


def paper_number(view: View, claim: Claim, row: Row, column: Column) -> Value | None:
    """Read the paper's number of a row, at its own length or layer."""
    path = claim.paper or column.spec.get("paper", "")
    values = column.at | row.labels | papers_place(view, column)
    return paper_value(view.artifact.paper, fill(path, values)) if path else None


def papers_place(view: View, column: Column) -> dict[str, Any]:
    """Find the paper's last layer, or its own length that is as far from its longest as ours is."""
    paper = view.artifact.paper
    if "lengths" in paper:
        from_longest = places(view, column.template, every_length=True).index(column)
        lengths = paper["lengths"][::-1]
        length = lengths[from_longest] if from_longest < len(lengths) else None
        return {name: length for name, n in column.at.items() if isinstance(n, int)}
    return {"layer": paper["layers"][-1]} if "layers" in paper else {}


def name_of(title: str, values: Mapping[str, Any]) -> str:
    """Say what a comparison is called: data sets as readers know them."""
    return fill(title, {name: display_name(str(value)) for name, value in values.items()})
