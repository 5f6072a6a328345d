"""The addition heatmaps: figures arithmetic, arithmetic_app and yarn of the paper."""

from pathlib import Path

import numpy as np

from tape_exp.drawing import heatmap
from tape_exp.paper import tables
from tape_exp.paper.artifacts import Artifact, Record
from tape_exp.paper.claims import Contest, over_seeds
from tape_exp.runs.evaluation import Heatmap

COLUMNS = ("model", "paper", "ours", "in distribution", "out of distribution", *tables.ORIGIN)


class Addition(Artifact):
    """One panel a model, the mean over its seeds; and a table of grid, in- and out-of-distribution
    means.
    """

    def contests(self, scale: str, records: dict[str, list[Record]]) -> list[Contest]:
        """The mean over the grid."""
        return self.versus(
            "", over_seeds(records, "test/exact_match"), published=self.paper()["values"]
        )

    def render(self, scale: str, records: dict[str, list[Record]], into: Path) -> list[Path]:
        """``figures/<name>-<scale>.png`` and ``tables/<name>-<scale>.{md,tex,csv}``."""
        paper = self.paper()
        rows, panels, digits = [], {}, set()
        for model in self.models:
            mine = records.get(model, [])
            columns = [
                [r["metrics"][f"{split}/exact_match"] for r in mine]
                for split in ("test", "id", "ood")
            ]
            published = paper["values"].get(model)
            rows.append(
                [
                    model,
                    "" if published is None else f"{published:.2f}",
                    *map(tables.mean_text, columns),
                    *tables.origin(mine, scale),
                ]
            )
            if mine:
                panels[f"{model}  {np.mean(columns[0]):.1f}"] = panel(mine)
                digits.add(
                    (
                        mine[0]["config"]["task"]["train_digits"],
                        mine[0]["config"]["task"]["test_digits"],
                    )
                )
        ours = ", ".join(f"{train} → {test} digits" for train, test in sorted(digits))
        caption = (
            f"{self.title}. Exact match (%), mean over the grid of operand lengths. Column paper: "
            f"{paper['setting']}, one seed "
            f"({paper['source']}). Columns ours: scale {scale}, {ours}, mean over seeds with its "
            "95 % interval. The trained "
            "quarter of the grid counts 25 points of the grid mean when it is solved. A + after a "
            "commit: uncommitted changes."
        )
        written = tables.write(into / "tables" / f"{self.name}-{scale}", COLUMNS, rows, caption)
        figure = into / "figures" / f"{self.name}-{scale}.png"
        return [heatmap.draw(panels, figure, f"{self.title} — scale {scale}, {ours}"), *written]


def panel(records: list[Record]) -> Heatmap:
    """The mean grid of several seeds."""
    grids = [np.array(r["heatmap"], dtype=float) for r in records]
    trained = records[0]["config"]["task"]["train_digits"]
    return Heatmap(
        np.mean(grids, axis=0),
        title="exact match (%)",
        row_label="digits of the first operand",
        column_label="digits of the second operand",
        trained=(trained, trained),
    )
