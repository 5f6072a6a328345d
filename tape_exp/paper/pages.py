"""The texts of results: an overview of the claims, and a page for each artifact."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tabulate import tabulate

from tape_exp.artifacts.artifact import Artifact, Claim, load, names
from tape_exp.artifacts.rows import label_of
from tape_exp.artifacts.view import View
from tape_exp.paper import outcomes
from tape_exp.paper.claims import verdict
from tape_exp.paper.verdicts import NO_CLAIM, Verdict
from tape_exp.results.index import RecordIndex
from tape_exp.results.record import Record
from tape_exp.results.tables import Cell, Column, Table, span
from tape_exp.settings import folders
from tape_exp.settings.naming import display_name

ORDER = [
    outcomes.YES,
    outcomes.NO,
    outcomes.UNCLEAR,
    outcomes.FLOOR,
    outcomes.FEW_SEEDS,
    outcomes.ONE_SEED,
    outcomes.UNTESTED,
]


@dataclass(frozen=True)
class Judgement:
    """A claim of an artifact, the scale at which it is judged, and the verdict there; of an
    artifact without one no text, and the scale that is shown.
    """

    artifact: Artifact
    scale: str
    text: str = ""
    verdict: Verdict = field(default_factory=Verdict)


@dataclass(frozen=True)
class Judged:
    """An artifact, its views at the scales that show something, and what is judged of it."""

    artifact: Artifact
    shown: Sequence[View]
    judgements: Sequence[Judgement]


def judged(records: Sequence[Record]) -> Iterator[Judged]:
    """Yield every artifact with what is shown and judged of it."""
    index = RecordIndex(records)
    for artifact in map(load, names()):
        shown = []
        for scale in artifact.scales:
            view = View(artifact, scale, index)
            if view.table is not None:
                shown.append(view)
        judgements = [judgement(artifact, shown, claim) for claim in artifact.claims]
        if not judgements:
            judgements.append(Judgement(artifact, shown[-1].scale if shown else ""))
        yield Judged(artifact, shown, judgements)


def judgement(artifact: Artifact, shown: Sequence[View], claim: Claim) -> Judgement:
    """Judge a claim at the largest scale that tests it, or else has records."""
    largest_untested = None
    for view in reversed(shown):
        found = replace(verdict(view, claim), size=size_of(view))
        one = Judgement(artifact, view.scale, claim.text, found)
        if found.holds != outcomes.UNTESTED:
            return one
        if largest_untested is None:
            largest_untested = one
    if largest_untested is not None:
        return largest_untested
    smallest = next(iter(artifact.scales))
    without_records = View(artifact, smallest, [])
    return Judgement(artifact, "", claim.text, verdict(without_records, claim))


def claims_table(judgements: Sequence[Judgement]) -> Table:
    """Make the table of claims for programs, a row for each."""
    rows: list[dict[str, Cell]] = []
    for one in judgements:
        row: dict[str, Cell] = {
            "artifact": one.artifact.name,
            "the paper's claim": one.text or NO_CLAIM,
            "paper": one.verdict.paper or ("no numbers" if one.text else ""),
            "ours": one.verdict.ours,
            "holds": one.verdict.holds,
            "extent": one.verdict.extent,
            "scale": one.artifact.place.get(one.scale, one.scale),
            "size": one.verdict.size,
            "seeds": one.verdict.seeds,
        }
        rows.append(row)
    return Table([*map(Column, rows[0])], rows, ["artifact"])


def overview(judgements: Sequence[Judgement], pages: str) -> str:
    """Write the claims by their verdicts, a line each, with links to the ``pages``: a path with
    ``{0}`` for the artifact and ``{1}`` for the scale.
    """
    claims = [one for one in judgements if one.text]
    rows = []
    for one in sorted(claims, key=lambda one: ORDER.index(one.verdict.holds)):
        row = [
            linked(one, pages),
            one.text,
            one.verdict.short_paper or "no numbers",
            one.verdict.short,
            f"**{one.verdict.holds}**" + in_brackets(one.verdict.extent),
            tested_with(one),
        ]
        rows.append(row)
    head = ["artifact", "the paper's claim", "paper", "ours", "holds", "scale"]
    table = tabulate(rows, head, tablefmt="github", disable_numparse=True)
    without_claim = []
    for one in judgements:
        if not one.text:
            without_claim.append(f"{linked(one, pages)} ({one.artifact.title})")
    rest = f"\n\nWithout a claim: {', '.join(without_claim)}." if without_claim else ""
    return (
        f"Claims of the paper and what the recorded runs say of them: {counted(claims)}. "
        "The figures are those of the method that the claim favours and of the rival that decides, "
        "with the p of their paired test, adjusted for all comparisons of the claim where the "
        "rival is ahead.\n\n"
        f"{table}{rest}\n"
    )


def counted(claims: Sequence[Judgement]) -> str:
    """Count the claims of each verdict: ``yes 3, no 9``."""
    counts = Counter(one.verdict.holds for one in claims)
    return ", ".join(f"{holds} {counts[holds]}" for holds in ORDER if counts[holds])


def linked(one: Judgement, pages: str) -> str:
    """Write the name of the artifact, with a link to its page, if that is of no scale or something
    is shown at one.
    """
    name = one.artifact.name
    if "{1}" in pages and not one.scale:
        return name
    return f"[{name}]({pages.format(name, one.scale)})"


def in_brackets(text: str) -> str:
    """Put a text into brackets, `` (text)``; nothing of an empty one."""
    return f" ({text})" if text else ""


def tested_with(one: Judgement) -> str:
    """Write the scale, the size of the models and the number of seeds, as far as there are some."""
    place = one.artifact.place.get(one.scale, one.scale)
    return ", ".join(filter(None, (place, one.verdict.size, seeds_of(one.verdict))))


def size_of(view: View) -> str:
    """Write the number of parameters of the models that a claim is tested with, and the digits of
    sums: ``0.28 M, 5 → 10 digits``; nothing where a scale is no size.
    """
    runs = view.every_run
    is_a_size = view.artifact.place.get(view.scale) != ""
    if not runs or not view.artifact.rows or not is_a_size:
        return ""
    sizes = [run["parameters"] / 1e6 for run in runs]
    size = span(f"{min(sizes):.2g}", f"{max(sizes):.2g}") + " M"
    digits_of_sums = digits_of(runs)
    return f"{size}, {digits_of_sums} digits" if digits_of_sums else size


def digits_of(runs: Sequence[Record]) -> str:
    """Write the trained and the tested digits of runs of addition, ``5 → 10 … 8 → 16``; empty where
    there are none.
    """
    digits = set()
    for run in runs:
        task = run.config["task"]
        if "train_digits" in task:
            digits.add((task["train_digits"], task["test_digits"]))
    if not digits:
        return ""
    fewest = "{} → {}".format(*min(digits))
    most = "{} → {}".format(*max(digits))
    return span(fewest, most, " … ")


def seeds_of(found: Verdict) -> str:
    """Write ``3 seeds`` or ``2 to 3 seeds``; what is no number stays as it is."""
    if not found.seeds[-1:].isdigit():
        return found.seeds
    return f"{found.seeds} seed" if found.seeds == "1" else f"{found.seeds} seeds"


def page(judged: Judged, pictures: dict[str, list[str]]) -> str:
    """Write the page of an artifact: claims, verdicts, figures (by scale), tables, captions,
    commands.
    """
    artifact = judged.artifact
    parts = [f"# {artifact.name}"]
    for one in judged.judgements:
        if one.text:
            parts.append(boxed(one))
    for view in judged.shown:
        parts += section(view, pictures.get(view.scale, []))
    if artifact.figures and judged.shown and not pictures:
        parts.append("No figure: it would show nothing.")
    missing = [*gaps(artifact, judged.shown)]
    if missing:
        parts.append(f"Not run yet: {'; '.join(missing)}.")
    commands = []
    for scale in first_and_papers(artifact):
        command = artifact.run_command(scale)
        if command not in commands:
            commands.append(command)
    parts.append("\n".join(["Runs what has no record yet:\n\n```sh", *commands, "```"]))
    cost = costs().get(artifact.name)
    if cost:
        parts.append(
            f"Scale paper, three seeds: {cost['runs']:,} runs, {cost['gpu_hours']:,.1f} H100-hours "
            "of training, estimated from their operations."
        )
    return "\n\n".join(filter(None, parts)) + "\n"


def section(view: View, pictures: Sequence[str]) -> Iterator[str]:
    """Yield the parts of a page that show an artifact at a scale."""
    artifact = view.artifact
    place = artifact.place.get(view.scale, f"scale {view.scale}")
    if len(artifact.scales) > 1 and place:
        yield f"## {place[0].upper()}{place[1:]}"
    for path in pictures:
        yield f"![{artifact.title}]({path})"
    if view.table is not None:
        yield view.table.markdown()
        yield view.table.caption


def boxed(one: Judgement) -> str:
    """Put a claim with its verdict into a box, and the figures, the paper's and ours."""
    holds = one.verdict.holds + in_brackets(one.verdict.extent)
    lines = [f'!!! note "{one.text} Holds: {holds}."\n']
    lines.append(f"\n    Paper: {one.verdict.paper or 'no numbers'}\n")
    if one.verdict.ours:
        lines.append(f"\n    Ours: {one.verdict.ours}\n")
    return "".join(lines)


def first_and_papers(artifact: Artifact) -> list[str]:
    """List the scales whose commands a page shows: the smallest, and the paper's where there is
    one.
    """
    first, *further = artifact.scales
    return [first, "paper"] if "paper" in further else [first]


def gaps(artifact: Artifact, shown: Sequence[View]) -> Iterator[str]:
    """Say what has not run at each scale, with what it needs."""
    at = {view.scale: view for view in shown}
    for scale, needed in artifact.scales.items():
        needs = needed or "time only"
        if scale not in at:
            yield f"scale {scale} (needs {needs})"
        elif not artifact.source:
            view = at[scale]
            names = [display_name(label_of(row)) for row in view.rows if not view.runs(row)]
            if names:
                yield f"{', '.join(names)} at scale {scale} (needs {needs})"


def costs() -> dict[str, Any]:
    """Read what ``tape-exp paper cost`` wrote, by artifact."""
    path = folders.RESULTS / "costs.json"
    return json.loads(path.read_text(encoding="utf-8"))["artifacts"] if path.exists() else {}
