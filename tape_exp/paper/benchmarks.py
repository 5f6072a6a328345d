"""Table bench of the paper: MMLU's four groups and ARC."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import mean

from tape_exp.paper.artifacts import Record, Records
from tape_exp.paper.claims import Contest, Verdict
from tape_exp.paper.extension import Methods
from tape_exp.paper.tables import ORIGIN, Column, Row, Table, origin
from tape_exp.paper.values import NOT_REPORTED, NOT_RUN, Missing, Value, known, over_runs

SEVERAL = "{number:.2f} ± {half:.2f}"


CHANCE = 25.0  # percent, of one of four choices


@dataclass(kw_only=True)
class Bench(Methods):
    """The accuracy of each method on each benchmark with lm-eval's error, next to the paper's.

    Args:
        columns: benchmark, by its name in ``task.tasks`` or as a group of one -> heading.
    """

    columns: dict[str, str] = field(default_factory=dict)

    def contests(self, scale: str, records: Records) -> list[Contest]:
        """ARC's challenge set, with 95 % intervals over questions and, of several seeds, their
        spread.
        """
        benchmark = "arc_challenge"
        # The table's cells hold standard errors over questions, which all seeds share; what is
        # compared are 95 % intervals.
        measured = {
            method: over_runs(
                {r["seed"]: _value(r["metrics"], benchmark) for r in runs if _has(r, benchmark)}
            )
            for method, runs in records.items()
        }
        published = self.cells(scale, records).values(("paper", benchmark))
        return self.versus(self.columns[benchmark], known(measured), published, floor=CHANCE)

    def verdict(self, scale: str, records: Records) -> Verdict:
        """That of the contests, which says where the questions are not the benchmark's."""
        verdict = super().verdict(scale, records)
        if _generated(records):
            verdict = replace(verdict, ours=f"{verdict.ours} (generated questions)")
        return verdict

    def cells(self, scale: str, records: Records) -> Table:
        """A row for each method of ours or of the paper's."""
        head = [Column("method")]
        for key, name in self.columns.items():
            head += [Column((whose, key), f"{whose} {name}") for whose in ("paper", "ours")]
        accuracy = self.paper()["accuracy"]
        rows = []
        for method in dict.fromkeys([*self.methods, *accuracy]):
            runs = records.get(method, [])
            row: Row = {"method": method}
            for key in self.columns:
                published = accuracy.get(method, {}).get(key)
                row["paper", key] = _with_error(*published) if published else NOT_REPORTED
                row["ours", key] = _mean(runs, key)
            rows.append(row | origin(runs, scale))
        return Table([*head, *ORIGIN], rows, label="method", quantity="accuracy (%)")

    def caption(self, scale: str, records: Records) -> str:
        """How each benchmark is scored, and which questions were asked."""
        paper = self.paper()
        return (
            f"{self.title}, in percent, with lm-eval's standard error (SE) over questions. MMLU: "
            "the letter's accuracy, pooled over the subjects of a group. ARC: accuracy by "
            f"log-likelihood a character (acc_norm). Paper: {paper['setting']} "
            f"({paper['source']}). Ours: scale {scale}, {_questions(records)}; mean over seeds, "
            "which see the same questions, of accuracies and of standard errors."
        )


def _with_error(number: float, error: float, n: int = 1) -> Value:
    form = "{number:.2f} (SE {half:.2f})"
    return Value(number, number - error, number + error, n, form, "standard error over questions")


def _has(record: Record, key: str) -> bool:
    return f"benchmarks/{key}" in record["metrics"]


def _value(metrics: dict[str, float], key: str) -> Value:
    """The accuracy of a run with its 95 % interval over questions; a single question has none."""
    number, error = metrics[f"benchmarks/{key}"], metrics.get(f"benchmarks/{key}_stderr")
    if error is None:
        return Value(number)
    ends = (number - 1.96 * error, number + 1.96 * error)
    return Value(number, *ends, form=SEVERAL, kind="95 % interval over questions")


def _mean(records: Sequence[Record], key: str) -> Value | Missing:
    """Means over the runs; without an error where a run has none, of a single question."""
    metrics = [r["metrics"] for r in records if _has(r, key)]
    if not metrics:
        return NOT_RUN
    number = mean(m[f"benchmarks/{key}"] for m in metrics)
    errors = [m[f"benchmarks/{key}_stderr"] for m in metrics if f"benchmarks/{key}_stderr" in m]
    if len(errors) < len(metrics):
        return Value(number, n=len(metrics))
    return _with_error(number, mean(errors), n=len(metrics))


def _generated(records: Records) -> bool:
    """Whether the questions were made by this code."""
    every = (record for runs in records.values() for record in runs)
    return any(record["config"]["task"]["source"] == "builtin" for record in every)


def _questions(records: Records) -> str:
    """Which questions the runs were asked."""
    tasks = [record["config"]["task"] for runs in records.values() for record in runs]
    phrases = []
    if _generated(records):
        phrases.append(
            "generated questions of four choices, guessed right in 25 percent, not comparable with "
            "the paper's"
        )
    limits = sorted({task["limit"] for task in tasks if task["limit"] is not None})
    if limits:
        phrases.append(f"the first {' or '.join(map(str, limits))} of each subject")
    return ", ".join(phrases) or "all questions"
