"""The search of learning rates at the ladder's first rung: as many for each method, and chosen
without a look at the test.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

import numpy as np
from omegaconf import DictConfig

from tape_exp.paper import tables
from tape_exp.paper.artifacts import Artifact, Record
from tape_exp.settings.compose import compose_config

COLUMNS = (
    "model",
    "rate",
    "factor",
    "validation loss",
    "in distribution",
    "out of distribution",
    "chosen",
    *tables.ORIGIN,
)


@dataclass
class Rates(Artifact):
    """A row for each model and learning rate; the one with the lowest validation loss is the
    model's choice.

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
        return f"python -m tape_exp.paper run {self.name} scale={self.scale} seeds=0,1"

    def tried(self) -> list[tuple[str, float, float]]:
        """(model, rate, factor), the rates of every model first."""
        found = [(model, rate, 1.0) for rate, model in product(self.rates, self.models)]
        return found + [
            (model, self.factors_at, factor)
            for model, factors in self.factors.items()
            for factor in factors
        ]

    def configs(
        self, scale: str, seeds: Sequence[int], extra: Sequence[str] = ()
    ) -> Iterator[tuple[str, DictConfig]]:
        """(label, config) of every run, seeds in the outer loop; none at another scale."""
        for seed, (model, rate, factor) in product(
            seeds if scale == self.scale else (), self.tried()
        ):
            words = [
                f"model={model}",
                f"task={self.task}",
                f"scale={scale}",
                f"seed={seed}",
                *self.overrides,
            ]
            words += [f"task.optim.lr={rate}", f"task.optim.position_lr={factor}", *extra]
            yield label(model, rate, factor), compose_config(words)

    def render(self, scale: str, records: dict[str, list[Record]], into: Path) -> list[Path]:
        """``tables/<name>-<scale>.{md,tex,csv}``."""
        rows = []
        for model in self.models:
            tried = sorted((rate, factor) for name, rate, factor in self.tried() if name == model)
            losses = {
                (rate, factor): float(
                    np.mean([r["metrics"]["val/loss"] for r in records[label(model, rate, factor)]])
                )
                for rate, factor in tried
                if label(model, rate, factor) in records
            }
            alike = {one: loss for one, loss in losses.items() if one[1] == 1.0}
            best = min(alike, key=lambda one: alike[one]) if len(alike) == len(self.rates) else None
            for rate, factor in tried:
                mine = records.get(label(model, rate, factor), [])
                means = [
                    tables.mean_text([r["metrics"][metric] for r in mine], digits)
                    for metric, digits in (
                        ("val/loss", 4),
                        ("id/exact_match", 2),
                        ("ood/exact_match", 2),
                    )
                ]
                chosen = "yes" if (rate, factor) == best else ""
                rows.append(
                    [model, f"{rate:g}", f"{factor:g}", *means, chosen, *tables.origin(mine, scale)]
                )
        caption = (
            f"{self.title}. Validation loss on sums of the trained lengths, exact match in "
            "percent; mean over seeds with its "
            "95 % interval. Factor: the rate of the positional encoding's parameters, as a "
            "multiple. Chosen: the lowest "
            "validation loss of the rates that every model tried, at factor 1; the test has no "
            "part in it."
        )
        return tables.write(into / "tables" / f"{self.name}-{scale}", COLUMNS, rows, caption)


def label(model: str, rate: float, factor: float) -> str:
    """``tape 0.001``, ``tape 0.001 × 10``."""
    return f"{model} {rate:g}" + (f" × {factor:g}" if factor != 1 else "")
