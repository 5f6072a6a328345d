"""Word problems: accuracy of the state against the length of the word, which the paper has a
theorem on and no experiment.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig

from tape_exp.data.groups import GROUPS
from tape_exp.drawing import heatmap
from tape_exp.paper import tables
from tape_exp.paper.artifacts import Artifact, Record
from tape_exp.settings.compose import compose_config

MEASURES = {"state": "right states (%)", "word": "words with every state right (%)"}


@dataclass
class WordProblems(Artifact):
    """Curves and a table for every group, a line or row for every model.

    Args:
        groups: as ``task.group`` names them.
    """

    groups: list[str] = field(default_factory=list)

    def configs(
        self, scale: str, seeds: Sequence[int], extra: Sequence[str] = ()
    ) -> Iterator[tuple[str, DictConfig]]:
        """(model/group, config) of every run, seeds in the outer loop."""
        for seed in seeds:
            for group in self.groups:
                for model in self.models:
                    choice = [
                        f"model={model}",
                        f"task={self.task}",
                        f"task.group={group}",
                        f"scale={scale}",
                        f"seed={seed}",
                    ]
                    yield f"{model}/{group}", compose_config([*choice, *self.words(scale), *extra])

    def render(self, scale: str, records: dict[str, list[Record]], into: Path) -> list[Path]:
        """``figures/<name>-<scale>.png`` and ``tables/<name>-<scale>.{md,tex,csv}``."""
        task = next(iter(records.values()))[0]["config"]["task"]
        figure = self._curves(scale, records, task, into / "figures" / f"{self.name}-{scale}.png")
        return [figure, *self._table(scale, records, task, into)]

    def _curves(
        self, scale: str, records: dict[str, list[Record]], task: dict[str, Any], path: Path
    ) -> Path:
        """A row of two panels for each group: states, whole words. Bands reach from the worst seed
        to the best.
        """
        lengths = sorted(task["lengths"])
        figure = heatmap.new_figure(10.5, 3.2 * len(self.groups), f"{self.title} — scale {scale}")
        axes = figure.subplots(len(self.groups), 2, squeeze=False, sharex=True, sharey=True)
        for row, group in zip(axes, self.groups, strict=True):
            for axis, (measure, label) in zip(row, MEASURES.items(), strict=True):
                for number, model in enumerate(self.models):
                    mine = records.get(f"{model}/{group}")
                    if mine:
                        values = np.array(
                            [[r["metrics"][f"test/{measure}@{n}"] for n in lengths] for r in mine]
                        )
                        style: Any = {
                            "color": f"C{number}",
                            "marker": "osD^vPX*h"[number % 9],
                            "markersize": 4,
                        }
                        axis.plot(lengths, values.mean(0), label=model, **style)
                        axis.fill_between(
                            lengths,
                            values.min(0),
                            values.max(0),
                            color=f"C{number}",
                            alpha=0.12,
                            linewidth=0,
                        )
                if measure == "state":
                    axis.plot(
                        lengths, guesses(group, lengths), "--", color="grey", label="best guess"
                    )
                axis.axvline(task["train_letters"], color="grey", linestyle=":", linewidth=1)
                axis.set_xscale("log", base=2)
                axis.set_title(f"{group}: {label}")
                axis.set_ylim(-4, 104)
                axis.grid(alpha=0.3)
        for axis in axes[-1]:
            axis.set_xlabel("length (letters)")
            axis.set_xticks([n for n in lengths if n & (n - 1) == 0] or lengths, minor=False)
            axis.xaxis.set_major_formatter("{x:.0f}")
        handles = {line.get_label(): line for axis in axes[:, 0] for line in axis.get_lines()}
        shown = [name for name in (*self.models, "best guess") if name in handles]
        figure.legend(
            [handles[name] for name in shown], shown, loc="outside right upper", fontsize="small"
        )
        return heatmap.save(figure, path)

    def _table(
        self, scale: str, records: dict[str, list[Record]], task: dict[str, Any], into: Path
    ) -> list[Path]:
        """Means over seeds: states within the trained length and beyond, and states and words at it
        and at the longest.
        """
        trained, longest = task["train_letters"], max(task["lengths"])
        at_trained = max((n for n in task["lengths"] if n <= trained), default=longest)
        keys = {f"≤ {trained}": "id/state", f"> {trained}": "ood/state"}
        keys |= {f"words of {n}": f"test/word@{n}" for n in dict.fromkeys((at_trained, longest))}
        rows = []
        for group in self.groups:
            for model in self.models:
                mine = records.get(f"{model}/{group}", [])
                cells = [
                    tables.mean_text([r["metrics"][key] for r in mine if key in r["metrics"]])
                    for key in keys.values()
                ]
                rows.append([group, model, "", *cells, *tables.origin(mine, scale)])
        caption = (
            f"{self.title}. Right states (%) after up to {trained} letters, the trained length, "
            "and after more, up to "
            f"{longest}; words of a length whose states are all right (%). The paper proves what "
            "TAPE can express and trains "
            f"nothing: column paper is empty. Ours: scale {scale}, {task['words']} test words, "
            "mean over seeds with its 95 % "
            "interval. In the figure bands reach from the worst seed to the best, and the best "
            "guess knows the place alone."
        )
        columns = ["group", "model", "paper", *keys, *tables.ORIGIN]
        return tables.write(into / "tables" / f"{self.name}-{scale}", columns, rows, caption)


def guesses(group: str, lengths: Sequence[int]) -> list[float]:
    """Percent of right states in each bucket for the best answer that knows the place and not the
    letters.
    """
    guess, begins = 100 * GROUPS[group]().guess(lengths[-1]), [0, *lengths[:-1]]
    return [float(guess[begin:end].mean()) for begin, end in zip(begins, lengths, strict=True)]
