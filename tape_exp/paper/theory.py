"""Theorem 1 and the propositions, from the report of ``python -m tape_exp.theory``."""

from dataclasses import dataclass
from typing import Any

from tape_exp.drawing.plots import PERCENT, Line, Panel
from tape_exp.drawing.style import REFERENCE, categorical
from tape_exp.paper.artifacts import RESULTS, Artifact, Record, Records
from tape_exp.paper.figure_kinds import Curves, Figure
from tape_exp.paper.records import read_or_leave_out
from tape_exp.paper.tables import Column, Row, Table, columns, commits
from tape_exp.paper.values import Value
from tape_exp.theory import HOLDS, PROPERTIES

WIDTHS = (
    5,
    2.6,
    1.6,
    1.2,
    0.8,
)  # later lines are thinner, so that those below show where they agree


@dataclass(kw_only=True)
class TheoryArtifact(Artifact):
    """What ``results/theory.json`` says. It has no scale and is shown once, under smoke."""

    def collect(self, scale: str, records: Any) -> Records:
        """The report, if there is one."""
        path = RESULTS / "theory.json"
        if scale != "smoke" or not path.exists():
            return {}
        return read_or_leave_out({"theory": path})

    def place(self, scale: str) -> str:
        """No scale."""
        return ""

    def command(self, scale: str) -> str:
        """The measurement, which does not depend on a scale."""
        return "tape-exp theory --record"


@dataclass(kw_only=True)
class Theorem(TheoryArtifact):
    """Accuracy of the construction against length, as printed, partly and wholly repaired."""

    def cells(self, scale: str, records: Records) -> Table:
        """A row for each form of the construction."""
        lengths = _theorem(records)["lengths"][3::4] if records else []
        forms = _theorem(records)["forms"] if records else {}
        rows: list[Row] = []
        for name, form in forms.items():
            row: Row = {"construction": name, "commit": commits([_record(records)])}
            for n, share in zip(lengths, form["identity"][3::4], strict=True):
                row["identities right", n] = Value(share, form="{number:.1f}")
            row |= {"positions right": Value(form["all"][-1]), "exact labels": Value(form["exact"])}
            row["margin"] = Value(form["margin"], form="{number:.3g}")
            rows.append(row)
        head = [
            Column("construction"),
            *(Column(("identities right", n), unit="%") for n in lengths),
        ]
        head += [Column(name, unit="%") for name in ("positions right", "exact labels")]
        return Table([*head, *columns(["margin", "commit"])], rows, label="construction")

    def caption(self, scale: str, records: Records) -> str:
        """What counts as right, and how far the repaired construction was tested."""
        theorem, longest = _theorem(records), _theorem(records)["lengths"][-1]
        every = theorem["exhaustive"]
        return (
            f"{self.title}. {theorem['rows']} random sequences of {longest} positions; the label "
            f"is 1 at {theorem['identities']} of them, and label 0 everywhere would be right at "
            f"{theorem['never'][-1]:.2f} %. Right: the nearer label; exact: exactly 0 or 1, as the "
            "theorem states. Margin: by how much the argument of the last hard sigmoid clears 1 or "
            "0 at the worst position. With the strict mask alone the sign of that argument is "
            "right from the second position on, but its size is below 1 / i, and at the first "
            f"position it is 0. The repaired construction labels {longest} positions in "
            f"{theorem['seconds']:.2f} s on one thread ({_record(records)['hardware']['cpu']}) and "
            f"is wrong at {every['wrong']} of the {every['positions']} positions of all "
            f"{every['sequences']} sequences of up to {every['swaps']} swaps."
        )

    def figures(self, scale: str, records: Records) -> list[Figure]:
        """All positions, and those whose product is the identity."""
        theorem = _theorem(records)
        lengths = theorem["lengths"]
        panels = []
        for title, key, ylabel in (
            ("all positions", "all", "right labels (%)"),
            ("positions whose product is the identity", "identity", "right labels (%)"),
        ):
            lines = [
                Line(name, lengths, form[key], style=categorical(number), width=WIDTHS[number])
                for number, (name, form) in enumerate(theorem["forms"].items())
            ]
            if key == "all":
                lines.append(Line("label 0 everywhere", lengths, theorem["never"], style=REFERENCE))
            axes: Any = {"ticks": lengths[1::2], "log_x": True, "ylim": PERCENT}
            panels.append(Panel(title, "length (positions)", ylabel, lines, **axes))
        return [Curves(self.title, panels)]


def _record(records: Records) -> Record:
    return records["theory"][0]


def _theorem(records: Records) -> dict[str, Any]:
    return _record(records)["theorem"]


@dataclass(kw_only=True)
class Propositions(TheoryArtifact):
    """Which variant of TAPE satisfies which equation, with the measured error."""

    def cells(self, scale: str, records: Records) -> Table:
        """A row for each variant and initial state."""
        names = {"rotation": "one O(R)", "rotations": "O(R) per block"}
        rows: list[Row] = []
        for measured in _record(records)["propositions"] if records else []:
            row: Row = {"model": measured["variant"], "initial": measured["initial"]}
            row |= {name: satisfied(measured[name]) for name in PROPERTIES}
            rows.append(row | {"commit": commits([_record(records)])})
        head = [*columns(["model", "initial"]), *(Column(p, names.get(p, "")) for p in PROPERTIES)]
        return Table([*head, Column("commit")], rows)

    def caption(self, scale: str, records: Records) -> str:
        """Which property is which equation of the paper."""
        return (
            f"{self.title}, worst relative error in fp64 over random weights and states. "
            "Permutation and one O(R), the same for all blocks, are what equations (perm_equiv) "
            "and (ortho_equiv) ask for: proposition 1. O(R) per block is what a shift by a real "
            "offset needs, since it turns every block by an angle of its own; shift is the change "
            "of a decoder's logits: proposition 2. An update that mixes blocks of different "
            "frequency (TAPE, full mixing) satisfies both equations and breaks shift invariance; "
            "with R = 1 (TAPE with neither) the initial state's shift is no member of O(1)."
        )


def satisfied(error: float) -> Value:
    """An error, written ``yes (4e-16)`` where it is of rounding only, else ``no (0.12)``."""
    return Value(error, form="yes ({number:.0e})" if error < HOLDS else "no ({number:.2g})")
