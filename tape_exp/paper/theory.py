"""Theorem 1 and the propositions, from the report of ``python -m tape_exp.theory``."""

import json
from pathlib import Path
from typing import Any

from tape_exp.drawing import heatmap
from tape_exp.paper import tables
from tape_exp.paper.artifacts import RESULTS, Artifact, Record
from tape_exp.theory import HOLDS, PROPERTIES


class Report(Artifact):
    """What is drawn from ``results/theory.json``. It has no scale and is shown once, under
    smoke.
    """

    def collect(self, scale: str, records: Any) -> dict[str, list[Record]]:
        """The report, if there is one."""
        path = RESULTS / "theory.json"
        return (
            {"theory": [json.loads(path.read_text())]} if scale == "smoke" and path.exists() else {}
        )

    def command(self, scale: str) -> str:
        """The measurement, which does not depend on a scale."""
        return "python -m tape_exp.theory"


class Theorem(Report):
    """Accuracy of the construction against length, as printed, partly and wholly repaired."""

    def render(self, scale: str, records: dict[str, list[Record]], into: Path) -> list[Path]:
        """``figures/<name>-<scale>.png`` and ``tables/<name>-<scale>.{md,tex,csv}``."""
        (record,) = records["theory"]
        found = record["theorem"]
        columns = ["construction", *(f"identities right {n} (%)" for n in found["lengths"][3::4])]
        columns += ["positions right (%)", "exact labels (%)", "margin", "commit"]
        commit = tables.origin([record], scale)[-1]
        rows = []
        for name, form in found["forms"].items():
            cells = [
                name,
                *(f"{share:.1f}" for share in form["identity"][3::4]),
                f"{form['all'][-1]:.2f}",
            ]
            rows.append([*cells, f"{form['exact']:.2f}", f"{form['margin']:.3g}", commit])
        every, longest = found["exhaustive"], found["lengths"][-1]
        caption = (
            f"{self.title}. {found['rows']} random sequences of {longest} positions; the label is "
            "1 at "
            f"{found['identities']} of them, and label 0 everywhere would be right at "
            f"{found['never'][-1]:.2f} %. Right: the "
            "nearer label; exact: exactly 0 or 1, as the theorem states. Margin: by how much the "
            "argument of the last hard "
            "sigmoid clears 1 or 0 at the worst position. With the strict mask alone the sign of "
            "that argument is right from "
            "the second position on, but its size is below 1 / i, and at the first position it is "
            "0. The repaired construction "
            f"labels {longest} positions in {found['seconds']:.2f} s on one thread "
            f"({record['hardware']['cpu']}) and is wrong "
            f"at {every['wrong']} of the {every['positions']} positions of all "
            f"{every['sequences']} sequences of up to "
            f"{every['swaps']} swaps."
        )
        picture = self._draw(found, into / "figures" / f"{self.name}-{scale}.png")
        return [
            picture,
            *tables.write(into / "tables" / f"{self.name}-{scale}", columns, rows, caption),
        ]

    def _draw(self, found: dict[str, Any], path: Path) -> Path:
        figure = heatmap.new_figure(9.5, 4.3, self.title)
        axes = figure.subplots(1, 2, sharey=True)
        for number, (name, form) in enumerate(found["forms"].items()):
            # Later lines are thinner, so that those below show where they agree.
            style: Any = {
                "color": f"C{number}",
                "linewidth": (9, 4, 2.5, 2, 1.5)[number],
                "marker": "osD^v"[number],
            }
            for axis, key in zip(axes, ("all", "identity"), strict=True):
                axis.plot(found["lengths"], form[key], label=name, markersize=5, **style)
        axes[0].plot(found["lengths"], found["never"], "k:", label="label 0 everywhere")
        for axis, title in zip(
            axes, ("all positions", "positions whose product is the identity"), strict=True
        ):
            axis.set_title(title)
            axis.set_xscale("log", base=2)
            axis.set_xticks(found["lengths"][1::2], map(str, found["lengths"][1::2]))
            axis.set_xlabel("length")
            axis.set_ylim(-4, 104)
            axis.grid(alpha=0.3)
        axes[0].set_ylabel("right labels (%)")
        figure.legend(
            *axes[0].get_legend_handles_labels(),
            loc="outside lower center",
            ncols=2,
            fontsize="small",
        )
        return heatmap.save(figure, path)


class Propositions(Report):
    """Which variant of TAPE satisfies which equation, with the measured error."""

    def render(self, scale: str, records: dict[str, list[Record]], into: Path) -> list[Path]:
        """``tables/<name>-<scale>.{md,tex,csv}``."""
        (record,) = records["theory"]
        commit = tables.origin([record], scale)[-1]
        names = {
            "permutation": "permutation",
            "rotation": "one O(R)",
            "rotations": "O(R) per block",
            "shift": "shift",
        }
        columns = ["model", "initial", *(names[name] for name in PROPERTIES), "commit"]
        rows = [
            [row["variant"], row["initial"], *(verdict(row[name]) for name in PROPERTIES), commit]
            for row in record["propositions"]
        ]
        caption = (
            f"{self.title}, worst relative error in fp64 over random weights and states. "
            "Permutation and one O(R), the same "
            "for all blocks, are what equations (perm_equiv) and (ortho_equiv) ask for: "
            "proposition 1. O(R) per block is what "
            "a shift by a real offset needs, since it turns every block by an angle of its own; "
            "shift is the change of a "
            "decoder's logits: proposition 2. An update that mixes blocks of different frequency "
            "(tape_full) satisfies both "
            "equations and breaks shift invariance; with R = 1 (tape_neither) the initial state's "
            "shift is no member of O(1)."
        )
        return tables.write(into / "tables" / f"{self.name}-{scale}", columns, rows, caption)


def verdict(error: float) -> str:
    """``yes (4e-16)`` where a property holds but for rounding, else ``no (0.12)``."""
    return f"yes ({error:.0e})" if error < HOLDS else f"no ({error:.2g})"
