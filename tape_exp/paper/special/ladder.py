"""The figure of addition by trained digits, fig_addition_trend, with the paper's own points."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from tape_exp.artifacts.cells import Cells
from tape_exp.artifacts.figures.shared import FEWEST, Draw
from tape_exp.drawing import plots
from tape_exp.drawing.plots import Line, Panel
from tape_exp.drawing.style import LineStyle, styles_of
from tape_exp.paper.special.addition_trend import paper_extra_lengths
from tape_exp.results.statistics import Value, lead, over_seeds
from tape_exp.settings.naming import display_name

ByDigits = dict[int, Value]


def ladder(cells: Cells) -> Draw | None:
    """Draw extra length by trained digits, and TAPE's paired lead, with the paper's points."""
    panels = panels_of(cells)
    if not panels:
        return None
    title = f"{cells.artifact.title} (open: the paper, one seed)"
    return partial(plots.curves, panels, title=title, shared=False)


def panels_of(cells: Cells) -> list[Panel]:
    """Extra length by trained digits, and TAPE's paired lead over the rivals of the claim; of those
    two what has points of ours.
    """
    (claim,) = cells.artifact.claims
    lengths = extra_lengths(cells, claim.rows["size"])
    papers = {model: paper_extra_lengths().get(model, {}) for model in lengths}
    leads = {}
    papers_leads = {}
    for rival in claim.than or []:
        if {"tape", rival} <= lengths.keys():
            leads[rival] = leads_of(lengths["tape"], lengths[rival])
            papers_leads[rival] = differences(papers["tape"], papers[rival])
    length = LadderPanel(
        "how far beyond the trained digits sums are solved",
        "extra length (fraction of the trained)",
        lengths,
        papers,
    )
    lead = LadderPanel(
        "TAPE's lead over others, paired by seed", "difference in extra length", leads, papers_leads
    )
    panels = []
    for panel in (length, lead):
        if any(panel.ours.values()):
            panels.append(panel.drawn())
    return panels


def extra_lengths(cells: Cells, sizes: Sequence[str]) -> dict[str, ByDigits]:
    """Model -> trained digits -> extra length, of the rows of these sizes."""
    lengths: dict[str, ByDigits] = {}
    for row in cells.rows:
        runs = [run for run in cells.runs(row) if "extra_length" in run.metrics]
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
        """Draw the points of each model side by side: ours filled, and the paper's open."""
        styles = styles_of(self.ours)
        lines = []
        ticks: set[int] = set()
        for place, (model, ours) in enumerate(self.ours.items()):
            beside = 1.025 ** (place - len(self.ours) / 2)
            papers = self.paper[model]
            if ours:
                lines.append(line_of_ours(display_name(model), ours, beside, styles[model]))
            lines.append(
                Line(
                    name="",
                    x=[digits * beside for digits in papers],
                    y=[*papers.values()],
                    style=styles[model],
                    joined=False,
                    hollow=True,
                )
            )
            ticks |= ours.keys() | papers.keys()
        return Panel(
            self.title,
            "trained digits",
            self.quantity,
            lines,
            ticks=sorted(ticks),
            log_x=True,
            bars=True,
        )


def line_of_ours(name: str, values: ByDigits, beside: float, style: LineStyle) -> Line:
    """Draw our values, each a little beside its digits; those of two seeds have no interval."""
    x = []
    y = []
    low = []
    high = []
    for digits, value in values.items():
        x.append(digits * beside)
        y.append(value.number)
        low.append(None if value.pair else value.low)
        high.append(None if value.pair else value.high)
    return Line(name, x, y, low, high, style, joined=len(x) >= FEWEST)
