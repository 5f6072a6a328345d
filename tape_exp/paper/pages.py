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
from tape_exp.paper import verdicts
from tape_exp.paper.claims import verdict
from tape_exp.paper.verdicts import Verdict
from tape_exp.results.index import RecordIndex
from tape_exp.results.record import Record
from tape_exp.results.tables import Cell, Column, Table, span
from tape_exp.settings import folders
from tape_exp.settings.naming import display_name

ORDER = [
    verdicts.YES,
    verdicts.NO,
    verdicts.UNCLEAR,
    verdicts.FLOOR,
    verdicts.ONE_SEED,
    verdicts.UNTESTED,
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


def judged(records: Sequence[Record]) -> Iterator[tuple[Artifact, list[View], list[Judgement]]]:
    """Yield every artifact, its views at the scales that show something, and its judgements."""
    index = RecordIndex(records)
    for artifact in map(load, names()):
        every = [View(artifact, scale, index) for scale in artifact.scales]
        shown = [view for view in every if view.table is not None]
        judgements = [judgement(artifact, shown, claim) for claim in artifact.claims]
        last = shown[-1].scale if shown else ""
        yield artifact, shown, judgements or [Judgement(artifact, last)]


def judgement(artifact: Artifact, shown: Sequence[View], claim: Claim) -> Judgement:
    """Judge a claim at the largest scale that tests it, or else has records."""
    untested: list[Judgement] = []
    for view in reversed(shown):
        found = replace(verdict(view, claim), size=size_of(view))
        one = Judgement(artifact, view.scale, claim.text, found)
        if found.holds != verdicts.UNTESTED:
            return one
        untested.append(one)
    if untested:
        return untested[0]
    nothing = View(artifact, next(iter(artifact.scales)), [])
    return Judgement(artifact, "", claim.text, verdict(nothing, claim))


def claims_table(judgements: Sequence[Judgement]) -> Table:
    """Make the table of claims for programs, a row for each."""
    rows: list[dict[str, Cell]] = []
    for one in judgements:
        row: dict[str, Cell] = {
            "artifact": one.artifact.name,
            "the paper's claim": one.text or verdicts.NO_CLAIM,
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
    """Write the claims by their verdicts, a line each, with links to the ``pages``."""
    tested = [one for one in judgements if one.text]
    rows = []
    for one in sorted(tested, key=lambda one: ORDER.index(one.verdict.holds)):
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
    others = [f"{linked(one, pages)} ({one.artifact.title})" for one in judgements if not one.text]
    counts = Counter(one.verdict.holds for one in tested)
    text = ", ".join(f"{holds} {counts[holds]}" for holds in ORDER if counts[holds])
    rest = f"\n\nWithout a claim: {', '.join(others)}." if others else ""
    return (
        f"Claims of the paper and what the recorded runs say of them: {text}. The figures are "
        "those of the method that the claim favours and of the rival that decides, with the p of "
        "their paired test, adjusted for all comparisons of the claim where the rival is ahead.\n\n"
        f"{table}{rest}\n"
    )


def linked(one: Judgement, pages: str) -> str:
    """Write the name of the artifact, with a link where something is shown of it."""
    name = one.artifact.name
    place = pages.format(one.artifact.name, one.scale)
    return f"[{name}]({place})" if one.scale or "{1}" not in pages else name


def in_brackets(text: str) -> str:
    """Put a text into brackets, `` (text)``; nothing of an empty one."""
    return f" ({text})" if text else ""


def tested_with(one: Judgement) -> str:
    """Scale, size of the models and number of seeds, as far as there are some."""
    place = one.artifact.place.get(one.scale, one.scale)
    return ", ".join(filter(None, (place, one.verdict.size, seeds_of(one.verdict))))


def size_of(view: View) -> str:
    """Write the number of parameters of the models that a claim is tested with, and the digits of
    sums: ``0.28 M, 5 → 10 digits``; nothing where a scale is no size.
    """
    runs = view.every_run
    if not (runs and view.artifact.rows) or view.artifact.place.get(view.scale) == "":
        return ""
    sizes = [run["parameters"] / 1e6 for run in runs]
    size = span(f"{min(sizes):.2g}", f"{max(sizes):.2g}") + " M"
    digits = set()
    for run in runs:
        task = run.config["task"]
        if "train_digits" in task:
            digits.add((task["train_digits"], task["test_digits"]))
    if not digits:
        return size
    fewest = "{} → {}".format(*min(digits))
    most = "{} → {}".format(*max(digits))
    return f"{size}, {span(fewest, most, ' … ')} digits"


def seeds_of(found: Verdict) -> str:
    """Write ``3 seeds``; what is no number stays as it is."""
    word = "seed" if found.seeds == "1" else "seeds"
    return f"{found.seeds} {word}" if found.seeds[-1:].isdigit() else found.seeds


def page(
    artifact: Artifact,
    shown: Sequence[View],
    judgements: Sequence[Judgement],
    pictures: dict[str, list[str]],
) -> str:
    """Write the page of an artifact: claims, verdicts, figures (by scale), tables, captions,
    commands.
    """
    parts = [f"# {artifact.name}"]
    for one in judgements:
        if one.text:
            parts.append(boxed(one))
    for view in shown:
        place = artifact.place.get(view.scale, f"scale {view.scale}")
        if len(artifact.scales) > 1 and place:
            parts.append(f"## {place[0].upper()}{place[1:]}")
        for path in pictures.get(view.scale, []):
            parts.append(f"![{artifact.title}]({path})")
        if view.table is not None:
            parts.append(view.table.markdown())
            parts.append(view.table.caption)
    if artifact.figures and shown and not pictures:
        parts.append("No figure: it would show nothing.")
    missing = [*gaps(artifact, shown)]
    if missing:
        parts.append(f"Not run yet: {'; '.join(missing)}.")
    commands = dict.fromkeys(artifact.run_command(scale) for scale in first_and_papers(artifact))
    parts.append("\n".join(["Runs what has no record yet:\n\n```sh", *commands, "```"]))
    cost = costs().get(artifact.name)
    if cost:
        parts.append(
            f"Scale paper, three seeds: {cost['runs']:,} runs, {cost['gpu_hours']:,.1f} H100-hours "
            "of training, estimated from their operations."
        )
    return "\n\n".join(filter(None, parts)) + "\n"


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
            continue
        view = at[scale]
        names = [display_name(label_of(row)) for row in view.rows if not view.runs(row)]
        if names and not artifact.source:
            yield f"{', '.join(names)} at scale {scale} (needs {needs})"


def costs() -> dict[str, Any]:
    """Say what ``tape-exp paper cost`` wrote, by artifact."""
    path = folders.RESULTS / "costs.json"
    return json.loads(path.read_text(encoding="utf-8"))["artifacts"] if path.exists() else {}
