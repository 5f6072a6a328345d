"""All encodings beside each other: addition, a word problem and text, in one table."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tape_exp.paper.artifacts import LanguageArtifact, Record, Records, task_of
from tape_exp.paper.figure_kinds import Figure
from tape_exp.paper.tables import Column, Row, Table, commits
from tape_exp.paper.values import NOT_RUN, NOTHING, Value, known, mean_of
from tape_exp.paper.word_problem import guesses

ADDITION, WORDS, TEXT = "arithmetic", "word_problem", "c4"
TASKS = (ADDITION, WORDS, TEXT)
SIGNS = {"addition": -1, "words": -1, "text": 1}  # -1 where more is better


@dataclass(kw_only=True)
class Encodings(LanguageArtifact):
    """A row for each encoding, the best mean rank over the tasks first.

    Addition is that of the ladder's first rung; the rest has the scale's own sizes. On each task
    all have the same rate. Ranks compare the seeds that all have. An encoding that is told which
    tokens are digits has no other task, and no rank.

    Args:
        rung: the scale of addition.
        group: of the word problem.
        told: the models that are told which tokens are digits.
        best: task -> the models that have seeds beyond the first.
    """

    rung: str
    group: str
    told: list[str] = field(default_factory=list)
    best: dict[str, list[str]] = field(default_factory=dict)

    def cases(self, scale: str) -> Iterator[tuple[str, list[str]]]:
        """Every model on every task that it can have; none at a scale that is not smoke."""
        if scale not in self.scales():
            return
        for model in self.models:
            for task, size, *words in (
                (ADDITION, self.rung),
                (WORDS, scale, f"task.group={self.group}"),
                (TEXT, scale),
            ):
                if task == ADDITION or model not in self.told:
                    choice = [f"model={model}", f"task={task}", f"scale={size}"]
                    yield f"{model} {task}", [*choice, *words]

    def lines(
        self, scale: str, seed: Sequence[str], extra: Sequence[str]
    ) -> Iterator[tuple[str, list[str]]]:
        """As every artifact has them; seeds beyond the first only of the best of each task."""
        for label, choice in self.cases(scale):
            model, task = label.split()
            if set(seed) <= {"seed=0"} or model in self.best.get(task, []):
                yield label, [*choice, *seed, *self.words(scale), *extra]

    def of_scale(self, scale: str, record: Record) -> bool:
        """Whether a record may be one of its runs; addition has the scale of the rung."""
        return record["config"].get("scale") != "paper"

    def cells(self, scale: str, records: Records) -> Table:
        """A row for each model, by mean rank; those without one as the YAML has them."""
        seeds = shared_seeds(records)
        compared = {
            label: [run for run in found if run["seed"] in seeds]
            for label, found in records.items()
        }
        ranks = mean_ranks({model: self._measures(model, compared) for model in self.models})
        rows = [self._row(model, records) for model in self.models]
        for row in rows:
            row["rank"] = Value(ranks[str(row["model"])]) if row["model"] in ranks else NOTHING
        rows.sort(key=lambda row: ranks.get(str(row["model"]), float("inf")))
        return Table(self._head(records), rows)

    def _measures(self, model: str, records: Records) -> Row:
        """What a model is ranked by, and its shares of the trained sums and longer words."""
        runs = {task: records.get(f"{model} {task}", []) for task in TASKS}
        measured: Row = {
            "trained": mean_of(runs[ADDITION], "id/exact_match"),
            "addition": mean_of(runs[ADDITION], "ood/exact_match"),
        }
        if model not in self.told:
            length = longest(runs[TEXT]) if runs[TEXT] else 0
            measured["words"] = mean_of(runs[WORDS], "id/state")
            measured["longer words"] = mean_of(runs[WORDS], "ood/state")
            measured["text"] = mean_of(runs[TEXT], f"github/perplexity@{length}")
        return measured

    def _row(self, model: str, records: Records) -> Row:
        runs = {task: records.get(f"{model} {task}", []) for task in TASKS}
        row: Row = {"model": model, **self._measures(model, records)}
        every = [record for found in runs.values() for record in found]
        row["parameters"] = row["seeds"] = row["commit"] = NOT_RUN
        if every:
            counts = [f"{found[0]['parameters'] / 1000:.0f}" for found in runs.values() if found]
            row["parameters"] = " / ".join(counts)
            row["seeds"] = " / ".join(str(len(found)) for found in runs.values())
            row["commit"] = commits(every)
        return row

    def _head(self, records: Records) -> list[Column]:
        tokens, digits, letters = "the longest", "the trained", "the trained"
        for label, runs in records.items():
            task = task_of(runs)
            if label.endswith(TEXT):
                tokens = f"{longest(runs)} tokens"
            elif label.endswith(WORDS):
                letters = str(task["train_letters"])
            else:
                digits = str(task["train_digits"])
        return [
            Column("model"),
            Column("rank", "mean rank"),
            Column("trained", f"addition, ≤ {digits} digits", "%"),
            Column("addition", f"addition, > {digits} digits", "%"),
            Column("words", f"{self.group}, ≤ {letters} letters", "%"),
            Column("longer words", f"{self.group}, > {letters} letters", "%"),
            Column("text", f"perplexity at {tokens}"),
            Column("parameters", "parameters (thousands)"),
            Column("seeds"),
            Column("commit"),
        ]

    def figures(self, scale: str, records: Records) -> list[Figure]:
        """None: the table says it all."""
        return []

    def caption(self, scale: str, records: Records) -> str:
        """What the columns measure, and what one seed is worth."""
        guess = f"{guesses(self.group, [1])[0]:.0f}"
        seeds = f"seed {', '.join(map(str, sorted(shared_seeds(records))))}"
        return (
            f"{self.title}. Addition: exact match in percent at scale {self.rung}, the ladder's "
            f"first rung, which is deeper and trained for longer than scale {scale}; of the sums "
            "whose operands both have a trained length, and of the longer ones. The rest at scale "
            f"{scale}. "
            f"{self.group.capitalize()}: right states of its word problem in percent, in words of "
            f"trained lengths and in longer ones; guessing gives {guess}. Perplexity: on code, "
            "at the longest context. Mean rank: in the longer sums, the words of trained "
            "lengths and the perplexity, among the models that have all three, by what all of them "
            f"have ({seeds}); where many get nearly all words right, decimals decide. Parameters "
            "and seeds: of each task in turn. What has one seed has no interval, and neighbours "
            "may change places with another one, as may their ranks; "
            "where there are three, ± is half of a 95 % interval. Further seeds are those of the "
            "ladder and of the ablations, and of what led with the first: a mean that falls with "
            "these is not worse than another model's first seed for that. GRAPE is run as RoPE "
            "with learned frequencies, additive GRAPE as ALiBi with learned slopes. All have one "
            "rate on each task, which can be far from a method's best: what a search of rates "
            "changes on addition is in fig_rates. Sums beyond the trained lengths tell little of a "
            "model that does not solve the trained ones. RandPE's positions are drawn for the "
            "longest tested length; FIRE's threshold begins above all rows of sums and words, so "
            "that its interpolation begins switched off there."
        )


def shared_seeds(records: Records) -> set[int]:
    """The seeds that every model has on every task of its runs."""
    seeds = [{run["seed"] for run in found} for found in records.values() if found]
    return set.intersection(*seeds) if seeds else set()


def longest(runs: Sequence[Record]) -> int:
    """The longest context of a text's windows, in tokens."""
    return max(task_of([*runs])["windows"]["lengths"])


def mean_ranks(rows: Mapping[str, Row]) -> dict[str, float]:
    """The mean rank of each model that has all measures; 1 is the best, and equals share theirs."""
    values = {key: known({m: row.get(key, NOTHING) for m, row in rows.items()}) for key in SIGNS}
    ranked = [model for model in rows if all(model in each for each in values.values())]
    # scipy.stats has it too, and takes a second to import.
    scores = np.array(
        [[sign * values[key][model].number for model in ranked] for key, sign in SIGNS.items()]
    )
    others, own = scores[:, None], scores[:, :, None]
    ranks = (others < own).sum(-1) + ((others == own).sum(-1) + 1) / 2
    return dict(zip(ranked, map(float, ranks.mean(0)), strict=True))
