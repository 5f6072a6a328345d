"""Table scrolls of the paper, and questions of QuALITY with the answers of each method."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import numpy as np

from tape_exp.data.scrolls_metrics import DATASETS
from tape_exp.paper.artifacts import LanguageArtifact, Record, Records, listed, task_of
from tape_exp.paper.claims import Contest, Verdict
from tape_exp.paper.tables import ORIGIN, Column, Row, Table, columns, origin
from tape_exp.paper.values import NOT_RUN, Value, over_runs, reported
from tape_exp.settings.naming import display_name

VALUES = {"f1": "f1", "exact_match": "exact_match", "rouge": "rouge/geometric_mean"}
GUESSED = {"contract_nli": 100 / 3, "quality": 25.0}  # percent, of our generated questions
WITH_ENDS = "{number:.2f} [{low:.1f}, {high:.1f}]"


@dataclass(kw_only=True)
class Scrolls(LanguageArtifact):
    """The score of each model on each data set, the paper's next to ours.

    Args:
        datasets: the columns.
    """

    datasets: list[str] = field(default_factory=list)

    def cases(self, scale: str) -> Iterator[tuple[str, list[str]]]:
        """Every model and data set; a model's data sets follow its pre-training."""
        for (model, words), dataset in product(super().cases(scale), self.datasets):
            yield f"{model}/{dataset}", [*words, f"task.dataset={dataset}"]

    def contests(self, scale: str, records: Records) -> list[Contest]:
        """The data sets where the paper's favourite is ahead of its rivals, with the score of
        answers that read nothing as their floor.
        """
        table, floors = self.cells(scale, records), self.floors(records)
        contests: list[Contest] = []
        for dataset in self.datasets:
            published = table.values(("paper", dataset))
            best = max(published[name].number for name in self.others())
            if min(published[name].number for name in self.favourites) >= best:
                ours, floor = table.values(("ours", dataset)), floors.get(dataset)
                contests += self.versus(display_name(dataset), ours, published, floor=floor)
        return contests

    def verdict(self, scale: str, records: Records) -> Verdict:
        """That of the contests, which says where the texts are not the benchmark's."""
        verdict = super().verdict(scale, records)
        if verdict.ours and _generated(records):
            verdict = replace(verdict, ours=f"{verdict.ours} (generated text)")
        return verdict

    def floors(self, records: Records) -> dict[str, float]:
        """What is reached without reading, in percent: on generated text by a guess among the
        answers, on the real sets by the naive baseline of the benchmark's authors.
        """
        if _generated(records):
            return GUESSED
        naive = self.paper()["naive"]
        return {
            name: float(np.prod(score) ** (1 / np.size(score))) for name, score in naive.items()
        }

    def cells(self, scale: str, records: Records) -> Table:
        """A row for each model; of one seed the bootstrap's interval."""
        scores = self.paper()["scores"]
        rows = []
        for model in self.models:
            row: Row = {"model": model}
            every: list[Record] = []
            for dataset in self.datasets:
                runs = records.get(f"{model}/{dataset}", [])
                row["paper", dataset] = reported(scores.get(model, {}).get(dataset))
                row["ours", dataset] = over_runs(
                    {r["seed"]: _score(r["metrics"], dataset) for r in runs}
                )
                every += runs
            rows.append(row | origin(every, scale))
        pairs = [Column((whose, name)) for name in self.datasets for whose in ("paper", "ours")]
        return Table([Column("model"), *pairs, *ORIGIN], rows, quantity="score (%)")

    def caption(self, scale: str, records: Records) -> str:
        """How each data set is scored, and what was read."""
        paper, task = self.paper(), task_of(records)
        data, without_reading = "text", "The naive baseline of SCROLLS itself, on its test sets,"
        if _generated(records):
            data = "text generated in the same schema, not comparable with the paper's,"
            without_reading = "Guessing one of the answers"
        reached = [
            f"{share:.2f} on {display_name(name)}" for name, share in self.floors(records).items()
        ]
        return (
            f"{self.title}. F1 of Qasper and NarrativeQA, exact match of ContractNLI and "
            "QuALITY, geometric mean of ROUGE-1, 2 and L of the others, in percent. "
            f"{without_reading} reaches {listed(reached)}. Column paper: {paper['setting']} "
            f"({paper['source']}), one seed. Ours: scale {scale}, {data} of "
            f"{task['max_length']} tokens; mean over seeds with its 95 % interval, of one seed "
            "that of the bootstrap over examples. An interval in square brackets is as wide as "
            "the bootstrap's."
        )


def _generated(records: Records) -> bool:
    return any(task_of(runs)["source"] == "builtin" for runs in records.values())


def _score(metrics: dict[str, float], dataset: str) -> Value:
    """The score of a run with the bootstrap's interval over its examples."""
    key = f"{dataset}/{VALUES[DATASETS[dataset]]}"
    ends = (metrics[f"{key}_low"], metrics[f"{key}_high"])
    kind = "95 % interval of the bootstrap over examples"
    return Value(metrics[key], *ends, form=WITH_ENDS, kind=kind)


@dataclass(kw_only=True)
class QualityExamples(Scrolls):
    """Questions of QuALITY, their references, and what each model answers."""

    def contests(self, scale: str, records: Records) -> list[Contest]:
        """None: a few questions are examples, and no test of a claim."""
        return []

    def cells(self, scale: str, records: Records) -> Table:
        """A row for each question."""
        (dataset,) = self.datasets
        samples: dict[str, dict[str, Any]] = {
            model: {s["id"]: s for s in records[f"{model}/{dataset}"][0]["samples"]}
            for model in self.models
            if f"{model}/{dataset}" in records
        }
        rows = []
        for id_, sample in next(iter(samples.values()), {}).items():
            row: Row = {
                "question": _line(sample["question"]),
                "reference": _line(sample["references"]),
            }
            for model in self.models:
                answer = samples.get(model, {}).get(id_)
                row[model] = _line(answer["prediction"]) if answer else NOT_RUN
            rows.append(row)
        answers = [Column(model, shown=display_name(model)) for model in self.models]
        return Table([*columns(["question", "reference"]), *answers], rows, label="question")

    def caption(self, scale: str, records: Records) -> str:
        """Which questions these are."""
        return (
            f"{self.title}. Scale {scale}, the first questions, seed 0. Empty: not run, or an "
            "empty answer."
        )


def _line(text: str) -> str:
    """On one line, and without what would end a table's cell."""
    return " ".join(text.split()).replace("|", "/")
