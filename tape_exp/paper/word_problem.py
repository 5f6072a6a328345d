"""Word problems: accuracy against word length, for which the paper has only a theorem."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from tape_exp.data.groups import GROUPS
from tape_exp.drawing.plots import PERCENT, Line, Panel, mean_line
from tape_exp.drawing.style import REFERENCE, styles_of
from tape_exp.paper.artifacts import Records, RunArtifact, task_of
from tape_exp.paper.figure_kinds import Curves, Figure
from tape_exp.paper.tables import ORIGIN, Row, Table, columns, origin
from tape_exp.paper.values import NOTHING, mean_of
from tape_exp.settings.naming import display_name

MEASURES = {"state": "right states", "word": "words with every state right"}
UNITS = {"state": "right states (%)", "word": "right words (%)"}


@dataclass(kw_only=True)
class WordProblems(RunArtifact):
    """Curves and a table for every group, a line or row for every model.

    Args:
        groups: as ``task.group`` names them.
    """

    groups: list[str] = field(default_factory=list)

    def cases(self, scale: str) -> Iterator[tuple[str, list[str]]]:
        """Every group and model."""
        for group, (model, words) in product(self.groups, super().cases(scale)):
            yield f"{model}/{group}", [*words, f"task.group={group}"]

    def cells(self, scale: str, records: Records) -> Table:
        """A row for each group and model: means over seeds of right states and right words."""
        metrics = _metrics(task_of(records)) if records else {}
        rows: list[Row] = []
        for group in self.groups:
            for model in self.models:
                runs = records.get(f"{model}/{group}", [])
                row: Row = {"group": group, "model": model, "paper": NOTHING}
                for name, key in metrics.items():
                    row[name] = mean_of(runs, key)
                rows.append(row | origin(runs, scale))
        head = columns(["group", "model", "paper", *metrics])
        return Table([*head, *ORIGIN], rows, part="group", quantity="right (%)")

    def caption(self, scale: str, records: Records) -> str:
        """Which lengths the columns hold."""
        task = task_of(records)
        return (
            f"{self.title}. Right states (%) after up to {task['train_letters']} letters, the "
            f"trained length, and after more, up to {max(task['lengths'])}; words of a length "
            "whose states are all right (%). The paper proves what TAPE can express and trains "
            f"nothing: column paper is empty. Ours: scale {scale}, {task['words']} test words, "
            "mean over seeds with its 95 % interval. In the figure bands reach from the worst seed "
            "to the best, and the best guess knows only the place in the word."
        )

    def figures(self, scale: str, records: Records) -> list[Figure]:
        """Two panels for each group, states and whole words; bands span worst to best seed."""
        task = task_of(records)
        lengths = sorted(task["lengths"])
        ticks = [n for n in lengths if n & (n - 1) == 0] or lengths
        panels = []
        for group in self.groups:
            for measure, label in MEASURES.items():
                lines = []
                for model, look in styles_of(self.models).items():
                    if runs := records.get(f"{model}/{group}"):
                        keys = [f"test/{measure}@{n}" for n in lengths]
                        values = [[r["metrics"][key] for key in keys] for r in runs]
                        lines.append(mean_line(display_name(model), lengths, values, look))
                if measure == "state":
                    guess = guesses(group, lengths)
                    lines.append(Line("best guess", lengths, guess, style=REFERENCE))
                axes: Any = {"marks": [task["train_letters"]], "ticks": ticks}
                axes |= {"log_x": True, "ylim": PERCENT}
                title, ylabel = f"{name_of(group)}: {label}", UNITS[measure]
                panels.append(Panel(title, "length (letters)", ylabel, lines, **axes))
        return [Curves(f"{self.title} — scale {scale}", panels, options={"height": 1.75})]


def name_of(group: str) -> str:
    """What a group is called: ``S5``, ``parity``."""
    return group.upper() if group[-1].isdigit() else group


def _metrics(task: dict[str, Any]) -> dict[str, str]:
    """Heading -> metric of the columns of ours."""
    trained, longest = task["train_letters"], max(task["lengths"])
    at_trained = max((n for n in task["lengths"] if n <= trained), default=longest)
    metrics = {f"≤ {trained}": "id/state", f"> {trained}": "ood/state"}
    return metrics | {f"words of {n}": f"test/word@{n}" for n in (at_trained, longest)}


def guesses(group: str, lengths: Sequence[int]) -> list[float]:
    """The best accuracy, in %, of an answer that knows only the place, in each bucket."""
    guess, begins = 100 * GROUPS[group]().guess(lengths[-1]), [0, *lengths[:-1]]
    return [float(guess[begin:end].mean()) for begin, end in zip(begins, lengths, strict=True)]
