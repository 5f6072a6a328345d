"""The search of learning rates at the first rung: as many for each method, blind to the test."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import product
from statistics import mean

from tape_exp.drawing.plots import Panel, mean_line
from tape_exp.drawing.style import DASHES, MARKERS, LineStyle, sequential
from tape_exp.paper.artifacts import Records, RunArtifact
from tape_exp.paper.figure_kinds import Curves, Figure
from tape_exp.paper.tables import ORIGIN, Row, Table, columns, origin
from tape_exp.paper.values import NOTHING, Value, mean_of
from tape_exp.settings.naming import display_name

METRICS = {
    "validation loss": ("val/loss", 4),
    "in distribution": ("id/exact_match", 2),
    "out of distribution": ("ood/exact_match", 2),
}


@dataclass(kw_only=True)
class Rates(RunArtifact):
    """A row for each model and learning rate; the lowest validation loss is the model's choice.

    Args:
        rates: learning rates, tried for every model.
        factors: of the positional encoding's rate (``task.optim.position_lr``), tried for some
            models at ``factors_at``.
        factors_at: a learning rate.
        scale: the only scale that it is of.
    """

    rates: list[float] = field(default_factory=list)
    factors: dict[str, list[float]] = field(default_factory=dict)
    factors_at: float = 1e-3
    scale: str = "rung5"

    def scales(self) -> tuple[str, ...]:
        """One rung of the ladder."""
        return (self.scale,)

    def command(self, scale: str) -> str:
        """What runs everything that is missing; it depends on no scale."""
        return f"tape-exp paper run {self.name} scale={self.scale} seeds=0,1"

    def tried(self) -> list[tuple[str, float, float]]:
        """(model, rate, factor), the rates of every model first."""
        rates = [(model, rate, 1.0) for rate, model in product(self.rates, self.models)]
        return rates + [
            (model, self.factors_at, factor)
            for model, factors in self.factors.items()
            for factor in factors
        ]

    def cases(self, scale: str) -> Iterator[tuple[str, list[str]]]:
        """Every model and rate; none at another scale."""
        for model, rate, factor in self.tried() if scale == self.scale else []:
            words = [f"task.optim.lr={rate}", f"task.optim.position_lr={factor}"]
            yield label(model, rate, factor), [f"model={model}", f"task={self.task}", *words]

    def cells(self, scale: str, records: Records) -> Table:
        """A row for each model, rate and factor."""
        rows: list[Row] = []
        for model in self.models:
            tried = sorted((rate, factor) for name, rate, factor in self.tried() if name == model)
            best = self.choice(model, records)
            for rate, factor in tried:
                runs = records.get(label(model, rate, factor), [])
                row: Row = {"model": model, "chosen": NOTHING}
                if (rate, factor) == best:
                    edge = rate in (min(self.rates), max(self.rates))
                    row["chosen"] = "yes, at the edge" if edge else "yes"
                row |= {
                    key: Value(n, form="{number:g}")
                    for key, n in (("rate", rate), ("factor", factor))
                }
                for name, (metric, digits) in METRICS.items():
                    row[name] = mean_of(runs, metric, digits)
                rows.append(row | origin(runs, scale))
        head = columns(["model", "rate", "factor", *METRICS, "chosen"])
        return Table([*head, *ORIGIN], rows)

    def choice(self, model: str, records: Records) -> tuple[float, float] | None:
        """The rate of lowest validation loss, at factor 1; None unless all ran the same seeds."""
        losses = {
            (rate, 1.0): {
                r["seed"]: r["metrics"]["val/loss"]
                for r in records.get(label(model, rate, 1.0), [])
                if "val/loss" in r["metrics"]
            }
            for rate in self.rates
        }
        seeds = {frozenset(by_seed) for by_seed in losses.values()}
        if len(seeds) != 1 or not all(seeds):
            return None
        return min(losses, key=lambda tried: mean(losses[tried].values()))

    def caption(self, scale: str, records: Records) -> str:
        """What the choice depends on."""
        return (
            f"{self.title}, in half of the steps that a run of this rung has. Validation loss on "
            "sums of the trained lengths, exact match in percent; mean over seeds. Factor: the "
            "rate of the positional encoding's parameters, as a multiple. Chosen: the lowest "
            "validation loss of the rates that every model tried, at factor 1, once all of a "
            "model's rates have run with the same seeds; the test has no part in it. At the edge "
            "of the rates that were tried, the best may lie beyond. In the figure bands reach from "
            "the lowest seed to the highest."
        )

    def figures(self, scale: str, records: Records) -> list[Figure]:
        """A panel for each model: loss at the steps common to all seeds, a line for each rate."""
        looks = self._looks()
        panels = []
        for model in self.models:
            lines = []
            tried = [(rate, factor) for name, rate, factor in self.tried() if name == model]
            for rate, factor in tried:
                name = label(model, rate, factor)
                curves = [
                    dict(zip(curve["step"], curve["value"], strict=True))
                    for r in records.get(name, [])
                    if (curve := r.get("curves", {}).get("val/loss"))
                ]
                if steps := sorted(set.intersection(*map(set, curves))) if curves else []:
                    values = [[curve[step] for step in steps] for curve in curves]
                    lines.append(mean_line(shown(rate, factor), steps, values, looks[rate, factor]))
            if lines:
                named = display_name(model)
                panels.append(Panel(named, "step", "validation loss (nats)", lines, log_y=True))
        title = f"{self.title} — scale {scale}"
        return [Curves(title, panels, options={"columns": 3, "height": 1.75})] if panels else []

    def _looks(self) -> dict[tuple[float, float], LineStyle]:
        """(rate, factor) -> its look: a colour for each rate, from low to high, and a marker for
        each factor.
        """
        factors = sorted({factor for _, _, factor in self.tried()})
        return {
            (rate, factor): replace(
                sequential(n, len(self.rates), MARKERS[m]), dash=DASHES[m % len(DASHES)]
            )
            for n, rate in enumerate(sorted(self.rates))
            for m, factor in enumerate(factors)
        }


def label(model: str, rate: float, factor: float) -> str:
    """``tape 0.001``, ``tape 0.001 × 10``."""
    return f"{model} {named(rate, factor)}"


def named(rate: float, factor: float) -> str:
    """``0.001``, ``0.001 × 10``, of the positional encoding's parameters."""
    return f"{rate:g}" + (f" × {factor:g}" if factor != 1 else "")


def shown(rate: float, factor: float) -> str:
    """What a legend says of them: ``rate 0.001, positions × 10``."""
    return f"rate {rate:g}" + (f", positions × {factor:g}" if factor != 1 else "")
