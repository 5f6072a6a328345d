"""The bench as an artifact: models × tasks at the chosen rates, and their ranks."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import product

import numpy as np
from scipy.stats import friedmanchisquare, rankdata, studentized_range

from tape_exp.bench.tasks import Entry
from tape_exp.paper.artifact import Artifact
from tape_exp.paper.captions import KNOWS_DIGITS
from tape_exp.paper.view import Row, View
from tape_exp.results.record import Record
from tape_exp.results.statistics import Value, lead, lowest, over_samples
from tape_exp.results.store import commits
from tape_exp.results.tables import Cell, Column, Table
from tape_exp.settings.naming import display_name

RIVAL = "rope"
FEWEST = (3, 5, 2)  # methods, tasks and seeds below which a test of ranks says nothing
ALIKE = 1.0  # point, between shares at trained lengths that do not tell rates apart


class Board(View):
    """The recorded runs of a bench.

    At the first seed every model has every rate on every task; the lowest validation loss, on
    further rows of the trained lengths, chooses the rate of the model on the task, and the test has
    no part in it. Further seeds run only at that rate.
    """

    def __init__(
        self, search: Artifact, entries: Sequence[Entry], seed: int, records: Sequence[Record]
    ) -> None:
        super().__init__(search, next(iter(search.scales)), records)
        self.entries = {entry.name: entry for entry in entries}
        self.tried: dict[tuple[str, str], dict[str, Record]] = {}
        for row, column in product(self.rows, self.columns):
            for run in self.runs(row, column):
                if run["seed"] == seed:
                    key = row.labels["model"], column.name
                    self.tried.setdefault(key, {})[row.labels["rate"]] = run
        self.choices = {
            key: lowest({rate: {seed: run["metrics"]["val/loss"]} for rate, run in tried.items()})
            for key, tried in self.tried.items()
            if len(tried) == len(search.rows["rate"])
        }
        self.chosen = {  # by model and task: the runs at the chosen rate, by seed
            (row.labels["model"], column.name): self.runs(row, column)
            for row, column in self.at_choice()
        }
        models = {model for model, _ in self.chosen}
        self.models = [model for model in search.rows["model"] if model in models]

    def at_choice(self) -> Iterator[tuple[Row, Column]]:
        """The row and the column of every chosen rate, at which further seeds run."""
        for row, column in product(self.rows, self.columns):
            if self.choices.get((row.labels["model"], column.name)) == row.labels["rate"]:
                yield row, column

    @cached_property
    def scores(self) -> dict[str, dict[str, Value]]:
        """Model -> task -> the mean over seeds, within 0 and 100."""
        scores: dict[str, dict[str, Value]] = {model: {} for model in self.models}
        for model, (task, entry) in product(self.models, self.entries.items()):
            found = self.chosen.get((model, task), [])
            if runs := {run["seed"]: value for run in found if (value := entry.score(run))}:
                value = over_samples(runs)
                low, high = (end and min(max(end, 0.0), 100.0) for end in (value.low, value.high))
                scores[model][task] = replace(value, low=low, high=high)
        return scores

    @cached_property
    def marks(self) -> dict[str, str]:
        """Model -> its name, with the mark of those that are told which tokens are digits."""
        told = {
            m for (m, _), runs in self.chosen.items() if any(r.get("knows_digits") for r in runs)
        }
        return {model: model + KNOWS_DIGITS * (model in told) for model in self.models}

    @cached_property
    def ranked(self) -> list[str]:
        """The models that have every task, and are not told which tokens are digits."""
        whole = [model for model, row in self.scores.items() if len(row) == len(self.entries)]
        return [model for model in whole if self.marks[model] == model]

    @cached_property
    def numbers(self) -> np.ndarray:
        """(ranked models, tasks, seeds that all have): their scores."""
        values = [[*self.scores[model].values()] for model in self.ranked]
        common = [set(value.runs) for row in values for value in row]
        seeds = sorted(set.intersection(*common)) if common else []
        numbers = [[[v.runs[s].number for s in seeds] for v in row] for row in values]
        return np.array(numbers, float).reshape(len(values), len(self.entries), len(seeds))

    @cached_property
    def ranks(self) -> dict[str, float]:
        """Model -> the mean over tasks of the rank of its mean over seeds, the best first."""
        if len(self.ranked) < 2 or not self.numbers.size:
            return {}
        means = rankdata(-self.numbers.mean(-1), axis=0).mean(-1)
        return {self.ranked[i]: float(means[i]) for i in np.argsort(means, kind="stable")}

    @property
    def order(self) -> list[str]:
        """The models by mean rank, then those without one."""
        return [*self.ranks, *(model for model in self.models if model not in self.ranks)]

    def test(self) -> tuple[float, float] | None:
        """The p value of Friedman's test, and Nemenyi's critical difference at 5 % (Demšar, 2006);
        None of too few methods, tasks or seeds.
        """
        methods, tasks, _ = sizes = self.numbers.shape
        if any(size < least for size, least in zip(sizes, FEWEST, strict=True)):
            return None
        p = friedmanchisquare(*self.numbers.mean(-1)).pvalue
        spread = (methods * (methods + 1) / (6 * tasks)) ** 0.5
        return float(p), float(studentized_range.ppf(0.95, methods, np.inf)) / 2**0.5 * spread

    # ---- tables ----

    def scores_table(self) -> Table:
        """Encodings × tasks, by mean rank."""
        rows: dict[str, dict[str, Cell]] = {}
        scores = self.numbers.mean((1, 2)) if self.numbers.size else []
        means = dict(zip(self.ranked, map(float, scores), strict=False))
        for model in self.order:
            row: dict[str, Cell] = dict(self.scores[model])
            if model in self.ranks:
                row["mean rank"] = Value(self.ranks[model])
                if model != RIVAL and RIVAL in self.ranks:
                    row[f"mean difference to {RIVAL}"] = Value(means[model] - means[RIVAL])
            counts = [len(value.runs) for value in self.scores[model].values()]
            row["seeds"] = "–".join(dict.fromkeys(str(n) for n in (min(counts), max(counts))))
            row["commit"] = commits(
                r for (m, _), rs in self.chosen.items() for r in rs if m == model
            )
            rows[model] = row
        head = ["mean rank", f"mean difference to {RIVAL}", *self.entries, "seeds", "commit"]
        return self._table(rows, self.caption(), head, digits=1)

    def leads_table(self) -> Table:
        """The paired difference of each model to RoPE on each task."""
        theirs = self.scores.get(RIVAL, {})
        rows = {}
        for model in (model for model in self.order if model != RIVAL):
            shared = self.scores[model].keys() & theirs.keys()
            rows[model] = {task: lead(self.scores[model][task], theirs[task]) for task in shared}
        caption = (
            f"Difference to {display_name(RIVAL)} in percentage points over the seeds that both "
            "have, ± half of its 95 % interval (Student's t over pairs)."
        )
        return self._table(rows, caption, lead={}, digits=1)

    def rates_table(self) -> Table:
        """The learning rate that each model has on each task."""
        rows = {m: {task: self._rate(m, task) for task in self.entries} for m in self.order}
        caption = (
            "The learning rate of the lowest validation loss on further rows of the trained "
            "lengths; every model tried the same rates for as many steps. At the edge the best may "
            "lie beyond. In brackets: the range of the scores beyond the trained lengths, at the "
            "first seed, of the rates that are right within those lengths as often, to "
            f"{ALIKE:g} point; the loss hardly tells these apart."
        )
        return self._table(rows, caption)

    def _rate(self, model: str, task: str) -> Cell:
        rate = self.choices.get((model, task))
        entry = self.entries[task]
        if rate is None:
            return None
        rates = [*self.artifact.rows["rate"]]
        tried = self.tried[model, task]
        trained = {r: run["metrics"].get(entry.trained) for r, run in tried.items()}
        as_good = [
            r for r, n in trained.items() if n is not None and n >= (trained[rate] or 0) - ALIKE
        ]
        beyond = [tried[r]["metrics"][entry.metric] for r in as_good]
        text = f"{rate}, at the edge" if rate in (rates[0], rates[-1]) else str(rate)
        text += f" ({min(beyond):.0f} to {max(beyond):.0f})" if len(beyond) > 1 else ""
        return Value(float(rate), text=text)

    def _table(
        self, rows: Mapping[str, Mapping[str, Cell]], caption: str, head: Sequence[str] = (), **spec
    ) -> Table:
        names = ["model", *(head or self.entries)]
        columns = [Column(name, spec if name in self.entries else {}) for name in names]
        cells = [{"model": self.marks[model], **row} for model, row in rows.items()]
        return Table(columns, cells, ["model"], caption)

    def caption(self) -> str:
        """What the table measures."""
        floors = ", ".join(f"{task} {score:.0f}" for task, score in self.guesses.items())
        with_words = "".join(f", with {word}" for word in self.artifact.overrides)
        text = (
            f"{self.artifact.title}: right tokens in percent in rows longer than those of training "
            "(of addition right rows, of groups right states, of retrieval right answers). A token "
            "is scored after the right ones before it; the best guess from nearby reaches "
            f"{floors}. Scale {self.scale}{with_words}; learning rates "
            f"{', '.join(self.artifact.rows['rate'])}, chosen by "
            "the lowest validation loss on trained lengths at the first seed. Intervals are over "
            "seeds and samples, and do not cover the choice of the rate."
        )
        if (found := self.test()) is None:
            return f"{text} Ranks are not tested: that needs 3 models, 5 tasks and 2 seeds."
        p, difference = found
        return (
            f"{text} Mean rank over {len(self.entries)} tasks, 1 is best: Friedman's test has p = "
            f"{p:.2g}; two models are told apart from {difference:.2f} on (Nemenyi, 5 %)."
        )

    @cached_property
    def guesses(self) -> dict[str, float]:
        """Task -> the score of the best guess from nearby, of the tasks that have a record."""
        first = {task: runs[0] for (_, task), runs in reversed(self.chosen.items()) if runs}
        return {t: entry.guessed(first[t]) for t, entry in self.entries.items() if t in first}
