"""The figure of addition by trained digits, fig_addition_trend, with the paper's own points."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tape_exp.artifacts.cells import Cells
from tape_exp.artifacts.figures import Draw
from tape_exp.drawing import plots
from tape_exp.drawing.plots import Line, Panel
from tape_exp.drawing.style import styles_of
from tape_exp.paper.special.addition_trend import paper_extra_lengths
from tape_exp.results.statistics import Value, lead, over_seeds
from tape_exp.settings.naming import display_name

FEWEST = 3  # points that a line may join
ByDigits = dict[int, Value]


def ladder(view: Cells, spec: Mapping[str, Any]) -> Draw | None:
    """Draw extra length by trained digits, and TAPE's paired lead, with the paper's points."""
    panels = panels_of(view)
    if not panels:
        return None
    title = f"{view.artifact.title} (open: the paper, one seed)"
    return partial(plots.curves, panels, title=title, shared=False)


def panels_of(view: Cells) -> list[Panel]:
    """Extra length by trained digits, and TAPE's paired lead over the rivals of the claim; of those
    two what has points of ours.
    """
    (claim,) = view.artifact.claims
    lengths = extra_lengths(view, claim.rows["size"])
    papers = {model: paper_extra_lengths().get(model, {}) for model in lengths}
    leads = {}
    papers_leads = {}
    for rival in claim.than or []:
        if {"tape", rival} <= lengths.keys():
            leads[rival] = leads_of(lengths["tape"], lengths[rival])
            papers_leads[rival] = differences(papers["tape"], papers[rival])
    every = [
        LadderPanel("beyond the trained digits", "extra length (fraction)", lengths, papers),
        LadderPanel("TAPE's lead over others, paired by seed", "difference", leads, papers_leads),
    ]
    return [panel.drawn() for panel in every if any(panel.ours.values())]


def extra_lengths(view: Cells, sizes: Sequence[str]) -> dict[str, ByDigits]:
    """Model -> trained digits -> extra length, of the rows of these sizes."""
    lengths: dict[str, ByDigits] = {}
    for row in view.rows:
        runs = [run for run in view.runs(row) if "extra_length" in run.metrics]
        if runs and row.labels["size"] in sizes:
            by_seed = {run.seed: Value(run.metrics["extra_length"]) for run in runs}
            digits = runs[0].config["task"]["train_digits"]
            lengths.setdefault(row.labels["model"], {})[digits] = over_seeds(by_seed)
    return lengths


def leads_of(ours: ByDigits, theirs: ByDigits) -> ByDigits:
    """Trained digits -> the paired difference; two pairs or one have no interval that is drawn."""
    leads: ByDigits = {}
    for digits in sorted(ours.keys() & theirs.keys()):
        difference = lead(ours[digits], theirs[digits])
        if difference is not None:
            leads[digits] = difference if difference.n > 2 else Value(difference.number)
    return leads


def differences(ours: Mapping[int, float], theirs: Mapping[int, float]) -> dict[int, float]:
    """Trained digits -> the difference of two of the paper's numbers."""
    return {n: ours[n] - theirs[n] for n in sorted(ours.keys() & theirs.keys())}


@dataclass(frozen=True)
class LadderPanel:
    """The points of one panel, ours and the paper's, by model and trained digits."""

    title: str
    quantity: str
    ours: Mapping[str, ByDigits]
    paper: Mapping[str, Mapping[int, float]]

    def drawn(self) -> Panel:
        """Draw the points of each model side by side."""
        styles = styles_of(self.ours)
        lines = []
        ticks: set[int] = set()
        for place, (model, values) in enumerate(self.ours.items()):
            beside = 1.025 ** (place - len(self.ours) / 2)
            if values:
                x = [digits * beside for digits in values]
                y = [value.number for value in values.values()]
                low = [None if value.pair else value.low for value in values.values()]
                high = [None if value.pair else value.high for value in values.values()]
                ours: Any = {"style": styles[model], "joined": len(x) >= FEWEST}
                lines.append(Line(display_name(model), x, y, low, high, **ours))
            papers = self.paper[model]
            x = [digits * beside for digits in papers]
            open_marks: Any = {"style": styles[model], "joined": False, "hollow": True}
            lines.append(Line("", x, [*papers.values()], **open_marks))
            ticks |= values.keys() | papers.keys()
        axis: Any = {"ticks": sorted(ticks), "log_x": True, "bars": True}
        return Panel(self.title, "trained digits", self.quantity, lines, **axis)
