"""Table bench of the paper: MMLU's four groups and ARC."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import mean

from tape_exp.paper import tables
from tape_exp.paper.artifacts import Record
from tape_exp.paper.claims import Contest, Measured, Verdict
from tape_exp.paper.extension import Methods


@dataclass
class Bench(Methods):
    """Accuracy of each method on each benchmark with lm-eval's standard error, the paper's beside
    ours.

    Args:
        columns: benchmark, by its name in ``task.tasks`` or as a group of one -> heading.
    """

    columns: dict[str, str] = field(default_factory=dict)

    def contests(self, scale: str, records: dict[str, list[Record]]) -> list[Contest]:
        """ARC's challenge set; of one seed the interval of its standard error over questions."""
        key, measured = "arc_challenge", {}
        for method, mine in records.items():
            found = []
            for metrics in (r["metrics"] for r in mine if f"benchmarks/{key}" in r["metrics"]):
                centre, error = (
                    metrics[f"benchmarks/{key}"],
                    metrics.get(f"benchmarks/{key}_stderr"),
                )
                found.append(
                    (
                        centre,
                        *(
                            (None, None)
                            if error is None
                            else (centre - 1.96 * error, centre + 1.96 * error)
                        ),
                    )
                )
            if found:
                measured[method] = Measured.of_runs(found)
        published = {method: row[key][0] for method, row in self.paper()["accuracy"].items()}
        return self.versus(self.columns[key], measured, published=published)

    def verdict(self, scale: str, records: dict[str, list[Record]]) -> Verdict:
        """That of the contests, which says where the questions are not the benchmark's."""
        found = super().verdict(scale, records)
        return (
            replace(found, ours=f"{found.ours} (generated questions)")
            if _generated(records)
            else found
        )

    def render(self, scale: str, records: dict[str, list[Record]], into: Path) -> list[Path]:
        """``tables/<name>-<scale>.{md,tex,csv}``: a row a method of ours or of the paper's."""
        paper = self.paper()
        head = ["method"]
        for column in self.columns.values():
            head += [f"paper {column}", f"ours {column}"]
        rows = []
        for method in dict.fromkeys([*self.methods, *paper["accuracy"]]):
            mine = records.get(method, [])
            cells = [method]
            for benchmark in self.columns:
                published = paper["accuracy"].get(method, {}).get(benchmark)
                cells.append("" if published is None else "{:.2f} ± {:.2f}".format(*published))
                cells.append(_accuracy(mine, f"benchmarks/{benchmark}"))
            rows.append([*cells, *tables.origin(mine, scale)])
        caption = (
            f"{self.title}, in percent ± lm-eval's standard error over questions. MMLU: the "
            "letter's accuracy, pooled over "
            "the subjects of a group. ARC: accuracy by log-likelihood a character (acc_norm). "
            f"Paper: {paper['setting']} "
            f"({paper['source']}). Ours: scale {scale}, {_questions(records)}; mean over seeds, "
            "which see the same questions, "
            "of accuracies and of standard errors."
        )
        return tables.write(
            into / "tables" / f"{self.name}-{scale}", [*head, *tables.ORIGIN], rows, caption
        )


def _accuracy(records: Sequence[Record], key: str) -> str:
    """Means over the runs; without an error where a run has none, of a single question."""
    found = [r["metrics"] for r in records if key in r["metrics"]]
    if not found:
        return ""
    text = f"{mean(metrics[key] for metrics in found):.2f}"
    errors = [metrics[f"{key}_stderr"] for metrics in found if f"{key}_stderr" in metrics]
    return f"{text} ± {mean(errors):.2f}" if len(errors) == len(found) else text


def _generated(records: dict[str, list[Record]]) -> bool:
    """Whether the questions were made by this code."""
    return any(
        record["config"]["task"]["source"] == "builtin"
        for mine in records.values()
        for record in mine
    )


def _questions(records: dict[str, list[Record]]) -> str:
    """Which questions the runs were asked."""
    tasks = [record["config"]["task"] for mine in records.values() for record in mine]
    told = []
    if _generated(records):
        told.append(
            "generated questions of four choices, guessed right in 25 percent, not comparable with "
            "the paper's"
        )
    limits = sorted({task["limit"] for task in tasks if task["limit"] is not None})
    if limits:
        told.append(f"the first {' or '.join(map(str, limits))} of each subject")
    return ", ".join(told) or "all questions"
