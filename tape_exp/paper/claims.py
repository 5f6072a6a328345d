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
from tape_exp.paper.outcomes import Contest
from tape_exp.paper.verdicts import Verdict, decide
from tape_exp.results.statistics import Value, mean_log
from tape_exp.settings.construct import function_at
from tape_exp.settings.naming import display_name


def verdict(view: View, claim: Claim) -> Verdict:
    """Judge a claim of an artifact at a scale."""
    if claim.rule:
        return function_at(claim.rule, f"rule of {view.artifact.name}")(view, claim)
    return decide([*contests(view, claim)], claim.builtin if on_generated_text(view) else "")


def on_generated_text(view: View) -> bool:
    """Say whether some of the runs that are shown read what the project generates."""
    return "builtin" in view.lookup("task.source", view.every_run)


def contests(view: View, claim: Claim) -> Iterator[Contest]:
    """Yield the contests of a claim: at each choice of the other dimensions, in each column that it
    is about, of each favourite.
    """
    *_, last = view.dimensions() or ["model"]
    among = claim.among or last
    matches = matches_of(claim, labels_of(view, among))
    for rows in rows_compared(view, claim, among):
        by_label = {row.labels[among]: row for row in rows}
        for compared in columns_compared(view, claim):
            for match in matches:
                yield contest(view, claim, by_label, compared, match)


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
    choices: dict[str, Sequence[str]] = {}
    for name in view.dimensions():
        if name != among:
            choices[name] = labels_of(view, name)
    for name, chosen in claim.rows.items():
        choices[name] = [last_measured(view, name)] if chosen == "last" else chosen
    for choice in product(*choices.values()):
        labels = dict(zip(choices, choice, strict=True))
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
class ComparedColumns:
    """A column in which methods are compared, or several together, and what the claim calls it."""

    columns: Sequence[ArtifactColumn]
    title: str

    @property
    def first(self) -> ArtifactColumn:
        """The column itself; of several the one with the last length."""
        return self.columns[0]


def columns_compared(view: View, claim: Claim) -> Iterator[ComparedColumns]:
    """Yield each column in which a claim compares: of every corpus that of the last length, that of
    every length, or all lengths together.
    """
    for template, title in claim.at.items():
        for columns in columns_by_corpus(view, template):
            if claim.pooled:
                yield ComparedColumns(columns, title)
            elif claim.every:
                for column in columns:
                    yield ComparedColumns([column], title)
            else:
                yield ComparedColumns(columns[:1], title)


def columns_by_corpus(view: View, template: str) -> list[list[ArtifactColumn]]:
    """Group our columns of a template that differ only in their length, the last one first: these
    are of one corpus, which all values but numbers name.

    >>> from tape_exp.artifacts.artifact import artifact_of
    >>> each = {"c": ["books", "code"], "n": [64, 128]}
    >>> columns = {"{c} {n}": {"each": each, "metric": "{c}/perplexity@{n}"}}
    >>> artifact = artifact_of("mine", {"title": "", "columns": columns})
    >>> for group in columns_by_corpus(View(artifact, "smoke", []), "{c} {n}"):
    ...     print([column.name for column in group])
    ['books 128', 'books 64']
    ['code 128', 'code 64']
    """
    groups: dict[tuple[Any, ...], list[ArtifactColumn]] = {}
    for column in view.columns_named(template):
        if column.who == "ours":
            corpus = tuple(value for value in column.at.values() if not isinstance(value, int))
            groups.setdefault(corpus, []).append(column)
    return [columns[::-1] for columns in groups.values()]


# ---- a contest ----


def contest(
    view: View, claim: Claim, rows: Mapping[str, Row], compared: ComparedColumns, match: Match
) -> Contest:
    """Make one contest of a claim, among rows by their label."""
    column = compared.first
    favourite = rows.get(match.favourite)
    runs = [] if favourite is None else view.runs(favourite, column)
    labels = column.at if favourite is None else column.at | favourite.labels
    measured = measured_numbers(view, claim, rows, compared)
    published = published_numbers(view, claim, rows, compared, labels)
    papers = dict(published.values)
    if papers.get(claim.paper_label):
        papers[match.favourite] = papers[claim.paper_label]
    return Contest(
        where=view.filled(named(title_of(claim, compared, match), labels), runs),
        favourite=called(match.favourite, claim),
        rivals=[called(rival, claim) for rival in match.rivals],
        measured={called(label, claim): value for label, value in known(measured)},
        published={called(label, claim): value for label, value in known(papers)},
        published_where=published.where,
        higher=not claim.lower,
        floor=floor_of(view, claim, column),
        digits=column.digits if claim.digits is None else claim.digits,
        margin=claim.margin,
    )


def title_of(claim: Claim, compared: ComparedColumns, match: Match) -> str:
    """Say what a contest is about: its column, or of pairs ``layers 1 to 2``."""
    if claim.pairs:
        return f"{claim.among or 'layer'}s {match.rivals[0]} to {match.favourite}"
    return compared.title


def called(label: str, claim: Claim) -> str:
    """Say what a verdict calls a label: ``layer 3`` in the place of a bare number."""
    return f"{claim.among or 'layer'} {label}" if label.isdigit() else label


def named(title: str, values: Mapping[str, Any]) -> str:
    """Fill in a title the values of its braces: data sets as readers know them.

    >>> named("{d}, {n} tokens", {"d": "qmsum", "n": 512})
    'QMSum, 512 tokens'
    """
    return fill(title, {name: display_name(str(value)) for name, value in values.items()})


def known(values: Mapping[str, Value | None]) -> Iterator[tuple[str, Value]]:
    """Yield each label that has a value, with it."""
    for label, value in values.items():
        if value is not None:
            yield label, value


def floor_of(view: View, claim: Claim, column: ArtifactColumn) -> float | None:
    """Return what is reached without solving anything: a number, or a function's of the column."""
    if isinstance(claim.floor, str):
        return function_at(claim.floor, f"floor of {view.artifact.name}")(view, column)
    return claim.floor


# ---- our numbers ----


def measured_numbers(
    view: View, claim: Claim, rows: Mapping[str, Row], compared: ComparedColumns
) -> dict[str, Value | None]:
    """Return our numbers in columns that are compared, by label."""
    numbers = {}
    for label, row in rows.items():
        values = [measured_number(view, row, column) for column in compared.columns]
        numbers[label] = together(values, claim.pooled)
    return numbers


def measured_number(view: View, row: Row, column: ArtifactColumn) -> Value | None:
    """Return what a row has in a column, with the interval of its samples where a table shows an
    error.
    """
    return view.measured(row, column, "samples" if column.spec.interval == "error" else "")


def together(values: Sequence[Value | None], pooled: bool) -> Value | None:
    """Return the one value, or of ``pooled`` ones their mean logarithm, of which none may be
    missing.

    >>> together([Value(8.0)], pooled=False).number, together([Value(8.0), None], pooled=True)
    (8.0, None)
    """
    complete = [value for value in values if value is not None]
    if len(complete) < len(values):
        return None
    return mean_log(complete) if pooled else complete[0]


# ---- the paper's numbers ----


@dataclass(frozen=True)
class Published:
    """The paper's numbers by the label of their row, and what they are at."""

    where: str
    values: Mapping[str, Value | None]


def published_numbers(
    view: View,
    claim: Claim,
    rows: Mapping[str, Row],
    compared: ComparedColumns,
    labels: Mapping[str, Any],
) -> Published:
    """Return the paper's numbers in columns that are compared; the labels are the favourite's."""
    if claim.published:
        return function_at(claim.published, f"published of {view.artifact.name}")(view)
    numbers = {}
    for label, row in rows.items():
        values = [papers_number(view, claim, row, column) for column in compared.columns]
        numbers[label] = together(values, claim.pooled)
    at = {**labels, **papers_own(view, compared.first)}
    return Published(named(claim.paper_at or compared.title, at), numbers)


def papers_number(view: View, claim: Claim, row: Row, column: ArtifactColumn) -> Value | None:
    """Read the paper's number of a row, at its own length or layer; None where it has none."""
    path = claim.paper or column.spec.paper
    if not path:
        return None
    at = column.at | row.labels | papers_own(view, column)
    return paper_value(view.artifact.paper, fill(path, at))


def papers_own(view: View, column: ArtifactColumn) -> dict[str, Any]:
    """Return the length of the paper that stands for a column's, as far from its longest as that is
    from ours, or its last layer; empty where its numbers are by neither.

    With the lengths 512, 1024 and 2048 of the paper and 64 and 128 of ours, the column of 64 tokens
    has ``{"n": 1024}``, of every corpus.
    """
    paper = view.artifact.paper
    if "layers" in paper and "lengths" not in paper:
        return {"layer": paper["layers"][-1]}
    if "lengths" not in paper:
        return {}
    groups = columns_by_corpus(view, column.template)
    (of_corpus,) = [columns for columns in groups if column in columns]
    from_longest = of_corpus.index(column)
    lengths = paper["lengths"][::-1]
    length = lengths[from_longest] if from_longest < len(lengths) else None
    return {name: length for name, value in column.at.items() if isinstance(value, int)}
