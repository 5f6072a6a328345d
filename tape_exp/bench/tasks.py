"""The tasks of the bench: the battery's problems, addition, word problems and retrieval."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from statistics import mean
from typing import Any

from tape_exp.bench.guess import guess
from tape_exp.data.groups import GROUPS
from tape_exp.results.statistics import Value, Z, wilson
from tape_exp.settings.errors import ConfigError, did_you_mean
from tape_exp.settings.schema import Arch
from tape_exp.tasks.base import NO_OPTIM
from tape_exp.tasks.battery import PROBLEMS

# Six that a tiny model learns within its steps, and that ask different things of positions: to find
# a place from the other end; to count, however many there are; to tell the last of many like ones;
# to know how deep one is; to go on from a mark; and to find a sentence in a text.
QUICK = ("reverse", "sort", "flip_flop", "stack", "induction", "multi_key")
RECALL = ("mqar", "induction", "indirect_indexing", "flip_flop", "multi_key")


@cache
def guess_at(problem: str, length: int) -> float:
    """Compute what the best guess from nearby reaches on rows of a length, once for all records."""
    arch = Arch(layers=1, width=4, heads=1, ffn=4)
    return guess(PROBLEMS[problem](arch, NO_OPTIM, 0, length, [length], 1), length)


@dataclass(frozen=True)
class Entry:
    """A task of the bench. Its score is ``ood/<measure>``, in percent, over rows that are longer
    than those of training: the share of right tokens, of right states, of what retrieval wants, or
    of addition that of right rows. The metric at each length is ``<at>/<measure>@<length>``.
    """

    name: str  # in the command, and as a column
    words: tuple[str, ...]  # of the command line that runs it
    summary: str  # what it asks
    measure: str = "token_accuracy"
    at: str = "test"

    @property
    def metric(self) -> str:
        """Name the score as a record does."""
        return f"ood/{self.measure}"

    @property
    def trained(self) -> str:
        """Name the same measure at trained lengths."""
        return f"id/{self.measure}"

    def rows(self, record: Mapping[str, Any]) -> int:
        """Count the rows that are scored, for the interval where all are right or none is."""
        task = record["config"]["task"]
        if task["name"] == "arithmetic":
            cells = task["test_digits"] ** 2 - task["train_digits"] ** 2
            return int(task["samples_per_cell"]) * cells
        if task["name"] == "word_problem":
            return int(task["words"])
        samples = task.get("trials") or task.get("samples_per_length", 1)
        return max(1, len(self.beyond(record))) * int(samples)

    def score(self, record: Mapping[str, Any]) -> Value | None:
        """Return a run's score with its interval over samples; None where the record has none.

        Where all rows are right, or no token is, the standard error says nothing, and the interval
        is Wilson's of as many rows.

        >>> metrics = {"ood/exact_match": 40.0, "ood/exact_match_stderr": 1.0}
        >>> value = ENTRIES["addition"].score({"metrics": metrics})
        >>> value.number, value.low, value.high
        (40.0, 38.04, 41.96)
        """
        number = record["metrics"].get(self.metric)
        error = record["metrics"].get(f"{self.metric}_stderr")
        if number is None:
            return None
        if error is None:
            return Value(number)
        if number in (0, 100):
            rows = self.rows(record)
            low, high = wilson(rows if number == 100 else 0, rows)
        else:
            low = max(0.0, number - Z * error)
            high = min(100.0, number + Z * error)
        return Value(number, low, high)

    def guessed(self, record: Mapping[str, Any]) -> float:
        """Return the score of guessing on the rows of a record; 0 where a whole row or a number
        must be right.
        """
        lengths = self.beyond(record)
        if self.measure == "state":
            return float(100 * GROUPS[self.name]().guess(max(lengths)).mean())
        if self.measure == "token_accuracy" and lengths:
            return mean(guess_at(self.name, length) for length in lengths)
        return 0.0

    def beyond(self, record: Mapping[str, Any]) -> list[int]:
        """List the lengths above the trained one at which a record has a score.

        >>> metrics = {"test/token_accuracy@8": 99.0, "test/token_accuracy@16": 40.0}
        >>> config = {"task": {"train_length": 8}}
        >>> ENTRIES["sort"].beyond({"metrics": metrics, "config": config})
        [16]
        """
        stem = f"{self.at}/{self.measure}@"
        task = record["config"]["task"]
        trained = task.get("train_length") or task.get("train_letters")
        lengths = []
        for name in record["metrics"]:
            length = name.removeprefix(stem)
            if name.startswith(stem) and length.isdigit() and int(length) > trained:
                lengths.append(int(length))
        return lengths


STATES = {
    "parity": "a light that is switched",
    "s3": "S3, a group that is solvable",
    "a5": "A5, a group that is not solvable",
    "s5": "S5, a group that is not solvable",
}


def every_entry() -> list[Entry]:
    """List the tasks of the bench: the battery's problems, addition, word problems, retrieval."""
    entries = []
    for name, problem in PROBLEMS.items():
        entries.append(Entry(name, ("task=battery", f"task.problem={name}"), problem.summary))
    entries.append(Entry("addition", ("task=arithmetic",), "add two numbers", "exact_match"))
    for name in GROUPS:
        words = ("task=word_problem", f"task.group={name}")
        entries.append(Entry(name, words, f"follow {STATES[name]}", "state"))
    words = ("task=retrieval_training", "task.arch.layers=3")
    summary = "the number that a text hides"
    entries.append(Entry("multi_key", words, summary, "accuracy", at="retrieval"))
    return entries


ENTRIES = {entry.name: entry for entry in every_entry()}
SETS = {
    "all": tuple(ENTRIES),
    "quick": QUICK,
    "retrieval": RECALL,
    "algorithmic": tuple(name for name in ENTRIES if name not in RECALL),
}


def chosen(text: str) -> list[Entry]:
    """Return the tasks that ``tasks=`` names: sets and single ones, with commas, each once.

    Those of one set are in its order, others in that of the list, however they are given: the same
    tasks are the same bench.

    >>> [entry.name for entry in chosen("sort,copy,sort")]
    ['copy', 'sort']
    """
    if text in SETS:
        return [ENTRIES[name] for name in SETS[text]]
    names: set[str] = set()
    for word in text.split(","):
        if word not in SETS and word not in ENTRIES:
            known = [*SETS, *ENTRIES]
            raise ConfigError(f"tasks={word}{did_you_mean(word, known)} Known: {', '.join(known)}.")
        names.update(SETS.get(word, [word]))
    return [entry for name, entry in ENTRIES.items() if name in names]
