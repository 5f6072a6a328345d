"""Figure tune_retrieval of the paper: pass key retrieval by length and by depth."""

from pathlib import Path
from typing import Any

import numpy as np

from tape_exp.drawing import heatmap
from tape_exp.paper import tables
from tape_exp.paper.artifacts import Record
from tape_exp.paper.claims import Contest, Measured
from tape_exp.paper.extension import Methods
from tape_exp.runs.evaluation import Heatmap, depth_heatmap, wilson

Point = tuple[float, float, float]  # accuracy and the ends of its interval


class Passkey(Methods):
    """Accuracy against length, ours beside the paper's; a heatmap of depth and length for each
    method; a table.
    """

    def contests(self, scale: str, records: dict[str, list[Record]]) -> list[Contest]:
        """Accuracy at the longest length; of one seed Wilson's interval over its trials."""
        paper, longest = self.paper(), 0
        measured: dict[str, Measured] = {}
        for method, mine in records.items():
            longest = max(mine[0]["config"]["task"]["lengths"])
            found = [points([record], [longest])[0] for record in mine]
            measured[method] = Measured.of_runs(found)
        published = {method: row[-1] for method, row in paper["accuracy"].items()}
        where = f"{paper['lengths'][-1]} tokens"
        return self.versus(
            f"{longest} tokens", measured, published=published, published_where=where, digits=0
        )

    def render(self, scale: str, records: dict[str, list[Record]], into: Path) -> list[Path]:
        """``figures/<name>-<scale>.png``, ``figures/<name>-<scale>-depth.png`` and
        ``tables/<name>-<scale>.{md,tex,csv}``.
        """
        paper = self.paper()
        lengths = sorted(next(iter(records.values()))[0]["config"]["task"]["lengths"])
        ours = {method: points(mine, lengths) for method, mine in records.items()}
        figure = into / "figures" / f"{self.name}-{scale}.png"
        trained = {r["config"]["task"]["train_length"] for mine in records.values() for r in mine}
        curves = self._curves(scale, ours, lengths, sorted(trained), paper, figure)
        panels = {
            f"{method}  {np.mean([p for p, _, _ in ours[method]]):.1f}": panel(records[method])
            for method in ours
        }
        depth = heatmap.draw(
            panels,
            figure.with_stem(f"{figure.stem}-depth"),
            f"{self.title}, by depth — scale {scale}",
        )
        return [curves, depth, *self._table(scale, records, ours, lengths, paper, into)]

    def _curves(
        self,
        scale: str,
        ours: dict[str, list[Point]],
        lengths: list[int],
        trained: list[int],
        paper: dict[str, Any],
        path: Path,
    ) -> Path:
        """A line a method with its interval on the left, the paper's in the same colours on the
        right.
        """
        figure = heatmap.new_figure(9.5, 3.6, self.title)
        left, right = figure.subplots(1, 2, sharey=True)
        for number, method in enumerate(self.models):
            style: Any = {"color": f"C{number}", "marker": "osD^vPX*"[number % 8], "markersize": 5}
            if method in ours:
                centre, low, high = np.array(ours[method]).T
                left.plot(lengths, centre, label=method, **style)
                left.fill_between(lengths, low, high, color=style["color"], alpha=0.12, linewidth=0)
            published = paper["accuracy"].get(method)
            if published:
                right.plot(paper["lengths"], published, "--", label=method, **style)
        for length in trained:
            left.axvline(length, color="grey", linestyle=":", linewidth=1)
        for axis, title, ticks in (
            (left, f"ours, scale {scale}", lengths),
            (right, "paper, Llama-2-7B", paper["lengths"]),
        ):
            axis.set_title(title)
            axis.set_xlabel("length (tokens)")
            axis.set_xticks(ticks)
            axis.set_ylim(-4, 104)
            axis.grid(alpha=0.3)
            if axis.get_legend_handles_labels()[0]:
                axis.legend(loc="best", fontsize="small")
        left.set_ylabel("accuracy (%)")
        return heatmap.save(figure, path)

    def _table(
        self,
        scale: str,
        records: dict[str, list[Record]],
        ours: dict[str, list[Point]],
        lengths: list[int],
        paper: dict[str, Any],
        into: Path,
    ) -> list[Path]:
        columns = ["method"]
        for theirs, length in zip(paper["lengths"], lengths, strict=True):
            columns += [f"paper {theirs}", f"ours {length}"]
        rows = []
        for method in self.models:
            cells = [method]
            for place in range(len(lengths)):
                published = paper["accuracy"].get(method)
                cells.append(f"{published[place]:.0f}" if published else "")
                cells.append(
                    "{:.1f} [{:.0f}, {:.0f}]".format(*ours[method][place]) if method in ours else ""
                )
            rows.append([*cells, *tables.origin(records.get(method, []), scale)])
        task = next(iter(records.values()))[0]["config"]["task"]
        caption = (
            f"{self.title}. Exact match (%) of the key by length in tokens. Column paper: "
            f"{paper['setting']} "
            f"({paper['source']}). Ours: scale {scale}, {task['trials']} trials a length and seed, "
            "seeds pooled, with Wilson's "
            f"95 % interval; models trained at {task['train_length']} tokens or extended from "
            "there."
        )
        return tables.write(
            into / "tables" / f"{self.name}-{scale}", [*columns, *tables.ORIGIN], rows, caption
        )


def points(records: list[Record], lengths: list[int]) -> list[Point]:
    """Accuracy at each length and Wilson's interval, over the trials of all seeds together."""
    found = []
    trials = sum(r["config"]["task"]["trials"] for r in records)
    for length in lengths:
        shares = [
            r["metrics"][f"passkey/accuracy@{length}"] * r["config"]["task"]["trials"]
            for r in records
        ]
        correct = round(sum(shares) / 100)
        found.append((100 * correct / trials, *wilson(correct, trials)))
    return found


def panel(records: list[Record]) -> Heatmap:
    """The mean of several seeds."""
    task = records[0]["config"]["task"]
    grids = [np.array(r["heatmap"], dtype=float) for r in records]
    return depth_heatmap(np.mean(grids, axis=0), sorted(task["lengths"]), task["train_length"])
