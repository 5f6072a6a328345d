"""The tasks of the bench: the battery's problems, addition, word problems and retrieval."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from statistics import mean
from typing import Any

from tape_exp.data.groups import GROUPS
from tape_exp.data.problems import PROBLEMS
from tape_exp.paper.statistics import Value
from tape_exp.runs.evaluation import wilson
from tape_exp.settings.errors import ConfigError, did_you_mean

RECALL = ("mqar", "induction", "indirect_indexing", "flip_flop")
# Kinds of task=retrieval_training that a tiny model learns within its steps: kind -> what it asks.
RETRIEVAL = {"multi_key": "the number that a text hides"}
# Six that a tiny model learns within its steps, and that ask different things of positions: to find
# a place from the other end; to count, however many there are; to tell the last of many like ones;
# to know how deep one is; to go on from a mark; and to find a sentence in a text.
QUICK = ("reverse", "sort", "flip_flop", "stack", "induction", "multi_key")


@cache
def guess_at(problem: str, length: int) -> float:
    """What the best guess from nearby reaches on rows of a length, once for all records."""
    return PROBLEMS[problem].guessed(length)


@dataclass(frozen=True)
class Entry:
    """A task of the bench.

    Args:
        name: in the command, and as a column.
        words: of the command line that runs it.
        summary: what it asks.
        measure: its score is ``ood/<measure>``, in percent, over rows that are longer than those of
            training: the share of right tokens, of right states, of what retrieval wants, or of
            addition that of right rows.
        at: the metric at each length is ``<at>/<measure>@<length>``.
    """

    name: str
    words: tuple[str, ...]
    summary: str
    measure: str = "token_accuracy"
    at: str = "test"

    @property
    def metric(self) -> str:
        """The name of the score in a record."""
        return f"ood/{self.measure}"

    @property
    def trained(self) -> str:
        """The same at trained lengths."""
        return f"id/{self.measure}"

    def rows(self, record: Mapping[str, Any]) -> int:
        """Of how many rows the score is, for its interval where all are right or none is."""
        task = record["config"]["task"]
        if task["name"] == "arithmetic":
            cells = task["test_digits"] ** 2 - task["train_digits"] ** 2
            return max(1, int(task["samples_per_cell"]) * cells)
        if task["name"] == "word_problem":
            return int(task["words"])
        trained = task["train_length"]
        beyond = [length for length in self.by_length(record) if length > trained]
        return max(1, len(beyond)) * int(task.get("trials") or task.get("samples_per_length", 1))

    def score(self, record: Mapping[str, Any]) -> Value | None:
        """A run's score with its interval over samples; None where the record has none.

        Where all rows are right, or no token is, the standard error says nothing, and the interval
        is Wilson's of as many rows.
        """
        number = record["metrics"].get(self.metric)
        error = record["metrics"].get(f"{self.metric}_stderr")
        if number is None:
            return None
        if error is None:
            return Value(number)
        if number in (0, 100):
            rows = self.rows(record)
            return Value(number, *wilson(rows if number else 0, rows))
        low, high = max(0.0, number - 1.96 * error), min(100.0, number + 1.96 * error)
        return Value(number, low, high)

    def guessed(self, record: Mapping[str, Any]) -> float:
        """The score that guessing has on the rows of a record; 0 where a whole row or a number
        must be right.
        """
        task = record["config"]["task"]
        if self.measure == "state":
            longest = max(self.by_length(record))
            return float(100 * GROUPS[self.name]().guess(longest).mean())
        if self.measure != "token_accuracy":
            return 0.0
        trained = task["train_length"]
        beyond = [length for length in self.by_length(record) if length > trained]
        return mean(guess_at(self.name, length) for length in beyond) if beyond else 0.0

    def by_length(self, record: Mapping[str, Any]) -> dict[int, float]:
        """A run's score at each length that its record has; of addition, of two equal lengths."""
        if record["config"]["task"]["name"] == "arithmetic":
            grid = record.get("heatmap", [])
            diagonal = {n: row[n - 1] for n, row in enumerate(grid, 1) if len(row) >= n}
            return {n: value for n, value in diagonal.items() if value is not None}
        begin, metrics = f"{self.at}/{self.measure}@", record["metrics"]
        found = {key.removeprefix(begin): key for key in metrics if key.startswith(begin)}
        return {int(n): metrics[key] for n, key in found.items() if n.isdigit()}


STATES = {
    "parity": "a light that is switched",
    "s3": "S3, a group that is solvable",
    "a5": "A5, a group that is not solvable",
    "s5": "S5, a group that is not solvable",
}


def _entries() -> dict[str, Entry]:
    found = [
        Entry(name, ("task=battery", f"task.problem={name}"), problem.summary)
        for name, problem in PROBLEMS.items()
    ]
    found.append(Entry("addition", ("task=arithmetic",), "add two numbers", "exact_match"))
    found += [
        Entry(
            group,
            ("task=word_problem", f"task.group={group}"),
            f"follow the state of {STATES[group]}",
            "state",
        )
        for group in GROUPS
    ]
    for kind, summary in RETRIEVAL.items():
        words = ("task=retrieval_training", f"task.kind={kind}", "task.arch.layers=3")
        found.append(Entry(kind, words, summary, "accuracy", "retrieval"))
    return {entry.name: entry for entry in found}


ENTRIES = _entries()
SETS = {
    "all": tuple(ENTRIES),
    "quick": QUICK,
    "retrieval": (*RECALL, *RETRIEVAL),
    "algorithmic": tuple(name for name in ENTRIES if name not in (*RECALL, *RETRIEVAL)),
}


def chosen(text: str) -> list[Entry]:
    """The tasks that ``tasks=`` names: sets and single ones, separated by commas, each once.

    Those of one set are in its order, others in that of the list, however they are given: the same
    tasks are the same bench.

    Raises:
        ConfigError: a name is neither.
    """
    names: list[str] = []
    for word in text.split(","):
        if word not in SETS and word not in ENTRIES:
            known = [*SETS, *ENTRIES]
            raise ConfigError(f"tasks={word}{did_you_mean(word, known)} Known: {', '.join(known)}.")
        names += SETS.get(word, (word,))
    return [ENTRIES[name] for name in (names if text in SETS else ENTRIES) if name in names]
