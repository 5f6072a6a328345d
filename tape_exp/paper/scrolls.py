"""Table scrolls of the paper, and questions of QuALITY with the answers of each method."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from omegaconf import DictConfig

from tape_exp.data.scrolls_metrics import DATASETS
from tape_exp.paper import tables
from tape_exp.paper.artifacts import Artifact, Record
from tape_exp.paper.claims import Contest, Measured, Verdict
from tape_exp.settings.compose import compose_config

VALUES = {"f1": "f1", "exact_match": "exact_match", "rouge": "rouge/geometric_mean"}


@dataclass
class Scrolls(Artifact):
    """The score of each model on each data set, the paper's beside ours.

    Args:
        datasets: the columns.
    """

    datasets: list[str] = field(default_factory=list)

    def configs(
        self, scale: str, seeds: Sequence[int], extra: Sequence[str] = ()
    ) -> Iterator[tuple[str, DictConfig]]:
        """(model/dataset, config) of every run; all data sets of a model follow its
        pre-training.
        """
        for seed in seeds:
            for model in self.models:
                for dataset in self.datasets:
                    choice = [
                        f"model={model}",
                        f"task={self.task}",
                        f"scale={scale}",
                        f"seed={seed}",
                    ]
                    choice += [f"task.dataset={dataset}", *self.overrides, *extra]
                    yield f"{model}/{dataset}", compose_config(choice)

    def contests(self, scale: str, records: dict[str, list[Record]]) -> list[Contest]:
        """The data sets where the paper's favourite is ahead of its rivals; of one seed the
        bootstrap's interval.
        """
        scores = self.paper()["scores"]
        found: list[Contest] = []
        for dataset in self.datasets:
            published = {model: row[dataset] for model, row in scores.items() if dataset in row}
            if min(published[name] for name in self.favourites) < max(
                published[name] for name in self.others()
            ):
                continue
            key = f"{dataset}/{VALUES[DATASETS[dataset]]}"
            mine = {
                model: records[f"{model}/{dataset}"]
                for model in self.models
                if f"{model}/{dataset}" in records
            }
            told = {model: [record["metrics"] for record in found] for model, found in mine.items()}
            measured = {
                model: Measured.of_runs(
                    [(m[key], m[f"{key}_low"], m[f"{key}_high"]) for m in found]
                )
                for model, found in told.items()
            }
            found += self.versus(dataset, measured, published=published)
        return found

    def verdict(self, scale: str, records: dict[str, list[Record]]) -> Verdict:
        """That of the contests, which says where the texts are not the benchmark's."""
        found = super().verdict(scale, records)
        generated = any(
            mine[0]["config"]["task"]["source"] == "builtin" for mine in records.values()
        )
        return (
            replace(found, ours=f"{found.ours} (generated text)")
            if generated and found.ours
            else found
        )

    def render(self, scale: str, records: dict[str, list[Record]], into: Path) -> list[Path]:
        """``tables/<name>-<scale>.{md,tex,csv}``."""
        paper = self.paper()
        columns = ["model"]
        for dataset in self.datasets:
            columns += [f"paper {dataset}", f"ours {dataset}"]
        rows = []
        for model in self.models:
            cells = [model]
            for dataset in self.datasets:
                mine = records.get(f"{model}/{dataset}", [])
                published = paper["scores"].get(model, {}).get(dataset)
                cells.append("" if published is None else f"{published:.2f}")
                key = f"{dataset}/{VALUES[DATASETS[dataset]]}"
                cells.append(_with_interval([r["metrics"] for r in mine], key))
            every = [
                record
                for dataset in self.datasets
                for record in records.get(f"{model}/{dataset}", [])
            ]
            seeds, *origin = tables.origin(every, scale)
            rows.append([*cells, str(len({r["seed"] for r in every})) if seeds else "", *origin])
        some = next(iter(records.values()))[0]["config"]["task"]
        data = (
            "text generated in the same schema, not comparable with the paper's,"
            if some["source"] == "builtin"
            else "text"
        )
        caption = (
            f"{self.title}. F1 of qasper and narrative_qa, exact match of contract_nli and "
            "quality, geometric mean of ROUGE-1, "
            f"2 and L of the others, in percent. Column paper: {paper['setting']} "
            f"({paper['source']}), one seed. Ours: scale "
            f"{scale}, {data} of {some['max_length']} tokens; mean over seeds with its 95 % "
            "interval, of one "
            "seed in brackets that of the bootstrap over examples."
        )
        return tables.write(
            into / "tables" / f"{self.name}-{scale}", [*columns, *tables.ORIGIN], rows, caption
        )


def _with_interval(metrics: list[dict[str, float]], key: str) -> str:
    text = tables.mean_text([m[key] for m in metrics])
    if len(metrics) == 1:
        text += f" [{metrics[0][f'{key}_low']:.1f}, {metrics[0][f'{key}_high']:.1f}]"
    return text


class QualityExamples(Scrolls):
    """Questions of QuALITY, their references, and what each model answers."""

    def contests(self, scale: str, records: dict[str, list[Record]]) -> list[Contest]:
        """None: a few questions are examples, and no test of a claim."""
        return []

    def render(self, scale: str, records: dict[str, list[Record]], into: Path) -> list[Path]:
        """``tables/<name>-<scale>.{md,tex,csv}``: a row a question."""
        (dataset,) = self.datasets
        samples = {
            model: {s["id"]: s for s in records[f"{model}/{dataset}"][0]["samples"]}
            for model in self.models
            if f"{model}/{dataset}" in records
        }
        questions = next(iter(samples.values()))
        rows = []
        for id_, told in questions.items():
            answers = [
                samples[model][id_]["prediction"] if id_ in samples.get(model, {}) else ""
                for model in self.models
            ]
            rows.append([_line(cell) for cell in (told["question"], told["references"], *answers)])
        caption = (
            f"{self.title}. Scale {scale}, the first questions, seed 0. Empty: not run, or an "
            "empty answer."
        )
        columns = ["question", "reference", *self.models]
        return tables.write(into / "tables" / f"{self.name}-{scale}", columns, rows, caption)


def _line(text: str) -> str:
    """On one line, and without what would end a table's cell."""
    return " ".join(text.split()).replace("|", "/")
