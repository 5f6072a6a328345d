"""The bench as an artifact: models × tasks at the chosen rates, and their ranks."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, product

import numpy as np
from scipy.stats import friedmanchisquare, rankdata, studentized_range

from tape_exp.artifacts.artifact import Artifact
from tape_exp.artifacts.captions import KNOWS_DIGITS
from tape_exp.artifacts.cells import Cells
from tape_exp.artifacts.columns import ArtifactColumn
from tape_exp.artifacts.rows import Row
from tape_exp.bench.tasks import Entry
from tape_exp.results.record import Record
from tape_exp.results.statistics import Value, over_samples, shared_seeds

BASELINE = "rope"
# With fewer a test of ranks says nothing.
LEAST_MODELS = 3
LEAST_TASKS = 5
LEAST_SEEDS = 2


@dataclass(frozen=True)
class RankTest:
    """What tests of mean ranks say."""

    p: float  # of Friedman's test, that all models have one rank
    difference: float  # between two mean ranks, from which on they are told apart (Nemenyi, 5 %)


class Board:
    """The recorded runs of a bench, and the ranks of its models.

    At the first seed every model has every rate on every task; the lowest validation loss, on
    further rows of the trained lengths, chooses the rate of the model on the task, and the test has
    no part in it. Further seeds run only at that rate.

    Args:
        search: the artifact whose rows are models at rates, and whose columns are tasks.
        entries: the tasks.
        seed: the first one.
        records: of any runs.
    """

    def __init__(
        self, search: Artifact, entries: Sequence[Entry], seed: int, records: Sequence[Record]
    ) -> None:
        self.cells = Cells(search, next(iter(search.scales)), records)
        self.entries = {entry.name: entry for entry in entries}
        self.seed = seed
        (block,) = search.rows
        self.rates = [*block.dimensions["rate"]]
        self.asked = [*block.dimensions["model"]]

    # ---- runs ----

    @cached_property
    def searched(self) -> dict[tuple[str, str], dict[str, Record]]:
        """Find by model and task the runs of the first seed, by rate."""
        searched: dict[tuple[str, str], dict[str, Record]] = {}
        for row, column in self._every_cell():
            for run in self.cells.runs(row, column):
                if run.seed == self.seed:
                    by_rate = searched.setdefault((row.labels["model"], column.name), {})
                    by_rate[row.labels["rate"]] = run
        return searched

    @cached_property
    def choices(self) -> dict[tuple[str, str], str]:
        """Choose by model and task the rate, where every rate has run."""
        choices = {}
        for cell, runs in self.searched.items():
            if len(runs) == len(self.rates):
                choices[cell] = best_rate(runs)
        return choices

    @cached_property
    def chosen(self) -> dict[tuple[str, str], list[Record]]:
        """Find by model and task the runs at the chosen rate, by seed."""
        chosen = {}
        for row, column in self.at_choice():
            chosen[row.labels["model"], column.name] = self.cells.runs(row, column)
        return chosen

    @cached_property
    def models(self) -> list[str]:
        """List the models that have a chosen rate on some task."""
        found = {model for model, _ in self.choices}
        return [model for model in self.asked if model in found]

    def at_choice(self) -> Iterator[tuple[Row, ArtifactColumn]]:
        """Yield the row and the column of every chosen rate, at which further seeds run."""
        for row, column in self._every_cell():
            if self.choices.get((row.labels["model"], column.name)) == row.labels["rate"]:
                yield row, column

    def _every_cell(self) -> Iterator[tuple[Row, ArtifactColumn]]:
        """Yield the row and the column of every model, rate and task."""
        return product(self.cells.rows, self.cells.columns)

    def chosen_runs(self, model: str | None = None, task: str | None = None) -> list[Record]:
        """List the runs at chosen rates of a model, or on a task."""
        chosen = []
        for (of_model, on_task), runs in self.chosen.items():
            if model in (None, of_model) and task in (None, on_task):
                chosen += runs
        return chosen

    # ---- scores and ranks ----

    @cached_property
    def scores(self) -> dict[str, dict[str, Value]]:
        """Compute model -> task -> the mean over seeds, within 0 and 100."""
        scores: dict[str, dict[str, Value]] = {}
        for model in self.models:
            scores[model] = {}
            for task, entry in self.entries.items():
                by_seed = {}
                for run in self.chosen.get((model, task), []):
                    value = entry.score(run)
                    if value is not None:
                        by_seed[run.seed] = value
                if by_seed:
                    scores[model][task] = within_percent(over_samples(by_seed))
        return scores

    @cached_property
    def labels(self) -> dict[str, str]:
        """Return model -> its name, with the mark of those that know which tokens are digits."""
        labels = {}
        for model in self.models:
            knows_digits = any(run.get("knows_digits") for run in self.chosen_runs(model))
            labels[model] = model + KNOWS_DIGITS if knows_digits else model
        return labels

    @cached_property
    def ranked(self) -> list[str]:
        """List the models that have every task, and do not know which tokens are digits."""
        ranked = []
        for model, by_task in self.scores.items():
            if len(by_task) == len(self.entries) and self.labels[model] == model:
                ranked.append(model)
        return ranked

    @cached_property
    def numbers(self) -> np.ndarray:
        """Return the scores of (ranked models, tasks, seeds that all have)."""
        values = [[*self.scores[model].values()] for model in self.ranked]
        seeds = shared_seeds(value.runs for value in chain.from_iterable(values))
        numbers = np.zeros((len(values), len(self.entries), len(seeds)))
        for model, task, k in np.ndindex(numbers.shape):
            numbers[model, task, k] = values[model][task].runs[seeds[k]].number
        return numbers

    @cached_property
    def means(self) -> dict[str, float]:
        """Average the scores of each ranked model over tasks and seeds; none without a seed."""
        if not self.numbers.size:
            return {}
        return dict(zip(self.ranked, self.numbers.mean((1, 2)).tolist(), strict=True))

    @cached_property
    def ranks(self) -> dict[str, float]:
        """Return model -> the mean over tasks of the rank of its mean over seeds, the best first.

        A single model has none.
        """
        if len(self.ranked) < 2 or not self.numbers.size:
            return {}
        by_task = rankdata(-self.numbers.mean(-1), axis=0)
        mean_ranks = by_task.mean(-1)
        order = np.argsort(mean_ranks, kind="stable")
        return {self.ranked[i]: float(mean_ranks[i]) for i in order}

    @property
    def order(self) -> list[str]:
        """List the models by mean rank, then those without one."""
        return [*self.ranks, *(model for model in self.models if model not in self.ranks)]

    def rank_test(self) -> RankTest | None:
        """Test mean ranks, the tasks as blocks (Demšar, 2006); None where there is too little."""
        models, tasks, seeds = self.numbers.shape
        if models < LEAST_MODELS or tasks < LEAST_TASKS or seeds < LEAST_SEEDS:
            return None
        p = float(friedmanchisquare(*self.numbers.mean(-1)).pvalue)
        q = float(studentized_range.ppf(0.95, models, np.inf)) / 2**0.5
        return RankTest(p, q * (models * (models + 1) / (6 * tasks)) ** 0.5)

    @cached_property
    def guesses(self) -> dict[str, float]:
        """Return task -> the score of the best guess from nearby, of tasks that have a record."""
        guesses = {}
        for task, entry in self.entries.items():
            runs = self.chosen_runs(task=task)
            if runs:
                guesses[task] = entry.guessed(runs[0])
        return guesses


def best_rate(runs: Mapping[str, Record]) -> str:
    """Choose the rate whose run has the lowest validation loss.

    >>> first = Record(metrics={"val/loss": 0.5})
    >>> second = Record(metrics={"val/loss": 0.3})
    >>> best_rate({"0.001": first, "0.003": second})
    '0.003'
    """
    return min(runs, key=lambda rate: runs[rate]["metrics"]["val/loss"])


def within_percent(value: Value) -> Value:
    """Cut an interval to what is within 0 and 100.

    >>> value = within_percent(Value(99.0, 97.5, 100.5))
    >>> value.low, value.high
    (97.5, 100.0)
    """
    low = None if value.low is None else min(max(value.low, 0.0), 100.0)
    high = None if value.high is None else min(max(value.high, 0.0), 100.0)
    return replace(value, low=low, high=high)
