"""Scores of models on tasks, their ranks, and the tables of both."""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from tape_exp.bench import ranks
from tape_exp.bench.plan import RIVAL, Bench, label
from tape_exp.bench.tasks import BRACKETS, Entry
from tape_exp.paper.artifacts import SAME_DATA, Records, same_data
from tape_exp.paper.ceilings import ceilings, marked_table
from tape_exp.paper.records import Record
from tape_exp.paper.statistics import lead
from tape_exp.paper.tables import Column, Row, Table, columns, commits
from tape_exp.paper.values import NOT_RUN, Cell, Missing, Value, over_runs
from tape_exp.settings.naming import display_name

THEIRS = display_name(RIVAL)
ALIKE = 1.0  # point, between shares at trained lengths that do not tell rates apart
FAR = 10.0  # points, between scores
FEW = 5.0  # percent of whole rows: a task that nobody solves
OVER_TASKS = "95 % interval over tasks and seeds"
RANGE = "{number:.2f} [{low:.2f}, {high:.2f}]"


def within(value: Value) -> Value:
    """A share in percent whose interval ends at 0 and at 100."""
    if value.low is None or value.high is None or (value.low >= 0 and value.high <= 100):
        return value
    form = value.form if value.seeds else BRACKETS
    return replace(value, low=max(value.low, 0.0), high=min(value.high, 100.0), form=form)


@dataclass
class Board:
    """The recorded scores of a bench.

    Args:
        bench: what is shown, with its choices.
        scale: of its runs.
        records: what the bench collects.
    """

    bench: Bench
    scale: str
    records: Records

    @cached_property
    def scores(self) -> dict[str, dict[str, Cell]]:
        """Model -> task -> the mean over seeds; models without any score are left out."""
        found: dict[str, dict[str, Cell]] = {}
        for model in self.bench.models:
            row = {entry.name: self._cell(model, entry) for entry in self.bench.entries}
            if any(isinstance(cell, Value) for cell in row.values()):
                found[model] = row
        return found

    def _cell(self, model: str, entry: Entry) -> Cell:
        if reason := self.bench.unfit.get((model, entry.name)):
            return Missing(reason)
        runs = self.bench.runs(self.records, model, entry.name)
        values = {r["seed"]: value for r in runs if (value := entry.score(r)) is not None}
        mean = over_runs(values, digits=1) if values else NOT_RUN
        return within(mean) if isinstance(mean, Value) else mean

    @cached_property
    def ceilings(self) -> set[str]:
        """Models that are told which tokens are digits: they have no rank."""
        return ceilings(self.records)

    @cached_property
    def ranked(self) -> list[str]:
        """The models that have every task of the table, and are no ceilings."""
        return [
            model
            for model, row in self.scores.items()
            if model not in self.ceilings and all(isinstance(c, Value) for c in row.values())
        ]

    @cached_property
    def seeds(self) -> list[int]:
        """The seeds that all ranked models have on all tasks."""
        cells = [cell for model in self.ranked for cell in self.scores[model].values()]
        runs = [{*cell.runs} for cell in cells if isinstance(cell, Value)]
        return sorted(set.intersection(*runs)) if runs else []

    @cached_property
    def numbers(self) -> np.ndarray:
        """(ranked models, tasks, seeds): their scores."""
        cells = [[*self.scores[model].values()] for model in self.ranked]
        numbers = [
            [[c.runs[s].number for s in self.seeds] for c in row if isinstance(c, Value)]
            for row in cells
        ]
        sizes = len(self.ranked), len(self.bench.entries), len(self.seeds)
        return np.array(numbers, float).reshape(sizes)

    @cached_property
    def places(self) -> dict[str, tuple[Value, Value | Missing]]:
        """Model -> its mean rank and its mean difference to RoPE; the best rank first."""
        if len(self.ranked) < 2 or not self.seeds:
            return {}
        rival = self.ranked.index(RIVAL) if RIVAL in self.ranked else None
        draws = ranks.bootstrap(self.numbers, rival or 0)
        means, scores = ranks.mean_ranks(self.numbers), self.numbers.mean((1, 2))
        methods, tasks, _ = self.numbers.shape
        resampled = tasks >= ranks.FEWEST["tasks"]
        found: dict[str, tuple[Value, Value | Missing]] = {}
        for i in np.argsort(means, kind="stable"):
            rank, ahead = Value(float(means[i])), Missing(f"{THEIRS} has no rank")
            if resampled:
                low, high = np.clip(ranks.interval(draws.ranks[i], tasks), 1, methods).tolist()
                rank = Value(float(means[i]), low, high, form=RANGE, kind=OVER_TASKS)
            difference: Value | Missing = ahead
            if rival is not None and i != rival:
                number, form = float(scores[i] - scores[rival]), "{number:+.2f}"
                difference = Value(number, form=form)
                if resampled:
                    form += " [{low:+.2f}, {high:+.2f}]"
                    low, high = ranks.interval(draws.leads[i], tasks)
                    difference = Value(number, low, high, form=form, kind=OVER_TASKS)
            elif rival is not None:
                difference = Missing("the others are compared with it")
            found[self.ranked[i]] = rank, difference
        return found

    @property
    def order(self) -> list[str]:
        """The models by mean rank, then those without one."""
        return [*self.places, *(model for model in self.scores if model not in self.places)]

    def table(self) -> Table:
        """Encodings × tasks, by mean rank."""
        rows: list[Row] = []
        without = Missing("without every task, or a ceiling: no rank")
        for model in self.order:
            rank, difference = self.places.get(model, (without, without))
            row: Row = {"model": model, "rank": rank, "lead": difference}
            row.update(self.scores[model].items())
            runs = [
                run
                for entry in self.bench.entries
                for run in self.bench.runs(self.records, model, entry.name)
            ]
            counts = [len(c.runs) for c in self.scores[model].values() if isinstance(c, Value)]
            row["seeds"] = "–".join(dict.fromkeys(str(n) for n in (min(counts), max(counts))))
            rows.append(row | {"commit": commits(runs)})
        head = [Column("model"), Column("rank", "mean rank")]
        head += [
            Column("lead", f"mean difference to {RIVAL}", shown=f"mean difference to {THEIRS}")
        ]
        head += columns([entry.name for entry in self.bench.entries])
        table = Table([*head, *columns(["seeds", "commit"])], rows, self.caption())
        return marked_table(table, self.ceilings)

    def leads(self) -> Table:
        """The paired difference of each model to RoPE on each task."""
        rows: list[Row] = []
        theirs = self.scores.get(RIVAL, {})
        for model in (name for name in self.order if name != RIVAL):
            row: Row = {"model": model}
            row |= {
                task: lead(cell, theirs.get(task, NOT_RUN), digits=1)
                for task, cell in self.scores[model].items()
            }
            rows.append(row)
        head = columns(["model", *(entry.name for entry in self.bench.entries)])
        caption = (
            f"Difference to {THEIRS} in percentage points over the seeds that both have, with half "
            "of its 95 % interval (Student's t over pairs); a single pair has none. Of three pairs "
            "that differ much it is wider than differences of shares can be. "
            f"{self.bench.settings(self.scale)}"
        )
        if not theirs:
            caption = f"{THEIRS} is not recorded: `tape-exp bench {RIVAL}` runs it."
        return marked_table(Table(head, rows, caption), self.ceilings)

    def search(self) -> Table:
        """The learning rate that each model has on each task."""
        rows: list[Row] = []
        for model in self.order:
            row: Row = {"model": model}
            for entry in self.bench.entries:
                rate = self.bench.choices.get((model, entry.name))
                edge = rate in (min(self.bench.rates), max(self.bench.rates))
                form = "{number:g}, at the edge" if edge else "{number:g}"
                alike = self.alike(model, entry)
                form += f" ({min(alike):.0f} to {max(alike):.0f})" if len(alike) > 1 else ""
                row[entry.name] = NOT_RUN if rate is None else Value(rate, form=form)
            rows.append(row)
        head = columns(["model", *(entry.name for entry in self.bench.entries)])
        caption = (
            "The learning rate of each model on each task: the lowest validation loss on further "
            "rows of the trained lengths; every model tried the same rates for the same number of "
            "steps. At the edge of those the best may lie beyond. In brackets: from the lowest to "
            "the highest score beyond the trained lengths that the chosen rate and others reach "
            f"which are right within those lengths as often, to {ALIKE:g} point; what the loss "
            f"prefers among these is next to chance. {self.bench.settings(self.scale)}"
        )
        return marked_table(Table(head, rows, caption), self.ceilings)

    def alike(self, model: str, entry: Entry) -> list[float]:
        """The scores at the first seed of the chosen rate, and of those that do as well within the
        trained lengths.
        """
        tried = {}
        for rate in self.bench.rates:
            for record in self.records.get(label(model, entry.name, rate), []):
                found = [record["metrics"].get(key) for key in (entry.trained, entry.metric)]
                if record["seed"] == self.bench.seeds[0] and None not in found:
                    tried[rate] = found
        chosen = self.bench.choices.get((model, entry.name))
        if chosen not in tried:
            return []
        enough = tried[chosen][0] - ALIKE
        return [beyond for trained, beyond in tried.values() if trained >= enough]

    def caption(self) -> str:
        """What the table measures."""
        exact = [e.name for e in self.bench.entries if e.measure == "exact_match"]
        answers = [e.name for e in self.bench.entries if e.measure == "accuracy"]
        states = [e.name for e in self.bench.entries if e.measure == "state"]
        what = [
            f"{self.bench.title}: right tokens in percent in rows longer than those of training",
            f"right rows of {', '.join(exact)}" if exact else "",
            f"right states of {', '.join(states)}" if states else "",
            f"right answers of {', '.join(answers)}" if answers else "",
        ]
        sentences = [
            f"{'; '.join(filter(None, what))}.",
            self.guess_words(),
            self.bench.settings(self.scale),
            "All models have the same steps, rates and rows; the lowest validation loss on trained "
            "lengths chose the rate, which further seeds have alone. Of one seed the interval is "
            "over samples, of more over seeds and samples.",
            self.rate_words(),
            self.rank_words(),
            SAME_DATA[self.same_data()],
        ]
        return " ".join(filter(None, sentences))

    def rate_words(self) -> str:
        """How far scores move with rates that trained lengths do not tell apart."""
        found = {
            (model, entry): self.alike(model, entry)
            for model in self.scores
            for entry in self.bench.entries
        }
        ranges = {key: max(scores) - min(scores) for key, scores in found.items() if scores}
        if not ranges or max(ranges.values()) < ALIKE:
            return ""
        model, entry = max(ranges, key=lambda cell: ranges[cell])
        low, high = min(found[model, entry]), max(found[model, entry])
        if high - low < FAR:
            return (
                "No interval covers the choice of the rate: those that do as well on trained "
                f"lengths differ by up to {high - low:.0f} points in score."
            )
        many = sum(reach >= FAR for reach in ranges.values())
        return (
            f"No interval covers the choice of the rate: in {many} of {len(ranges)} cells rates "
            f"that do as well on trained lengths differ by {FAR:g} points or more in score, most "
            f"of {display_name(model)} on {entry.name}, from {low:.0f} to {high:.0f}."
        )

    def guess_words(self) -> str:
        """How an answer is scored, and what guessing reaches on each task."""
        reached = ", ".join(f"{name} {number:.0f}" for name, number in self.guesses.items())
        text = (
            "A token is scored after the right ones before it. The best guess from nearby (what "
            "most often follows the last 0 to 3 tokens in other rows, or the answer before, again) "
            f"would reach: {reached}."
        )
        few = [
            f"{number:.1f} % of {entry.name}"
            for entry in self.bench.entries
            if (number := self.whole(entry)) is not None and number < FEW
        ]
        return f"{text} Whole rows: no run has more right than {', '.join(few)}." if few else text

    def runs_of(self, entry: Entry) -> list[Record]:
        """The runs of all models that the table shows of a task."""
        every = (self.bench.runs(self.records, model, entry.name) for model in self.bench.models)
        return [run for runs in every for run in runs]

    @cached_property
    def guesses(self) -> dict[str, float]:
        """Task -> the score of the best guess from nearby, of the tasks that have a record."""
        found = {entry: self.runs_of(entry) for entry in self.bench.entries}
        return {entry.name: entry.guessed(runs[0]) for entry, runs in found.items() if runs}

    def whole(self, entry: Entry) -> float | None:
        """The largest share of whole right rows beyond the trained lengths, in percent, of a task
        whose tokens are scored.
        """
        if entry.measure != "token_accuracy":
            return None
        shares = [run["metrics"].get("ood/exact_match") for run in self.runs_of(entry)]
        return max((share for share in shares if share is not None), default=None)

    def same_data(self) -> bool | None:
        """Whether all runs of a task and a seed read the same data; None: that is not recorded."""
        every = []
        for entry in self.bench.entries:
            runs = {m: self.bench.runs(self.records, m, entry.name) for m in self.bench.models}
            every.append(same_data({model: found for model, found in runs.items() if found}))
        return False if False in every else None if None in every else True

    def rank_words(self) -> str:
        """How ranks were made, and what tests of them say."""
        if not self.places:
            return "There are no ranks: they need two models that have every task."
        seeds = ("seeds " if len(self.seeds) > 1 else "seed ") + ", ".join(map(str, self.seeds))
        given = f"{len(self.ranked)} models, {self.numbers.shape[1]} tasks, {seeds}"
        text = (
            f"Mean rank over tasks (1 is best; {given}, which all of them have), and the mean "
            "difference in percentage points, from five tasks on with the 95 % interval of a "
            "bootstrap over tasks and seeds."
        )
        if reason := ranks.too_few(self.numbers):
            return f"{text} {reason}"
        statistic, p, difference = self.test()
        found = f"{ranks.p_words(p)}: mean ranks {'do' if p < 0.05 else 'do not'} differ"
        return (
            f"{text} Friedman's χ² is {statistic:.2f}, {found}; "
            f"those of two models are told apart from {difference:.2f} on (Nemenyi, 5 %)."
        )

    def test(self) -> tuple[float, float, float]:
        """Friedman's χ², its p, and Nemenyi's critical difference."""
        methods, tasks, _ = self.numbers.shape
        of_tasks = ranks.ranked(self.numbers.mean(-1))
        return (*ranks.friedman(of_tasks), ranks.critical_difference(methods, tasks))
