"""tab_quality_examples: the first questions of QuALITY, and what each model answers."""

from typing import TYPE_CHECKING, Any

from tape_exp.artifacts.artifact import Claim
from tape_exp.paper.outcomes import UNTESTED
from tape_exp.paper.verdicts import Verdict
from tape_exp.results.tables import Cell, Column, Table

if TYPE_CHECKING:
    from tape_exp.artifacts.view import View


def answers(view: "View") -> Table | None:
    """Show the first questions of QuALITY, and what each model answers."""
    samples: dict[str, dict[str, Any]] = {}
    for row in view.rows:
        runs = view.runs(row)
        if runs:
            samples[row.labels["model"]] = {sample["id"]: sample for sample in runs[0]["samples"]}
    rows: list[dict[str, Cell]] = []
    for name, sample in next(iter(samples.values()), {}).items():
        texts = {"question": sample["question"], "reference": sample["references"]}
        for model, of_model in samples.items():
            if name in of_model:
                texts[model] = of_model[name]["prediction"]
        rows.append({key: on_one_line(text) for key, text in texts.items()})
    columns = [Column("question"), Column("reference")]
    columns += [Column("{model}", "ours", {"model": model}) for model in samples]
    return Table(columns, rows, ["question"], view.caption()) if rows else None


def untested(view: "View", claim: Claim) -> Verdict:
    """Leave the claim, of two answers of large models, untested."""
    return Verdict(holds=UNTESTED)


def on_one_line(text: str) -> str:
    """Write a text as a cell: without line breaks, and without the pipe of Markdown's tables."""
    return " ".join(text.split()).replace("|", "/")
