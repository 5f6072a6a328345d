"""What a caption adds by itself: how records differ, what they read, and what marks mean."""

from collections.abc import Sequence
from typing import Any

from tape_exp.artifacts.cells import Cells
from tape_exp.artifacts.rows import by_outer_labels, once
from tape_exp.artifacts.specs import LengthsFigure, LossesFigure
from tape_exp.results.record import Record
from tape_exp.results.store import commits, varying
from tape_exp.settings.naming import display_name

KNOWS_DIGITS = "†"
OVER_SEEDS = {"seeds", "samples"}  # intervals in whose place the values of two seeds are shown


def notes(cells: Cells) -> list[str]:
    """List the sentences that only the records can add to a caption."""
    return [*filter(None, (note(cells) for note in NOTES))]


def two_seeds(cells: Cells) -> str:
    """Say what the brackets of two seeds hold."""
    intervals = {column.spec.interval for column in cells.our_columns}
    if 2 not in seed_counts(cells) or (intervals and not intervals & OVER_SEEDS):
        return ""
    return "Where there are two seeds, brackets hold the value of each."


def tested_rivals(cells: Cells) -> str:
    """Name the rivals of the claims, where these leave out some of the models that are shown;
    without the favourites, unless these are compared with each other only.
    """
    last = cells.dimensions()[-1:]
    shown = {row.labels[name] for row in cells.rows for name in last}
    favourites: list[str] = []
    rivals: list[str] = []
    for claim in cells.artifact.claims:
        favourites += claim.better
        rivals += shown if claim.than is None else claim.than
    if not rivals or not shown - {*rivals, *favourites}:
        return ""
    others = [name for name in rivals if name not in favourites]
    names = [display_name(name) for name in dict.fromkeys(others or rivals)]
    claims = "The claim is" if len(cells.artifact.claims) == 1 else "Claims are"
    return f"{claims} tested against {listed(names)} only."


def bands(cells: Cells) -> str:
    """Say what the bands of a figure of curves are."""
    curves = (LengthsFigure, LossesFigure)
    has_curves = any(isinstance(figure, curves) for figure in cells.artifact.figures)
    if not has_curves or max(seed_counts(cells), default=0) < 2:
        return ""
    return "In the figure bands reach from the lowest seed to the highest."


def known_digits(cells: Cells) -> str:
    """Say what the mark at a model says."""
    if not any(run.get("knows_digits") for run in cells.every_run):
        return ""
    return f"{KNOWS_DIGITS} is told which tokens are digits, and is no rival of the others."


def replaced_texts(cells: Cells) -> str:
    """Name the corpora that were not there."""
    corpora: set[str] = set()
    for run in cells.every_run:
        corpora |= {*replaced_corpora(run)}
    if not corpora:
        return ""
    return (
        f"In place of {listed(sorted(corpora))}: text that Python carries, from few files and the "
        "same for all seeds, so that intervals leave out what other text would give."
    )


def different_data(cells: Cells) -> str:
    """Say whether models are compared that read different data, or may have: those of one size."""
    answers = []
    for rows in by_outer_labels(cells.rows).values():
        answers.append(same_data(once(cells.runs(row) for row in rows)))
    if False in answers:
        return "Models of one seed read different data: they CANNOT BE COMPARED."
    if None in answers and any("text" in run.config["task"] for run in cells.every_run):
        return "Whether the runs of a seed read the same data is not recorded for all."
    return ""


def undeclared_differences(cells: Cells) -> str:
    """Name the keys in which rows differ, besides those by which the YAML tells them apart."""
    overrides: list[str] = []
    for row in cells.rows:
        overrides += row.overrides
    for column in cells.columns:
        overrides += column.spec.where
    declared = {override.partition("=")[0] for override in overrides}
    differing = varying([*cells.all_runs.values()], declared | {"model", "precision"})
    texts = [f"{key} ({', '.join(map(str, differing[key]))})" for key in sorted(differing)]
    return f"Rows also differ in {'; '.join(texts)}." if texts else ""


def threads(cells: Cells) -> str:
    """Name the numbers of threads, where runs had different ones."""
    counts = set()
    for run in cells.every_run:
        counts.add(run.get("hardware", {}).get("threads"))
    known = sorted(counts - {None})
    return f"The runs had {listed([*map(str, known)])} threads." if len(known) > 1 else ""


def dirty_commits(cells: Cells) -> str:
    """Say what the mark at a commit says."""
    marked = "+" in commits(cells.every_run)
    return "+ after a commit: uncommitted changes." if marked else ""


NOTES = (
    two_seeds,
    tested_rivals,
    bands,
    known_digits,
    replaced_texts,
    different_data,
    undeclared_differences,
    threads,
    dirty_commits,
)


def seed_counts(cells: Cells) -> list[int]:
    """Count the seeds of each row."""
    counts = []
    for runs in cells.all_runs.values():
        seeds = {run.seed for run in runs}
        counts.append(len(seeds))
    return counts


def same_data(runs: Sequence[Record]) -> bool | None:
    """Say whether all runs of a seed and a task read the same data; None where nothing tells.

    >>> config = {"task": {"name": "c4"}}
    >>> rope = Record(seed=0, config=config, fingerprint_version=1, data_fingerprint="a")
    >>> same_data([rope, rope]), same_data([rope, rope | {"data_fingerprint": "b"}])
    (True, False)
    """
    data_of: dict[tuple[int, str], list[tuple[Any, ...]]] = {}
    for run in runs:
        data_of.setdefault((run.seed, run.config["task"]["name"]), []).append(run.data)
    is_known = True
    for data in data_of.values():
        versions = {version for _, version, _ in data}
        known = {each for each in data if each[1] is not None}
        if len(known) > len(versions - {None}):
            return False
        if len(data) > 1 and (len(versions) > 1 or None in versions):
            is_known = False
    return True if is_known else None


def replaced_corpora(run: Record) -> list[str]:
    """List the corpora in whose place a run read built-in text."""
    task = run.config["task"]
    texts = {task.get("name"): task.get("text"), **(task.get("tests") or {})}
    corpora = []
    for name, text in texts.items():
        if isinstance(text, dict) and text.get("source") == "builtin":
            corpora.append(text.get("name", name))
    return corpora


def listed(words: Sequence[str]) -> str:
    """Join words as a sentence does: ``a, b and c``."""
    *others, last = words
    return f"{', '.join(others)} and {last}" if others else last
