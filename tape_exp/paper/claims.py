"""The comparisons that a claim of an artifact makes, and the verdict on it.

A claim is a part of ``conf/paper/<name>.yaml``. Its keys, which
:class:`~tape_exp.artifacts.artifact.Claim` lists, say

- who is compared: each label of ``better`` with those of ``than`` (default: with all others), or
  with ``pairs`` each label with the one before it. They are labels of the dimension ``among``
  (default: the last one, as the models). The comparison is made at every label of each other
  dimension, or at those of ``rows``, where ``last`` is the last one that has a measured number.
- at what: in each column of ``at``, whose value is what the verdict calls it. Of columns that
  differ only in a length, as those of one corpus, the last one counts; with ``every`` each; with
  ``pooled`` the mean logarithm over all of them.
- how: ``lower`` numbers are better, or else higher ones. Behind by no more than ``margin`` is as
  good. Where nobody is above ``floor``, a number or the path of a function of the column, nothing
  can be told. ``digits`` is how many decimals a verdict shows, and ``builtin`` a note on verdicts
  about generated text.
- the paper's numbers: those of the column, unless ``paper`` says where they are, ``paper_label``
  whose they are, and ``paper_at`` at what; or those of the function whose path is ``published``.
- or else a ``rule``: the path of a function that decides in the place of comparisons.

An example, of the models rope, fire and tape and of columns at 512 and at 1024 tokens::

    claim:
      text: TAPE has a lower perplexity than RoPE and FIRE.
      than: [rope, fire]
      at: {"{who} {n}": "{n} tokens"}
      lower: true

This is one contest, "1024 tokens": tape against rope and against fire. ``every: true`` adds one
called "512 tokens", and the four comparisons are then one family of tests.
:func:`~tape_exp.paper.verdicts.decide` makes the verdict of them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any

from tape_exp.artifacts.artifact import Claim, paper_value
from tape_exp.artifacts.columns import ArtifactColumn
from tape_exp.artifacts.rows import Row, fill
from tape_exp.artifacts.view import View
from tape_exp.paper.verdicts import Contest, Verdict, decide
from tape_exp.results.statistics import Value, mean_log
from tape_exp.settings.construct import function_at
from tape_exp.settings.naming import display_name


def verdict(view: View, claim: Claim) -> Verdict:
    """Judge a claim of an artifact at a scale."""
    if claim.rule:
        return function_at(claim.rule, f"rule of {view.artifact.name}")(view, claim)
    on_builtin = view.scale == "smoke" or "builtin" in view.lookup("task.source")
    return decide([*contests(view, claim)], claim.builtin if on_builtin else "")


def contests(view: View, claim: Claim) -> Iterator[Contest]:
    """Yield the contests of a claim: at each choice of the other dimensions, at each place, of each
    favourite.
    """
    among = claim.among
    if not among:
        among = view.dimensions()[-1] if view.dimensions() else "model"
    matches = matches_of(claim, labels_of(view, among))
    for rows in rows_compared(view, claim, among):
        by_label = {row.labels[among]: row for row in rows}
        for place in places_of(view, claim):
            for match in matches:
                yield contest(view, claim, by_label, place, match)


# ---- who is compared ----


@dataclass(frozen=True)
class Match:
    """Labels of the rows that are compared."""

    favourite: str
    rivals: Sequence[str]


def matches_of(claim: Claim, labels: Sequence[str]) -> list[Match]:
    """Say who is compared with whom, of the labels of a dimension.

    >>> matches_of(Claim(text="", better=["tape"]), ["rope", "fire", "tape"])
    [Match(favourite='tape', rivals=['rope', 'fire'])]
    >>> matches_of(Claim(text="", better=["tape"], than=["rope"]), ["rope", "fire", "tape"])
    [Match(favourite='tape', rivals=['rope'])]
    >>> matches_of(Claim(text="", pairs=True), ["1", "2", "3"])
    [Match(favourite='2', rivals=['1']), Match(favourite='3', rivals=['2'])]
    """
    if claim.pairs:
        return [Match(deeper, [before]) for before, deeper in pairwise(labels)]
    than = claim.than
    if than is None:
        than = [label for label in labels if label not in claim.better]
    matches = []
    for favourite in claim.better:
        matches.append(Match(favourite, [rival for rival in than if rival != favourite]))
    return matches


def labels_of(view: View, dimension: str) -> list[str]:
    """List the labels of a dimension, in order; none of one that the artifact has not."""
    if dimension not in view.dimensions():
        return []
    return list(dict.fromkeys(row.labels[dimension] for row in view.rows))


def rows_compared(view: View, claim: Claim, among: str) -> Iterator[list[Row]]:
    """Yield the rows of each choice of the other dimensions: they differ in ``among`` only."""
    others = {}
    for name in view.dimensions():
        if name != among:
            others[name] = labels_of(view, name)
    for name, chosen in claim.rows.items():
        others[name] = [last_measured(view, name)] if chosen == "last" else chosen
    for choice in product(*others.values()):
        labels = dict(zip(others, choice, strict=True))
        yield [row for row in view.rows if row.labels.items() >= labels.items()]


def last_measured(view: View, name: str) -> str:
    """Find the last label of a dimension of which something is measured; empty where nothing is."""
    columns = [column for column in view.columns if column.spec.metric]
    rows = {row.labels[name]: row for row in view.rows}
    for label, row in reversed(rows.items()):
        for column in columns:
            if view.cell(row, column):
                return label
    return ""


# ---- at what ----


@dataclass(frozen=True)
class Place:
    """At what they are compared: a column, or several together, and what the claim calls it."""

    columns: Sequence[ArtifactColumn]
    title: str


def places_of(view: View, claim: Claim) -> Iterator[Place]:
    """Yield each column at which a claim compares: of every corpus the longest, every length, or
    all lengths together.
    """
    for template, title in claim.at.items():
        for columns in columns_by_corpus(view, template):
            if claim.pooled:
                yield Place(columns, title)
            elif claim.every:
                for column in columns:
                    yield Place([column], title)
            else:
                yield Place(columns[:1], title)


def columns_by_corpus(view: View, template: str) -> list[list[ArtifactColumn]]:
    """Group our columns of a template that differ only in their length, the last one first: these
    are of one corpus, which all values but numbers name.
    """
    groups: dict[tuple[Any, ...], list[ArtifactColumn]] = {}
    for column in view.columns_named(template):
        if column.who == "ours":
            corpus = tuple(value for value in column.at.values() if not isinstance(value, int))
            groups.setdefault(corpus, []).append(column)
    return [columns[::-1] for columns in groups.values()]


# ---- a contest: our numbers and the paper's ----


def contest(
    view: View, claim: Claim, rows: Mapping[str, Row], place: Place, match: Match
) -> Contest:
    """Make one contest of a claim, among rows by their label."""
    column = place.columns[0]
    favourite = rows.get(match.favourite)
    labels = dict(column.at)
    runs = []
    if favourite is not None:
        labels |= favourite.labels
        runs = view.runs(favourite, column)
    title = place.title
    if claim.pairs:
        title = f"{claim.among or 'layer'}s {match.rivals[0]} to {match.favourite}"
    published = published_numbers(view, claim, rows, place, labels)
    values = dict(published.values)
    if values.get(claim.paper_label):
        values[match.favourite] = values[claim.paper_label]
    return Contest(
        where=view.filled(name_of(title, labels), runs),
        favourite=called(match.favourite, claim),
        rivals=[called(rival, claim) for rival in match.rivals],
        measured=by_name(measured_numbers(view, claim, rows, place), claim),
        published=by_name(values, claim),
        published_where=published.where,
        higher=not claim.lower,
        floor=floor_of(view, claim, column),
        digits=column.digits if claim.digits is None else claim.digits,
        margin=claim.margin,
    )


def called(label: str, claim: Claim) -> str:
    """Say what a verdict calls a label: ``layer 3`` in the place of a bare number."""
    return f"{claim.among or 'layer'} {label}" if label.isdigit() else label


def by_name(values: Mapping[str, Value | None], claim: Claim) -> dict[str, Value]:
    """Keep the values that there are, by what a verdict calls their labels."""
    named = {}
    for label, value in values.items():
        if value is not None:
            named[called(label, claim)] = value
    return named


def floor_of(view: View, claim: Claim, column: ArtifactColumn) -> float | None:
    """Return what is reached without solving anything: a number, or a function's of the column."""
    if isinstance(claim.floor, str):
        return function_at(claim.floor, f"floor of {view.artifact.name}")(view, column)
    return claim.floor


def measured_numbers(
    view: View, claim: Claim, rows: Mapping[str, Row], place: Place
) -> dict[str, Value | None]:
    """Return our numbers at a place, by label."""
    numbers = {}
    for label, row in rows.items():
        values = [measure(view, row, column) for column in place.columns]
        numbers[label] = together(values, claim.pooled)
    return numbers


def measure(view: View, row: Row, column: ArtifactColumn) -> Value | None:
    """Return what a row has in a column, with the interval of its samples where a table shows an
    error.
    """
    return view.measured(row, column, "samples" if column.spec.interval == "error" else "")


def together(values: Sequence[Value | None], pooled: bool) -> Value | None:
    """Return the one value, or the mean logarithm of several, of which none may be missing."""
    complete = [value for value in values if value is not None]
    if len(complete) < len(values):
        return None
    return mean_log(complete) if pooled else complete[0]


@dataclass(frozen=True)
class Published:
    """The paper's numbers by the label of their row, and what they are at."""

    where: str
    values: Mapping[str, Value | None]


def published_numbers(
    view: View, claim: Claim, rows: Mapping[str, Row], place: Place, labels: Mapping[str, Any]
) -> Published:
    """Return the paper's numbers at a place; the labels are those of the favourite there."""
    if claim.published:
        return function_at(claim.published, f"published of {view.artifact.name}")(view)
    values = {}
    for label, row in rows.items():
        numbers = [paper_number(view, claim, row, column) for column in place.columns]
        values[label] = together(numbers, claim.pooled)
    at = {**labels, **papers_place(view, place.columns[0])}
    return Published(name_of(claim.paper_at or place.title, at), values)


def paper_number(view: View, claim: Claim, row: Row, column: ArtifactColumn) -> Value | None:
    """Read the paper's number of a row, at its own length or layer; None where it has none."""
    path = claim.paper or column.spec.paper
    if not path:
        return None
    at = column.at | row.labels | papers_place(view, column)
    return paper_value(view.artifact.paper, fill(path, at))


def papers_place(view: View, column: ArtifactColumn) -> dict[str, Any]:
    """Return the paper's last layer, or its length that is as far from its longest as the column's
    is from ours; empty where its numbers are by neither.

    With the lengths 512, 1024 and 2048 of the paper and 64 and 128 of ours, the column of 64 tokens
    has ``{"n": 1024}``, of every corpus.
    """
    paper = view.artifact.paper
    if "lengths" in paper:
        groups = columns_by_corpus(view, column.template)
        (columns,) = [columns for columns in groups if column in columns]
        from_longest = columns.index(column)
        lengths = paper["lengths"][::-1]
        length = lengths[from_longest] if from_longest < len(lengths) else None
        return {name: length for name, n in column.at.items() if isinstance(n, int)}
    return {"layer": paper["layers"][-1]} if "layers" in paper else {}


def name_of(title: str, values: Mapping[str, Any]) -> str:
    """Say what a contest is called: data sets as readers know them."""
    return fill(title, {name: display_name(str(value)) for name, value in values.items()})
