"""What a caption adds by itself: how records differ, what they read, and what marks mean."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tape_exp.results.record import Record
from tape_exp.results.store import commits, varying
from tape_exp.settings.naming import display_name

if TYPE_CHECKING:
    from tape_exp.paper.view import View

KNOWS_DIGITS = "†"
TWO_SEEDS = "Where there are two seeds, brackets hold the value of each."


def notes(view: "View", runs: Mapping[str, list[Record]]) -> list[str]:
    """What a caption adds: two seeds, unplanned differences between rows, corpora, commits."""
    every = [*{run["run"]: run for found in runs.values() for run in found}.values()]
    sentences = []
    claims = view.artifact.claims
    last = view.dimensions()[-1:]
    if any(len({run["seed"] for run in found}) == 2 for found in runs.values()):
        sentences.append(TWO_SEEDS)
    shown = {row.labels[name] for row in view.rows for name in last}
    named = [name for claim in claims for name in claim.get("better", ["tape"])]
    rivals = dict.fromkeys(name for claim in claims for name in claim.get("than", shown))
    if rivals and shown - {*rivals, *named}:
        tested = listed([*map(display_name, (name for name in rivals if name not in named))])
        one = "The claim is" if len(claims) == 1 else "Claims are"
        sentences.append(f"{one} tested against {tested} only.")
    several = any(len({run["seed"] for run in found}) > 1 for found in runs.values())
    if several and any(spec["kind"] in ("lengths", "losses") for spec in view.artifact.figures):
        sentences.append("In the figure bands reach from the lowest seed to the highest.")
    if any(run.get("knows_digits") for run in every):
        sentences.append(
            f"{KNOWS_DIGITS} is told which tokens are digits, and is no rival of the others."
        )
    if replaced := sorted({name for run in every for name in replaced_corpora(run)}):
        sentences.append(
            f"In place of {listed(replaced)}: text that Python carries, from few files and the "
            "same for all seeds, so that intervals leave out what other text would give."
        )
    if same_data(every) is False:
        sentences.append("Models of one seed read different data: they CANNOT BE COMPARED.")
    elif any("text" in run["config"]["task"] for run in every) and same_data(every) is None:
        sentences.append("Whether the runs of a seed read the same data is not recorded for all.")
    declared = {word.partition("=")[0] for row in view.rows for word in row.words}
    declared |= {w.partition("=")[0] for c in view.columns for w in c.spec.get("where", [])}
    if differ := varying([*runs.values()], declared | {"model", "precision"}):
        text = "; ".join(f"{key} ({', '.join(map(str, v))})" for key, v in sorted(differ.items()))
        sentences.append(f"Rows also differ in {text}.")
    threads = sorted({n for run in every if (n := run.get("hardware", {}).get("threads"))})
    if len(threads) > 1:
        sentences.append(f"The runs had {listed([*map(str, threads)])} threads.")
    if "+" in commits(every):
        sentences.append("+ after a commit: uncommitted changes.")
    return sentences


def same_data(runs: Sequence[Record]) -> bool | None:
    """Whether all runs of a seed and a task read the same data; None where records do not tell."""
    seen: dict[tuple[int, str], set[tuple[Any, ...]]] = {}
    for run in runs:
        seen.setdefault((run["seed"], run["config"]["task"]["name"]), set()).add(run.data)
    for data in seen.values():
        versions = [version for _, version, _ in data if version is not None]
        if len(versions) > len({*versions}):
            return False
    return True if all(len(data) == 1 for data in seen.values()) else None


def replaced_corpora(run: Record) -> list[str]:
    """The corpora in whose place a run read built-in text."""
    task = run["config"]["task"]
    texts = {task.get("name"): task.get("text"), **(task.get("tests") or {})}
    return [
        text.get("name", name)
        for name, text in texts.items()
        if isinstance(text, dict) and text.get("source") == "builtin"
    ]


def listed(words: Sequence[str]) -> str:
    """``a, b and c``."""
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))
