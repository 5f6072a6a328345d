"""The texts of results: an overview of the claims, and a page for each artifact."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tabulate import tabulate

from tape_exp.paper import verdicts
from tape_exp.paper.artifact import Artifact, load, names
from tape_exp.paper.claims import verdict
from tape_exp.paper.verdicts import Verdict
from tape_exp.paper.view import View, label_of
from tape_exp.results.record import Record
from tape_exp.results.tables import Cell, Column, Table
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
    """Every artifact, at each scale at which there is something to show, and its judgements."""
    for artifact in map(load, names()):
        every = [View(artifact, scale, records) for scale in artifact.scales]
        shown = [view for view in every if view.table is not None]
        judgements = [judgement(artifact, shown, claim) for claim in artifact.claims]
        last = shown[-1].scale if shown else ""
        yield artifact, shown, judgements or [Judgement(artifact, last)]


def judgement(artifact: Artifact, shown: Sequence[View], claim: dict[str, Any]) -> Judgement:
    """A claim at the largest scale that tests it, or else has records."""
    none = View(artifact, next(iter(artifact.scales)), [])
    judged = [(v.scale, replace(verdict(v, claim), size=size_of(v))) for v in reversed(shown)]
    tested = [each for each in judged if each[1].holds != verdicts.UNTESTED]
    scale, found = [*tested, *judged, ("", verdict(none, claim))][0]
    return Judgement(artifact, scale, claim["text"], found)


def claims_table(judgements: Sequence[Judgement]) -> Table:
    """The table of claims for programs, a row for each."""
    rows: list[dict[str, Cell]] = [
        {
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
        for one in judgements
    ]
    return Table([*map(Column, rows[0])], rows, ["artifact"])


def overview(judgements: Sequence[Judgement], pages: str) -> str:
    """The claims by their verdicts, a line each, with links to the ``pages``."""
    tested = [one for one in judgements if one.text]
    rows = [
        [
            linked(one, pages),
            one.text,
            one.verdict.short_paper or "no numbers",
            one.verdict.short,
            f"**{one.verdict.holds}**" + in_brackets(one.verdict.extent),
            tested_with(one),
        ]
        for one in sorted(tested, key=lambda one: ORDER.index(one.verdict.holds))
    ]
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
    """The name of the artifact, with a link where something is shown of it."""
    name = one.artifact.name
    place = pages.format(one.artifact.name, one.scale)
    return f"[{name}]({place})" if one.scale or "{1}" not in pages else name


def in_brackets(text: str) -> str:
    """`` (text)``; nothing of an empty one."""
    return f" ({text})" if text else ""


def tested_with(one: Judgement) -> str:
    """Scale, size of the models and number of seeds, as far as there are some."""
    place = one.artifact.place.get(one.scale, one.scale)
    return ", ".join(filter(None, (place, one.verdict.size, seeds_of(one.verdict))))


def size_of(view: View) -> str:
    """The parameters of the models that a claim is tested with, and the digits of sums: ``0.28 M,
    5 → 10 digits``; nothing where a scale is no size.
    """
    runs = [run for some in view.all_runs.values() for run in some]
    if not (runs and view.artifact.rows) or view.artifact.place.get(view.scale) == "":
        return ""
    sizes = sorted(run["parameters"] for run in runs)
    tasks = [run["config"]["task"] for run in runs]
    millions = " to ".join(dict.fromkeys(f"{sizes[n] / 1e6:.2g}" for n in (0, -1)))
    digits = sorted((t["train_digits"], t["test_digits"]) for t in tasks if "train_digits" in t)
    ends = dict.fromkeys(f"{n} → {m}" for n, m in (*digits[:1], *digits[-1:]))
    return f"{millions} M" + (f", {' … '.join(ends)} digits" if ends else "")


def seeds_of(found: Verdict) -> str:
    """``3 seeds``; what is no number stays as it is."""
    word = "seed" if found.seeds == "1" else "seeds"
    return f"{found.seeds} {word}" if found.seeds[-1:].isdigit() else found.seeds


def page(
    artifact: Artifact,
    shown: Sequence[View],
    judgements: Sequence[Judgement],
    pictures: dict[str, list[str]],
) -> str:
    """The page of an artifact: claims, verdicts, figures (by scale), tables, captions, commands."""
    parts = [f"# {artifact.name}"]
    for one in (one for one in judgements if one.text):
        figures_of = [("Paper", one.verdict.paper or "no numbers"), ("Ours", one.verdict.ours)]
        lines = "".join(f"\n    {who}: {text}\n" for who, text in figures_of if text)
        holds = one.verdict.holds + in_brackets(one.verdict.extent)
        parts.append(f'!!! note "{one.text} Holds: {holds}."\n{lines}')
    for view in shown:
        table = view.table
        place = artifact.place.get(view.scale, f"scale {view.scale}")
        if len(artifact.scales) > 1 and place:
            parts.append(f"## {place[0].upper()}{place[1:]}")
        parts += [f"![{artifact.title}]({path})" for path in pictures.get(view.scale, [])]
        parts += [table.markdown(), table.caption] if table else []
    if artifact.figures and shown and not pictures:
        parts.append("No figure: it would show nothing.")
    if missing := [*gaps(artifact, shown)]:
        parts.append(f"Not run yet: {'; '.join(missing)}.")
    first, *further = artifact.scales
    commands = dict.fromkeys(map(artifact.run_command, [first, *({"paper"} & {*further})]))
    parts.append("\n".join(["Runs what has no record yet:\n\n```sh", *commands, "```"]))
    if cost := costs().get(artifact.name):
        parts.append(
            f"Scale paper, three seeds: {cost['runs']:,} runs, {cost['gpu_hours']:,.1f} H100-hours "
            "of training, estimated from their operations."
        )
    return "\n\n".join(filter(None, parts)) + "\n"


def gaps(artifact: Artifact, shown: Sequence[View]) -> Iterator[str]:
    """What has not run at each scale, with what it needs."""
    at = {view.scale: view for view in shown}
    for scale, needed in artifact.scales.items():
        needs = needed or "time only"
        rows = [row for row in at[scale].rows if not at[scale].runs(row)] if scale in at else []
        if scale not in at:
            yield f"scale {scale} (needs {needs})"
        elif rows and not artifact.source:
            names = ", ".join(display_name(label_of(row)) for row in rows)
            yield f"{names} at scale {scale} (needs {needs})"


def costs() -> dict[str, Any]:
    """What ``tape-exp paper cost`` wrote, by artifact."""
    path = folders.RESULTS / "costs.json"
    return json.loads(path.read_text(encoding="utf-8"))["artifacts"] if path.exists() else {}
